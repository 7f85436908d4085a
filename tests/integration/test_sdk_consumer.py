"""The consumer against scripted brokers: iterating, handlers, credit, losses, draining."""

from __future__ import annotations

import asyncio
import contextlib
from unittest.mock import ANY

import pytest

from penstock import (
    AlreadySettled,
    BrokerUnreachable,
    Client,
    ClientClosed,
    ConfigError,
    Consumer,
    Message,
    MessageInvalid,
    Refused,
)
from tests.integration.sdk_fake_nsqd import (
    FakeNsqd,
    Session,
    frame,
    in_loop,
    message_frame,
    turns_until,
)


def client(*brokers: FakeNsqd) -> Client:
    return Client(
        [broker.address for broker in brokers], reconnect_delay=0.01, reconnect_delay_max=0.05
    )


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


# --- iterating -----------------------------------------------------------------------------------


@in_loop
async def test_iterating_finishes_each_when_the_next_is_asked_for() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(5))
        async with client(broker).consumer("t", "c") as consumer:
            seen = []
            async for message in consumer:
                assert message.attempts == 1
                seen.append(message.body)
                if len(seen) == 5:
                    break
        assert seen == numbers(5)
        # The loop was left with the fifth in hand: it goes back.
        assert broker.finished == numbers(4)
        assert broker.requeued == [(b"4", 0)]
        assert broker.commands[:2] == [b"IDENTIFY", b"SUB t c"]
        assert broker.commands[-2:] == [b"CLS", ANY]


@in_loop
async def test_what_the_program_settled_itself_is_left_alone() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(4))
        async with client(broker).consumer("t", "c") as consumer:
            async for message in consumer:
                if message.attempts > 1:
                    message.finish()
                    break
                if message.body == b"1":
                    message.requeue(0)
                elif message.body == b"2":
                    message.touch()
                else:
                    message.finish()
                    with pytest.raises(AlreadySettled):
                        message.finish()
        assert broker.finished == [b"0", b"2", b"3", b"1"]
        assert broker.touched == [b"2"]
        assert broker.requeued == [(b"1", 0)]
        assert consumer.statistics().finished == 4


@in_loop
async def test_without_auto_finish_the_program_settles() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        async with client(broker).consumer("t", "c", auto_finish=False) as consumer:
            held = []
            async for message in consumer:
                held.append(message)
                if len(held) == 3:
                    break
            assert broker.finished == []
            assert consumer.statistics().in_flight == 3
            for message in held:
                message.finish()
        assert broker.finished == numbers(3)


@in_loop
async def test_two_tasks_iterate_without_finishing_each_others() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(2))
        async with client(broker).consumer("t", "c") as consumer:
            taken: list[bytes] = []
            both = asyncio.Event()

            async def take() -> None:
                async for message in consumer:
                    taken.append(message.body)
                    if len(taken) == 2:
                        both.set()
                    await both.wait()
                    if message.body == b"0":
                        raise RuntimeError("the program failed")

            tasks = [asyncio.create_task(take()) for _ in range(2)]
            await both.wait()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await broker.until(lambda: broker.finished == [b"1"])
            # The failed task's message goes back, and comes again to the other one.
            await broker.until(lambda: broker.requeued == [(b"0", 0)])
            await asyncio.wait(tasks)
            assert taken == [b"0", b"1", b"0"]
            for task in tasks:
                with pytest.raises(RuntimeError, match="the program failed"):
                    task.result()


@in_loop
async def test_a_loop_that_failed_gives_its_message_back_before_the_next_loop() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        async with client(broker).consumer("t", "c") as consumer:
            with contextlib.suppress(RuntimeError):
                async for _ in consumer:
                    raise RuntimeError("the program failed")
            seen = []
            async for message in consumer:
                seen.append((message.body, message.attempts))
                if message.attempts == 2:
                    message.finish()
                    break
        assert seen == [(b"1", 1), (b"2", 1), (b"0", 2)]
        assert broker.requeued == [(b"0", 0)]
        assert broker.finished == [b"1", b"2", b"0"]


