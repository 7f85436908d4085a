"""The producer against a scripted broker: batches, back-pressure, refusals, losses, failover."""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from datetime import timedelta

import pytest

from penstock import (
    BrokerUnreachable,
    Client,
    ClientClosed,
    MessageInvalid,
    PublishError,
    PublishLost,
    PublishRefused,
    PublishTimeout,
)
from penstock.sdk.options import OnLost
from tests.integration.sdk_fake_nsqd import FakeNsqd, Session, frame, in_loop, turns_until


def client(*brokers: FakeNsqd) -> Client:
    return Client(
        [broker.address for broker in brokers], reconnect_delay=0.01, reconnect_delay_max=0.05
    )


def commands(broker: FakeNsqd, *names: bytes) -> list[bytes]:
    return [line for line in broker.commands if line.split(b" ")[0] in names]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


class Held:
    """Takes publishes and answers them when told."""

    def __init__(self, broker: FakeNsqd) -> None:
        self.broker = broker
        self.waiting: list[tuple[Session, list[bytes], bytes]] = []
        broker.script = self

    def __call__(self, session: Session, words: list[bytes], body: bytes) -> bytes | None:
        if words[0] not in {b"PUB", b"MPUB", b"DPUB"}:
            return None
        self.waiting.append((session, words, body))
        return b""

    def answer(self) -> None:
        session, words, body = self.waiting.pop(0)
        getattr(session, "on_" + words[0].decode().lower())(words, body)

    def release(self) -> None:
        self.broker.script = lambda *_: None
        while self.waiting:
            self.answer()


@in_loop
async def test_a_lone_publish_leaves_at_once() -> None:
    async with FakeNsqd() as broker, client(broker).producer(linger=1.0) as producer:
        async with asyncio.timeout(0.9):
            await producer.publish("t", b"one")
        assert commands(broker, b"PUB") == [b"PUB t"]
        assert broker.topics == {"t": [b"one"]}


@in_loop
async def test_what_is_published_in_one_turn_shares_a_command_per_topic() -> None:
    async with FakeNsqd() as broker, client(broker).producer() as producer:
        await asyncio.gather(
            *(producer.publish("a" if i % 2 else "b", b"%d" % i) for i in range(20))
        )
        assert commands(broker, b"PUB", b"MPUB") == [b"MPUB b", b"MPUB a"]
        assert broker.topics["a"] == [b"%d" % i for i in range(1, 20, 2)]
        assert producer.statistics().published == 20
        assert producer.statistics().pending_bytes == 0


@in_loop
async def test_while_an_answer_is_out_messages_gather() -> None:
    async with FakeNsqd() as broker, client(broker).producer(linger=1.0) as producer:
        held = Held(broker)
        tasks = [asyncio.create_task(producer.publish("t", b"first"))]
        await broker.until(lambda: len(held.waiting) == 1)
        for i in range(5):
            tasks.append(asyncio.create_task(producer.publish("t", b"%d" % i)))
            await asyncio.sleep(0)
        held.answer()
        await broker.until(lambda: len(held.waiting) == 1)
        held.release()
        await asyncio.gather(*tasks)
        assert commands(broker, b"PUB", b"MPUB") == [b"PUB t", b"MPUB t"]


@in_loop
async def test_the_linger_ends_the_gathering() -> None:
    async with FakeNsqd() as broker, client(broker).producer(linger=0.01) as producer:
        held = Held(broker)
        tasks = [asyncio.create_task(producer.publish("t", b"first"))]
        await broker.until(lambda: len(held.waiting) == 1)
        tasks.append(asyncio.create_task(producer.publish("t", b"second")))
        await broker.until(lambda: len(held.waiting) == 2)  # with the first still unanswered
        held.release()
        await asyncio.gather(*tasks)


@in_loop
async def test_publish_many_keeps_order_over_batches() -> None:
    async with FakeNsqd() as broker, client(broker).producer(batch_messages=100) as producer:
        bodies = [b"%d" % i for i in range(1234)]
        assert await producer.publish_many("t", iter(bodies)) == 1234
        assert broker.topics["t"] == bodies
        assert len(commands(broker, b"MPUB")) == 13
        assert await producer.publish_many("t", []) == 0


@in_loop
async def test_batches_end_at_their_bytes() -> None:
    async with FakeNsqd() as broker, client(broker).producer(batch_bytes=1000) as producer:
        bodies = [bytes([i]) * 300 for i in range(1, 11)] + [b"x" * 5000]
        await producer.publish_many("t", bodies)
        assert broker.topics["t"] == bodies
        assert commands(broker, b"PUB", b"MPUB") == [b"MPUB t"] * 3 + [b"PUB t"] * 2


