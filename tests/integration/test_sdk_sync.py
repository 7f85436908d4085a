"""The sync face against a scripted broker that lives on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock import (
    AlreadySettled,
    BrokerUnreachable,
    Client,
    ClientClosed,
    ConfigError,
    MessageInvalid,
    PublishError,
    PublishRefused,
)
from penstock.sdk.sync import SyncClient, SyncMessage
from tests.integration.sdk_fake_nsqd import FakeNsqd, frame


class ThreadedNsqd:
    """A ``FakeNsqd`` in a thread; ``do`` runs something there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.fake = asyncio.run_coroutine_threadsafe(FakeNsqd().__aenter__(), self.loop).result(5)

    def push(self, *bodies: bytes) -> None:
        self.loop.call_soon_threadsafe(self.fake.push, *bodies)

    def until(self, condition: Callable[[], bool]) -> None:
        asyncio.run_coroutine_threadsafe(self.fake.until(condition), self.loop).result(5)

    def until_finished(self, *bodies: bytes) -> None:
        self.until(lambda: sorted(self.fake.finished) == sorted(bodies))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fake.stop(), self.loop).result(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def broker() -> Iterator[ThreadedNsqd]:
    threaded = ThreadedNsqd()
    yield threaded
    threaded.close()


@pytest.fixture
def client(broker: ThreadedNsqd) -> Iterator[SyncClient]:
    with Client.sync(broker.fake.address, reconnect_delay=0.01) as client:
        yield client


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def test_publishing(broker: ThreadedNsqd, client: SyncClient) -> None:
    with client.producer() as producer:
        producer.publish("t", b"one")
        producer.publish("t", b"later", delay=0.5)
        assert producer.publish_many("many", iter(numbers(25_000))) == 25_000
        assert producer.publish_many("many", []) == 0
        producer.flush()
        assert producer.statistics().published == 25_002
    assert broker.fake.topics["t"] == [b"one", b"later"]
    assert broker.fake.topics["many"] == numbers(25_000)
    with pytest.raises(ClientClosed):
        producer.publish("t", b"x")


def test_threads_share_a_producer(broker: ThreadedNsqd, client: SyncClient) -> None:
    with client.producer() as producer:

        def publish(number: int) -> None:
            for i in range(20):
                producer.publish("t", b"%d.%d" % (number, i))

        threads = [threading.Thread(target=publish, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(broker.fake.topics["t"]) == 80


def test_what_failed_is_counted(broker: ThreadedNsqd, client: SyncClient) -> None:
    answers = iter([None, frame(1, b"E_MPUB_FAILED no")])
    broker.fake.script = lambda _session, words, _body: (
        next(answers, None) if words[0] == b"MPUB" else None
    )
    with client.producer() as producer:
        with pytest.raises(PublishError, match="were kept") as caught:
            producer.publish_many("t", numbers(3000))
        assert (caught.value.kept, caught.value.not_kept) == (2000, 1000)
        assert isinstance(caught.value.__cause__, PublishRefused)
        assert str(caught.value).count("were kept") == 1
        with pytest.raises(MessageInvalid, match="message 1 is empty"):
            producer.publish_many("t", [b"x", b""])
        with pytest.raises(PublishError, match="those behind them were not sent") as caught:
            producer.publish_many("t", [*numbers(1000), b""])
        assert caught.value.kept == 1000


def test_iterating(broker: ThreadedNsqd, client: SyncClient) -> None:
    broker.push(*numbers(1000))
    with client.consumer("t", "c") as consumer:
        seen = []
        for message in consumer:
            seen.append(message.body)
            if len(seen) == 1000:
                message.finish()
                break
        assert seen == numbers(1000)
    broker.until_finished(*numbers(1000))


def test_a_loop_that_is_left_gives_back(broker: ThreadedNsqd, client: SyncClient) -> None:
    broker.push(*numbers(5))
    with client.consumer("t", "c") as consumer:
        for message in consumer:
            if message.body == b"2":
                break
    assert broker.fake.finished == numbers(2)
    assert {body for body, _ in broker.fake.requeued} == set(numbers(5)[2:])


def test_settling_from_a_script(broker: ThreadedNsqd, client: SyncClient) -> None:
    broker.push(*numbers(3))
    with client.consumer("t", "c", auto_finish=False) as consumer:
        messages: list[SyncMessage] = []
        while len(messages) < 3:
            messages += consumer.fetch(2)
        assert consumer.fetch(2, wait=0.01) == []
        first, second, third = messages
        assert (first.id, first.attempts, first.settled) == ("0000000000000001", 1, False)
        assert first.timestamp_ns == 1001
        first.touch()
        first.finish()
        second.finish()
        assert first.settled
        for again in (first.finish, first.requeue, first.touch):
            with pytest.raises(AlreadySettled):
                again()
        assert repr(third).startswith("<SyncMessage")
        # Without another call of ours the broker hears of it all the same.
        broker.until_finished(b"0", b"1")
        third.requeue(1.5)
    assert broker.fake.touched == [b"0"]
    assert broker.fake.requeued == [(b"2", 1500)]
    assert consumer.statistics().finished == 2


def test_handlers_on_threads(broker: ThreadedNsqd, client: SyncClient) -> None:
    broker.push(*numbers(20))
    gate = threading.Barrier(3, timeout=5)  # passes only if three handlers are at work at once
    failed = threading.Event()
    with client.consumer("t", "c", retry_delay=0) as consumer:
        done: list[bytes] = []

        def handle(message: SyncMessage) -> None:
            if int(message.body) < 3:
                gate.wait()
            if message.body == b"7" and not failed.is_set():
                failed.set()
                raise ValueError("once")
            done.append(message.body)
            if len(done) == 20:
                threading.Thread(target=consumer.stop).start()

        consumer.run(handle, concurrency=3)
    assert sorted(done) == sorted(numbers(20))
    assert sorted(broker.fake.finished) == sorted(numbers(20))
    assert [body for body, _ in broker.fake.requeued] == [b"7"]


@pytest.mark.parametrize("how", ["stop", "request_stop"])
def test_a_handler_can_end_the_run(broker: ThreadedNsqd, client: SyncClient, how: str) -> None:
    broker.push(*numbers(5))
    with client.consumer("t", "c", max_in_flight=3) as consumer:

        def handle(message: SyncMessage) -> None:
            if message.body == b"1":
                getattr(consumer, how)()

        consumer.run(handle)
    assert broker.fake.finished == numbers(2)


def test_a_loop_can_end_itself(broker: ThreadedNsqd, client: SyncClient) -> None:
    broker.push(*numbers(5))
    with client.consumer("t", "c") as consumer:
        for message in consumer:
            if message.body == b"1":
                consumer.stop()
    assert broker.fake.finished == numbers(2)
    assert sorted(body for body, _ in broker.fake.requeued) == numbers(5)[2:]


def test_threads_share_a_consumer(broker: ThreadedNsqd, client: SyncClient) -> None:
    slow_begins, fast_is_done = threading.Event(), threading.Event()
    seen: list[bytes] = []
    with client.consumer("t", "c") as consumer:

        def iterate() -> None:
            for message in consumer:
                seen.append(message.body)
                if message.body == b"slow":
                    slow_begins.set()
                    assert fast_is_done.wait(5)
                    assert not message.settled
                    message.finish()

        threads = [threading.Thread(target=iterate) for _ in range(3)]
        for thread in threads:
            thread.start()
        broker.push(b"slow")
        assert slow_begins.wait(5)
        broker.push(*numbers(10))
        # The others go on, and the slow one's message stays its own.
        broker.until_finished(*numbers(10))
        fast_is_done.set()
        broker.until_finished(b"slow", *numbers(10))
        consumer.stop()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
    assert sorted(seen) == sorted([b"slow", *numbers(10)])


def test_leaving_waits_for_the_messages_of_other_threads(
    broker: ThreadedNsqd, client: SyncClient
) -> None:
    broker.push(b"x")
    begun = threading.Event()
    with client.consumer("t", "c") as consumer:

        def iterate() -> None:
            for message in consumer:
                begun.set()
                broker.until(lambda: b"CLS" in broker.fake.commands)
                message.finish()

        thread = threading.Thread(target=iterate)
        thread.start()
        assert begun.wait(5)
    thread.join(5)
    assert broker.fake.finished == [b"x"]
    assert broker.fake.requeued == []


def test_a_loop_that_failed_gives_its_message_back(
    broker: ThreadedNsqd, client: SyncClient
) -> None:
    broker.push(*numbers(2))
    with client.consumer("t", "c") as consumer:
        with contextlib.suppress(RuntimeError):
            for _ in consumer:
                raise RuntimeError("the program failed")
        for message in consumer:
            if message.attempts == 2:
                message.finish()
                break
    assert broker.fake.finished == [b"1", b"0"]
    assert broker.fake.requeued == [(b"0", 0)]


def test_what_timed_out_before_it_was_asked_for_is_passed_over(
    broker: ThreadedNsqd, client: SyncClient
) -> None:
    broker.push(*numbers(3))
    with client.consumer("t", "c") as consumer:
        seen = []
        for message in consumer:
            seen.append((message.body, message.attempts))
            if len(seen) == 1:
                broker.loop.call_soon_threadsafe(broker.fake.sessions[0].drop)
                broker.until(lambda: any(s.in_flight for s in broker.fake.sessions))
            if message.body == b"2":
                break
    assert seen == [(b"0", 1), (b"0", 2), (b"1", 2), (b"2", 2)]


def test_a_delay_that_is_none_is_refused_where_it_was_given(
    broker: ThreadedNsqd, client: SyncClient
) -> None:
    broker.push(b"x")
    with client.consumer("t", "c") as consumer:
        (message,) = consumer.fetch(1)
        with pytest.raises(MessageInvalid, match="delay"):
            message.requeue(-1)
        message.finish()
    broker.until_finished(b"x")


def test_settling_after_the_end_is_too_late_and_no_error(
    broker: ThreadedNsqd, client: SyncClient
) -> None:
    broker.push(b"x")
    consumer = client.consumer("t", "c")
    (message,) = consumer.fetch(1)
    consumer.stop(0)
    client.close()
    message.finish()
    assert broker.fake.finished == []


def test_stop_ends_an_iteration_of_another_thread(broker: ThreadedNsqd, client: SyncClient) -> None:
    broker.push(b"x")
    seen: list[bytes] = []
    begun = threading.Event()
    with client.consumer("t", "c") as consumer:

        def iterate() -> None:
            for message in consumer:
                seen.append(message.body)
                begun.set()

        thread = threading.Thread(target=iterate)
        thread.start()
        assert begun.wait(5)
        broker.until_finished(b"x")
        consumer.stop()
        thread.join(5)
        assert not thread.is_alive()
    assert seen == [b"x"]


def test_so_many_threads_cannot_be(broker: ThreadedNsqd, client: SyncClient) -> None:
    consumer = client.consumer("t", "c")
    with consumer, pytest.raises(ConfigError, match="concurrency is at least 1"):
        consumer.run(print, concurrency=0)


def test_a_closed_client_says_so(broker: ThreadedNsqd) -> None:
    client = Client.sync(broker.fake.address)
    producer = client.producer()
    client.close()
    client.close()
    with pytest.raises(ClientClosed, match="make a new one"):
        producer.publish("t", b"x")


def test_closing_ends_what_other_threads_wait_for(broker: ThreadedNsqd) -> None:
    broker.fake.script = lambda *_: b""
    client = Client.sync(broker.fake.address)
    outcome: list[BaseException] = []

    def start() -> None:
        try:
            client.producer()
        except ClientClosed as error:
            outcome.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    broker.until(lambda: bool(broker.fake.commands))
    client.close()
    thread.join(4)  # the connect_timeout is 5
    assert not thread.is_alive()
    assert "make a new one" in str(outcome[0])


def test_no_broker(broker: ThreadedNsqd) -> None:
    with Client.sync("127.0.0.1:1") as client:
        with pytest.raises(BrokerUnreachable, match="cannot connect to 127"):
            client.producer()
        with pytest.raises(BrokerUnreachable):
            client.consumer("t", "c")