@in_loop
async def test_a_task_that_died_in_its_loop_gives_its_message_back() -> None:
    async with FakeNsqd() as broker:
        broker.push(b"x")
        async with client(broker).consumer("t", "c") as consumer:

            async def take() -> None:
                async for _ in consumer:
                    raise RuntimeError("the program failed")

            task = asyncio.create_task(take())
            await broker.until(lambda: broker.requeued == [(b"x", 0)])
            with pytest.raises(RuntimeError):
                await task


@in_loop
async def test_fetch_that_does_not_wait_brings_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.sdk.consumer.TURN_EVERY", 0.0)
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        async with client(broker).consumer("t", "c") as consumer:
            assert await consumer.fetch(1, wait=0) == []
            await turns_until(lambda: consumer.statistics().buffered == 3)
            messages = await consumer.fetch(3, wait=0)
            assert [message.finish() for message in messages] == [True] * 3


@in_loop
async def test_fetch_brings_what_is_there() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(5))
        async with client(broker).consumer("t", "c") as consumer:
            first = await consumer.fetch(3)
            rest = await consumer.fetch(10)
            assert [message.body for message in first + rest] == numbers(5)
            assert await consumer.fetch(10, wait=0.01) == []
            for message in first + rest:
                message.finish()
            waiting = asyncio.create_task(consumer.fetch(10))
            await asyncio.sleep(0)
            broker.push(b"late")
            (late,) = await waiting
            late.finish()
        assert broker.finished == [*numbers(5), b"late"]


@in_loop
async def test_a_loop_that_never_awaits_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.sdk.consumer.TURN_EVERY", 0.0)
    async with FakeNsqd() as broker:
        broker.push(*numbers(50))
        async with client(broker).consumer("t", "c") as consumer:
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 40:
                    break
            # Had the loop got no turn, nothing would have reached the broker before the end.
            assert len(broker.finished) > 20


# --- handlers ------------------------------------------------------------------------------------


@in_loop
async def test_handlers_run_so_many_at_once() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(10))
        async with client(broker).consumer("t", "c") as consumer:
            at_work = most = 0

            async def handle(message: Message) -> None:
                nonlocal at_work, most
                at_work += 1
                most = max(most, at_work)
                await asyncio.sleep(0.002)
                at_work -= 1
                if message.body == b"9":
                    consumer.request_stop()

            await consumer.run(handle, concurrency=3)
        assert most == 3
        assert sorted(broker.finished) == numbers(10)


@in_loop
async def test_a_handlers_exception_requeues_later_and_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeNsqd() as broker:
        broker.push(b"a", attempts=1)
        broker.push(b"b", attempts=4)
        async with client(broker).consumer("t", "c", retry_delay=2, retry_delay_max=10) as consumer:

            async def handle(message: Message) -> None:
                if len(broker.requeued) == 2:
                    await consumer.stop()  # from within a handler it only begins
                    return
                raise ValueError("cannot do it")

            await consumer.run(handle)
        (a, a_delay), (b, b_delay) = broker.requeued[:2]
        assert (a, b) == (b"a", b"b")
        assert 1500 <= a_delay <= 2000
        assert 7500 <= b_delay <= 10000
    assert "cannot do it" in caplog.text


@in_loop
async def test_a_handler_may_settle_itself_even_if_it_fails_then() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        async with client(broker).consumer("t", "c") as consumer:

            async def handle(message: Message) -> None:
                if message.body == b"0":
                    message.finish()
                    raise ValueError("after the fact")
                if message.body == b"1" and message.attempts == 1:
                    message.requeue(0)
                elif message.body == b"1":
                    consumer.request_stop()

            await consumer.run(handle)
        assert broker.finished == [b"0", b"2", b"1"]
        assert broker.requeued == [(b"1", 0)]