@in_loop
async def test_a_delay_is_a_command_of_its_own() -> None:
    async with FakeNsqd() as broker, client(broker).producer() as producer:
        await producer.publish("t", b"later", delay=1.5)
        assert commands(broker, b"DPUB") == [b"DPUB t 1500"]
        assert await producer.publish_many("t", numbers(50), delay=timedelta(seconds=2)) == 50
        assert commands(broker, b"DPUB")[1:] == [b"DPUB t 2000"] * 50


@in_loop
async def test_what_no_broker_takes_is_not_sent() -> None:
    async with (
        FakeNsqd() as broker,
        client(broker).producer(message_bytes_max=10, batch_messages=2) as producer,
    ):
        with pytest.raises(MessageInvalid, match="'bad topic' is not a name"):
            await producer.publish("bad topic", b"x")
        with pytest.raises(MessageInvalid, match="empty"):
            await producer.publish("t", b"")
        with pytest.raises(MessageInvalid, match="11 bytes, over the limit of 10"):
            await producer.publish("t", b"x" * 11)
        with pytest.raises(MessageInvalid, match="delay"):
            await producer.publish("t", b"x", delay=-1)
        with pytest.raises(MessageInvalid, match="bytes, not str"):
            await producer.publish("t", "text")  # type: ignore[arg-type]
        with pytest.raises(MessageInvalid, match="message 1 is empty"):
            await producer.publish_many("t", [b"x", b""])
        assert commands(broker, b"PUB", b"MPUB", b"DPUB") == []

        with pytest.raises(PublishError, match="those behind them were not sent") as caught:
            await producer.publish_many("t", [b"a", b"b", b"c", b"too large", b"x" * 11])
        assert (caught.value.kept, caught.value.not_kept, caught.value.unknown) == (4, 0, 0)
        assert not caught.value.retry
        assert isinstance(caught.value.__cause__, MessageInvalid)

        await producer.publish("t", bytearray(b"e"))
        await producer.publish("t", memoryview(b"f"))
        assert broker.topics["t"] == [b"a", b"b", b"c", b"too large", b"e", b"f"]


@in_loop
async def test_back_pressure_holds_publishers_back() -> None:
    async with (
        FakeNsqd() as broker,
        client(broker).producer(pending_bytes_max=1000, batch_bytes=200) as producer,
    ):
        held = Held(broker)
        tasks = [asyncio.create_task(producer.publish("t", bytes([i]) * 96)) for i in range(100)]
        await broker.until(lambda: len(held.waiting) >= 5)
        assert producer.statistics().pending_bytes == 1000
        assert producer.statistics().pending_messages == 10
        held.release()
        await asyncio.gather(*tasks)
        assert broker.topics["t"] == [bytes([i]) * 96 for i in range(100)]