@in_loop
async def test_a_cancelled_run_gives_back_what_it_had() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        async with client(broker).consumer("t", "c") as consumer:
            begun = asyncio.Event()

            async def handle(_: Message) -> None:
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(consumer.run(handle, concurrency=2))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert broker.finished == []
        assert {body for body, _ in broker.requeued} == set(numbers(3))


# --- credit --------------------------------------------------------------------------------------


@in_loop
async def test_credit_is_shared_and_never_promised_twice() -> None:
    async with FakeNsqd() as one, FakeNsqd() as two:
        options = {"max_in_flight": 11}
        async with client(one, two).consumer("t", "c", **options) as consumer:  # type: ignore[arg-type]
            await one.until(lambda: sum(s.ready for s in one.sessions + two.sessions) == 11)
            assert sorted(s.ready for s in one.sessions + two.sessions) == [5, 6]
            # One broker goes: the other gets all of it. It comes back: they share again.
            await two.stop()
            await one.until(lambda: one.sessions[0].ready == 11)
            one.push(*numbers(30))
            held = await consumer.fetch(11)
            assert len(held) == 11
            async with FakeNsqd(two.port) as again:
                again.push(*numbers(30))
                await again.until(lambda: bool(again.sessions))
                await one.until(lambda: one.sessions[0].ready < 11)
                # All eleven are still in flight at the first, so the second gets none yet.
                assert consumer.statistics().in_flight == 11
                assert again.sessions[0].ready == 0
                for message in held[:7]:
                    message.finish()
                await again.until(lambda: again.sessions[0].ready > 0)
                assert sum(len(s.in_flight) for s in one.sessions + again.sessions) <= 11
                for message in held[7:]:
                    message.finish()
                await again.until(lambda: again.sessions[0].ready in {5, 6})
                assert again.sessions[0].ready + one.sessions[0].ready == 11


@in_loop
async def test_the_brokers_own_limit_is_kept() -> None:
    async with (
        FakeNsqd(max_rdy_count=7) as broker,
        client(broker).consumer("t", "c", max_in_flight=100),
    ):
        await broker.until(lambda: broker.ready_counts == [7])


@in_loop
async def test_with_fewer_credits_than_brokers_each_gets_its_turn() -> None:
    async with FakeNsqd() as one, FakeNsqd() as two, FakeNsqd() as three:
        brokers = (one, two, three)
        for broker in brokers:
            broker.push(b"%d" % broker.port)
        async with client(*brokers).consumer(
            "t", "c", max_in_flight=1, rotate_interval=0.01
        ) as consumer:
            seen = set()
            async for message in consumer:
                seen.add(message.body)
                assert sum(s.ready for broker in brokers for s in broker.sessions) <= 1
                if len(seen) == 3:
                    message.finish()
                    break


# --- losses --------------------------------------------------------------------------------------


@in_loop
async def test_a_lost_connection_is_made_again_and_its_messages_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(4))
        async with client(broker).consumer("t", "c", auto_finish=False) as consumer:
            iterator = aiter(consumer)
            in_hand = await anext(iterator)
            broker.sessions[0].drop()
            await broker.until(lambda: len(broker.sessions) == 1 and broker.sessions[0].subscribed)
            await turns_until(lambda: consumer.statistics().connects == 2)
            # The three that were waiting are forgotten here; the one in hand is too late to settle.
            assert in_hand.finish() is False
            again = []
            async for message in consumer:
                again.append((message.body, message.attempts))
                assert message.finish()
                if len(again) == 4:
                    break
            assert sorted(again) == [(body, 2) for body in numbers(4)]
            assert consumer.statistics().stale == 4
    assert "lost the connection" in caplog.text


@in_loop
async def test_a_message_delivered_anew_replaces_the_one_that_waited() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        async with client(broker).consumer("t", "c", auto_finish=False) as consumer:
            first = await anext(aiter(consumer))
            session = broker.sessions[0]
            # The broker's timeout: the same ids again, to the same consumer.
            (first_id, *_) = session.in_flight
            for raw_id, (body, _) in session.in_flight.items():
                session.send(message_frame(int(raw_id, 16), body, attempts=2))
            await turns_until(lambda: consumer.statistics().received == 6)
            rest = await consumer.fetch(10)
            assert [(m.body, m.attempts) for m in rest] == [(body, 2) for body in numbers(3)]
            assert first.raw_id == first_id
            assert first.touch() is False
            assert first.finish() is False
            assert all(message.finish() for message in rest)
        assert broker.finished == numbers(3)


@in_loop
async def test_one_of_two_brokers_is_missing_at_the_start() -> None:
    async with FakeNsqd() as gone:
        pass
    async with FakeNsqd() as broker, client(broker, gone).consumer("t", "c") as consumer:
        assert [address.port for address in consumer.statistics().connected] == [broker.port]
        async with FakeNsqd(gone.port) as late:
            late.push(b"late")
            async for message in consumer:
                assert message.body == b"late"
                message.finish()
                break


@in_loop
async def test_no_broker_at_the_start() -> None:
    async with FakeNsqd() as gone:
        pass
    with pytest.raises(BrokerUnreachable, match=gone.address):
        await client(gone).consumer("t", "c").start()


@in_loop
async def test_a_refusal_that_no_attempt_can_cure_reaches_the_program() -> None:
    async with FakeNsqd() as broker:
        consumer = client(broker).consumer("t", "c")
        refusal = frame(1, b"E_UNAUTHORIZED AUTH failed for SUB on t c")
        broker.script = lambda _session, words, _body: refusal if words[0] == b"SUB" else None
        with pytest.raises(Refused, match="E_UNAUTHORIZED") as caught:
            await consumer.start()
        assert not caught.value.retry

        # The same when it happens on the way.
        broker.script = lambda *_: None
        async with client(broker).consumer("t", "c") as consumer:
            broker.script = lambda _session, words, _body: refusal if words[0] == b"SUB" else None
            broker.sessions[-1].drop()
            with pytest.raises(Refused, match="E_UNAUTHORIZED"):
                async for _ in consumer:
                    pass


@in_loop
async def test_refused_settles_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeNsqd() as broker:
        broker.push(b"x")
        async with client(broker).consumer("t", "c", auto_finish=False) as consumer:
            message = await anext(aiter(consumer))
            broker.sessions[0].in_flight.clear()  # it timed out there
            message.finish()
            await broker.until(lambda: any(line.startswith(b"FIN") for line in broker.commands))
            await turns_until(lambda: consumer.statistics().refused == 1)
    assert "E_FIN_FAILED" in caplog.text


# --- touching ------------------------------------------------------------------------------------


@in_loop
async def test_auto_touch_keeps_messages() -> None:
    async with FakeNsqd(msg_timeout=60) as broker:
        broker.push(*numbers(2))
        async with client(broker).consumer(
            "t", "c", auto_touch=True, auto_finish=False
        ) as consumer:
            messages = await consumer.fetch(2)
            await broker.until(lambda: broker.touched.count(b"1") >= 2)
            assert consumer.statistics().touched >= len(broker.touched)
            for message in messages:
                message.finish()
        assert set(broker.touched) == set(numbers(2))


@in_loop
async def test_auto_touch_goes_on_while_a_stop_waits() -> None:
    async with FakeNsqd(msg_timeout=60) as broker:
        broker.push(b"x")
        async with client(broker).consumer("t", "c", auto_touch=True) as consumer:
            (message,) = await consumer.fetch(1)
            stopping = asyncio.create_task(consumer.stop())
            await broker.until(lambda: b"CLS" in broker.commands)
            before = len(broker.touched)
            await broker.until(lambda: len(broker.touched) >= before + 2)
            message.finish()
            await stopping
        assert broker.finished == [b"x"]