@in_loop
async def test_who_stops_waiting_for_room_lets_the_next_one_in() -> None:
    async with FakeNsqd() as broker, client(broker).producer(pending_bytes_max=10) as producer:
        held = Held(broker)
        first = asyncio.create_task(producer.publish("t", b"0123456789"))
        await broker.until(lambda: len(held.waiting) == 1)
        impatient = [asyncio.create_task(producer.publish("t", b"never")) for _ in range(3)]
        patient = asyncio.create_task(producer.publish("t", b"patient"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        impatient[0].cancel()
        held.answer()
        impatient[1].cancel()
        impatient[2].cancel()
        await asyncio.gather(*impatient, return_exceptions=True)
        await first
        held.release()
        await patient
        assert broker.topics["t"] == [b"0123456789", b"patient"]


@in_loop
async def test_no_room_in_time() -> None:
    async with (
        FakeNsqd() as broker,
        client(broker).producer(pending_bytes_max=10, publish_timeout=0.05) as producer,
    ):
        Held(broker)
        first = asyncio.create_task(producer.publish("t", b"0123456789"))
        await asyncio.sleep(0)
        with pytest.raises(PublishTimeout, match="no room") as caught:
            await producer.publish("t", b"x")
        assert (caught.value.not_kept, caught.value.unknown) == (1, 0)
        with pytest.raises(PublishTimeout, match="may have been kept") as caught:
            await first
        assert (caught.value.not_kept, caught.value.unknown) == (0, 1)
        assert caught.value.retry


@in_loop
async def test_a_refusal_says_that_nothing_was_kept() -> None:
    async with FakeNsqd() as broker, client(broker).producer() as producer:
        refusals = iter([frame(1, b"E_MPUB_FAILED MPUB failed disk full")])
        broker.script = lambda _session, words, _body: (
            next(refusals, None) if words[0] == b"MPUB" else None
        )
        outcomes = await asyncio.gather(
            *(producer.publish("t", b"%d" % i) for i in range(3)), return_exceptions=True
        )
        for outcome in outcomes:
            assert isinstance(outcome, PublishRefused)
            assert outcome.code == "E_MPUB_FAILED"
            assert (outcome.kept, outcome.not_kept, outcome.unknown) == (0, 1, 0)
            assert outcome.retry
            assert "not kept" in str(outcome)
            assert "2 others" in str(outcome)
        assert len(set(map(id, outcomes))) == 3
        await producer.publish("t", b"again")
        assert broker.topics == {"t": [b"again"]}
        assert producer.statistics().failed == 3


@in_loop
async def test_publish_many_counts_what_became_of_each() -> None:
    async with FakeNsqd() as broker, client(broker).producer(batch_messages=10) as producer:
        answers = iter([None, frame(1, b"E_MPUB_FAILED no"), None])
        broker.script = lambda _session, words, _body: (
            next(answers, None) if words[0] == b"MPUB" else None
        )
        with pytest.raises(PublishError, match="of 30 messages 20 were kept") as caught:
            await producer.publish_many("t", [b"%d" % i for i in range(30)])
        assert (caught.value.kept, caught.value.not_kept, caught.value.unknown) == (20, 10, 0)
        assert isinstance(caught.value.__cause__, PublishRefused)


@in_loop
async def test_publish_many_takes_no_more_once_one_has_failed() -> None:
    async with (
        FakeNsqd() as broker,
        client(broker).producer(batch_messages=10, pending_bytes_max=200) as producer,
    ):
        broker.script = lambda _session, words, _body: (
            frame(1, b"E_MPUB_FAILED disk full") if words[0] == b"MPUB" else None
        )
        endless = (b"%d" % i for i in itertools.count())
        with pytest.raises(PublishError, match="those behind them were not sent") as caught:
            await producer.publish_many("t", endless)
        error = caught.value
        assert error.kept == error.unknown == 0
        # So many were taken: a program can go on from there.
        assert next(endless) == b"%d" % error.not_kept
        assert error.retry


@in_loop
async def test_unanswered_publishes_are_sent_again_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeNsqd() as broker, client(broker).producer(batch_messages=10) as producer:
        held = Held(broker)
        bodies = [b"%d" % i for i in range(55)]
        publishing = asyncio.create_task(producer.publish_many("t", bodies))
        await broker.until(lambda: len(held.waiting) == 6)
        held.answer()
        broker.script = lambda *_: None
        held.waiting[0][0].transport.close()
        assert await publishing == 55
        assert broker.topics["t"] == bodies
        assert producer.statistics().resent == 45
        assert producer.statistics().connects == 2
    assert "lost the connection" in caplog.text


@in_loop
async def test_on_lost_fail_says_what_is_known() -> None:
    async with (
        FakeNsqd() as broker,
        client(broker).producer(on_lost="fail", linger=0) as producer,
    ):
        held = Held(broker)
        publishing = asyncio.create_task(producer.publish("t", b"one"))
        await broker.until(lambda: len(held.waiting) == 1)
        broker.script = lambda *_: None
        held.waiting[0][0].drop()
        with pytest.raises(PublishLost, match="may have been kept") as caught:
            await publishing
        assert (caught.value.not_kept, caught.value.unknown) == (0, 1)
        # What was never on the wire is in no doubt: it waits for the next connection.
        await producer.publish("t", b"two")
        assert broker.topics["t"] == [b"two"]


@in_loop
async def test_failover_to_another_address() -> None:
    async with FakeNsqd() as first, FakeNsqd() as second:
        async with client(first, second).producer() as producer:
            await producer.publish("t", b"one")
            await first.stop()
            await producer.publish("t", b"two")
            address = producer.statistics().address
            assert address is not None
            assert address.port == second.port
        assert (first.topics["t"], second.topics["t"]) == ([b"one"], [b"two"])


@in_loop
async def test_the_broker_comes_back_at_the_same_address() -> None:
    async with FakeNsqd() as broker, client(broker).producer() as producer:
        await producer.publish("t", b"one")
        await broker.stop()
        publishing = asyncio.create_task(producer.publish("t", b"two"))
        await asyncio.sleep(0.05)
        async with FakeNsqd(broker.port) as again:
            await publishing
            assert again.topics["t"] == [b"two"]
            await producer.flush()


@in_loop
async def test_no_broker_at_the_start() -> None:
    async with FakeNsqd() as gone, FakeNsqd() as other:
        pass
    refused = "Connection refused; check"
    with pytest.raises(
        BrokerUnreachable, match=rf"{gone.address}: {refused}.*; .*{other.address}: {refused}"
    ):
        await client(gone, other).producer().start()


@in_loop
async def test_no_broker_for_too_long_tells_why() -> None:
    async with FakeNsqd() as broker, client(broker).producer(publish_timeout=0.2) as producer:
        await broker.stop()
        await turns_until(lambda: producer.statistics().address is None)
        with pytest.raises(PublishTimeout, match=rf"{broker.port}.* could be sent") as caught:
            await producer.publish("t", b"x")
        assert (caught.value.not_kept, caught.value.unknown) == (1, 0)


@in_loop
async def test_close_waits_for_answers() -> None:
    async with FakeNsqd() as broker:
        producer = client(broker).producer(linger=1.0)
        await producer.start()
        held = Held(broker)
        tasks = [asyncio.create_task(producer.publish("t", b"one"))]
        await broker.until(lambda: len(held.waiting) == 1)
        tasks.append(asyncio.create_task(producer.publish("t", b"two")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        await broker.until(lambda: len(held.waiting) == 2)  # without waiting for the linger
        assert not closing.done()
        held.release()
        await closing
        await asyncio.gather(*tasks)
        with pytest.raises(ClientClosed, match="closed"):
            await producer.publish("t", b"three")
        with pytest.raises(ClientClosed, match="make a new one"):
            await producer.start()
        await broker.until(lambda: not broker.sessions)


@in_loop
async def test_a_close_while_it_starts_leaves_no_connection() -> None:
    async with FakeNsqd() as broker:
        producer = client(broker).producer()
        broker.script = lambda *_: b""
        starting = asyncio.create_task(producer.start())
        await broker.until(lambda: bool(broker.commands))
        await producer.close()
        broker.sessions[0].send(frame(0, b"{}"))
        with pytest.raises(ClientClosed, match="make a new one"):
            await starting
        await broker.until(lambda: not broker.sessions)


@in_loop
@pytest.mark.parametrize("on_lost", ["resend", "fail"])
async def test_a_close_that_is_given_up_tells_everybody(on_lost: OnLost) -> None:
    async with FakeNsqd() as broker:
        producer = client(broker).producer(
            on_lost=on_lost, batches_in_flight=1, batch_messages=1, pending_bytes_max=20
        )
        await producer.start()
        held = Held(broker)
        sent, unsent, held_back = [
            asyncio.create_task(producer.publish("t", body))
            for body in (b"one", b"two, no room behind", b"three")
        ]
        await broker.until(lambda: len(held.waiting) == 1)
        closing = asyncio.create_task(producer.close())
        with pytest.raises(ClientClosed, match="was not sent"):
            await held_back
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(PublishLost, match="may have been kept") as lost:
            await sent
        assert (lost.value.not_kept, lost.value.unknown) == (0, 1)
        with pytest.raises(PublishError, match="it was not kept") as kept_back:
            await unsent
        assert (kept_back.value.not_kept, kept_back.value.unknown) == (1, 0)
        await broker.until(lambda: not broker.sessions)
        # Nothing goes on connecting in the background.
        assert asyncio.all_tasks() == {asyncio.current_task()}


@in_loop
async def test_many_who_wait_for_room_share_commands() -> None:
    async with (
        FakeNsqd() as broker,
        client(broker).producer(pending_bytes_max=10_000) as producer,
    ):
        await asyncio.gather(*(producer.publish("t", b"%99d" % i) for i in range(5000)))
        assert len(broker.topics["t"]) == 5000
        assert len(commands(broker, b"PUB", b"MPUB")) < 500


@in_loop
async def test_a_producer_that_was_not_started() -> None:
    producer = Client("127.0.0.1:1").producer()
    with pytest.raises(ClientClosed, match="not started"):
        await producer.publish("t", b"x")
    await producer.flush()
    await producer.close()


@in_loop
async def test_a_broker_that_speaks_out_of_turn(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeNsqd() as broker, client(broker).producer() as producer:
        caplog.set_level(logging.WARNING)
        broker.sessions[0].send(frame(1, b"E_INVALID what") + frame(0, b"OK"))
        await broker.until(lambda: not broker.sessions)
        await producer.publish("t", b"one")
        assert broker.topics["t"] == [b"one"]
        broker.sessions[0].send(struct.pack(">II", 30, 2) + bytes(26))
        await broker.until(lambda: not broker.sessions)
        await producer.publish("t", b"two")
    assert "answers nothing" in caplog.text
    assert "b'OK' out of turn" in caplog.text
    assert "sent a message to a producer" in caplog.text