# --- stopping ------------------------------------------------------------------------------------


@in_loop
async def test_stop_waits_for_handlers_and_gives_back_the_rest() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(10))
        consumer = client(broker).consumer("t", "c")
        await consumer.start()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            await go_on.wait()

        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await begun.wait()
        stopping = asyncio.create_task(consumer.stop())
        await broker.until(lambda: len(broker.requeued) == 8)
        assert not stopping.done()
        assert broker.commands[-9] == b"CLS"
        go_on.set()
        await asyncio.gather(stopping, running)
        assert broker.finished == [b"0", b"1"]
        assert [body for body, _ in broker.requeued] == numbers(10)[2:]
        await broker.until(lambda: not broker.sessions)
        await consumer.stop()
        with pytest.raises(ClientClosed, match="make a new one"):
            await consumer.start()


@in_loop
async def test_stop_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeNsqd() as broker:
        broker.push(b"x")
        consumer = client(broker).consumer("t", "c", auto_finish=False)
        await consumer.start()
        message = await asyncio.create_task(_next(consumer))
        await consumer.stop(0.01)
        assert message.finish() is False
    assert "1 messages in hand" in caplog.text


async def _next(consumer: Consumer) -> Message:
    return await anext(aiter(consumer))


@in_loop
async def test_a_stop_can_be_hurried() -> None:
    async with FakeNsqd() as broker:
        broker.push(b"x")
        consumer = client(broker).consumer("t", "c", drain_timeout=1000)
        await consumer.start()
        assert len(await consumer.fetch(1)) == 1
        consumer.request_stop()
        await broker.until(lambda: b"CLS" in broker.commands)
        stopping = asyncio.create_task(consumer.stop(500))
        await asyncio.sleep(0)
        assert not stopping.done()
        await consumer.stop(0)
        await stopping
        assert not broker.sessions


@in_loop
async def test_stop_ends_an_iteration_that_waits() -> None:
    async with FakeNsqd() as broker:
        consumer = client(broker).consumer("t", "c")
        await consumer.start()

        async def iterate() -> int:
            count = 0
            async for _ in consumer:
                count += 1
            return count

        iterating = asyncio.create_task(iterate())
        broker.push(b"x")
        await broker.until(lambda: any(s.in_flight for s in broker.sessions))
        await turns_until(
            lambda: consumer.statistics().received == 1 and not consumer.statistics().buffered
        )
        await consumer.stop()
        assert await iterating == 1
        assert broker.finished == [b"x"]
        assert await consumer.fetch(1) == []


@in_loop
async def test_leaving_waits_for_the_messages_of_other_tasks() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(2))
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def take(consumer: Consumer) -> None:
            async for message in consumer:
                begun.set()
                await go_on.wait()
                message.finish()

        async with client(broker).consumer("t", "c", max_in_flight=1) as consumer:
            task = asyncio.create_task(take(consumer))
            await begun.wait()
            asyncio.get_running_loop().call_soon(go_on.set)
        await task
        assert broker.finished == [b"0"]
        assert broker.requeued == []


@in_loop
async def test_stop_behind_a_loop_waits_until_all_is_said() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        consumer = client(broker).consumer("t", "c")
        await consumer.start()
        async for message in consumer:
            message.finish()
            break
        await consumer.stop()
        assert broker.finished == [b"0"]
        assert not broker.sessions


@in_loop
async def test_stop_within_a_loop_only_begins() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        consumer = client(broker).consumer("t", "c")
        await consumer.start()
        async for _ in consumer:
            await consumer.stop()
        await consumer.stop()
        assert broker.finished == [b"0"]
        assert [body for body, _ in broker.requeued] == [b"1", b"2"]


@in_loop
async def test_a_start_that_is_given_up_leaves_no_connection() -> None:
    async with FakeNsqd() as broker, FakeNsqd() as silent:
        silent.script = lambda *_: b""
        consumer = client(broker, silent).consumer("t", "c")
        starting = asyncio.create_task(consumer.start())
        await broker.until(lambda: any(session.ready for session in broker.sessions))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await broker.until(lambda: not broker.sessions)
        await silent.until(lambda: not silent.sessions)


@in_loop
async def test_a_stop_while_it_starts_stops_it() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(3))
        consumer = client(broker).consumer("t", "c")

        def stop(_session: Session, words: list[bytes], _body: bytes) -> None:
            if words[0] == b"SUB":
                consumer.request_stop()

        broker.script = stop
        async with consumer:
            await consumer.run(_never)
        assert broker.finished == []
        assert not broker.sessions


async def _never(message: Message) -> None:
    raise AssertionError(message)


@in_loop
async def test_messages_on_their_way_when_the_stop_begins_go_back() -> None:
    async with FakeNsqd() as broker:

        def late(session: Session, words: list[bytes], _: bytes) -> bytes | None:
            if words[0] == b"CLS":
                broker.script = lambda *_: None
                broker.push(b"late")  # the broker wrote it before it read our CLS
                session.closing = True
                return frame(0, b"CLOSE_WAIT")
            return None

        async with client(broker).consumer("t", "c"):
            broker.script = late
        assert broker.requeued == [(b"late", 0)]


@in_loop
async def test_set_addresses_moves_to_other_brokers() -> None:
    async with FakeNsqd() as one, FakeNsqd() as two:
        one.push(*numbers(2))
        async with client(one).consumer("t", "c", auto_finish=False) as consumer:
            in_hand = await anext(aiter(consumer))
            consumer.set_addresses([two.address])
            await one.until(lambda: one.requeued == [(b"1", 0)])
            two.push(b"two")
            assert (await anext(aiter(consumer))).finish()
            assert in_hand.finish()  # what was begun there may still be finished
            await one.until(lambda: not one.sessions)
            assert one.finished == [b"0"]
            await turns_until(lambda: len(consumer.statistics().connected) == 1)
            assert [address.port for address in consumer.statistics().connected] == [two.port]


@in_loop
async def test_the_client_closes_what_it_made() -> None:
    async with FakeNsqd() as broker:
        async with client(broker) as subject:
            consumer = subject.consumer("t", "c")
            producer = subject.producer()
            await consumer.start()
            await producer.start()
            await broker.until(lambda: len(broker.sessions) == 2)
        assert consumer.closed
        assert producer.closed
        await broker.until(lambda: not broker.sessions)


@in_loop
async def test_leaving_a_client_gives_back_what_a_left_loop_had() -> None:
    async with FakeNsqd() as broker:
        broker.push(*numbers(2))
        async with client(broker) as subject:
            consumer = subject.consumer("t", "c")
            await consumer.start()
            async for _ in consumer:
                break
        assert sorted(broker.requeued) == [(b"0", 0), (b"1", 0)]
        assert not broker.sessions


@in_loop
async def test_names_and_states_are_checked() -> None:
    subject = Client("127.0.0.1:1")
    with pytest.raises(MessageInvalid, match="topic 'a b'"):
        subject.consumer("a b", "c")
    with pytest.raises(MessageInvalid, match="channel ''"):
        subject.consumer("t", "")
    consumer = subject.consumer("t", "c")
    with pytest.raises(ClientClosed, match="not started"):
        await consumer.fetch(1)
    with pytest.raises(ClientClosed, match="not started"):
        consumer.set_addresses([])
    with pytest.raises(ConfigError, match="concurrency is at least 1"):
        await consumer.run(_never, concurrency=0)
    await consumer.stop()
    with pytest.raises(ConfigError, match="not an address"):
        subject.consumer("t", "c").set_addresses(["here:there"])
