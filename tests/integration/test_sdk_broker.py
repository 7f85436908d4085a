"""The SDK against real brokers: every dress of the connection, kill -9, credit, draining."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

import pytest
import uvloop

from penstock import Client, Message, PublishRefused, Refused
from penstock.sdk.options import ClientKeywords
from tests.integration.sdk_fake_nsqd import in_loop, turns_until
from tests.support.broker import Broker
from tests.support.fixtures import StartBroker

if TYPE_CHECKING:
    from tests.support.certificates import Certificates

Run = Callable[[Coroutine[object, object, None]], None]


def at(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def client(*brokers: Broker) -> Client:
    return Client([at(broker) for broker in brokers], reconnect_delay=0.02, reconnect_delay_max=0.2)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


async def round_trip(subject: Client, topic: str) -> None:
    """A few thousand messages there and back, then a subscription that finds nothing left."""
    bodies = [b"%d " % i + b"x" * (i % 300) for i in range(3000)]
    async with subject.producer() as producer:
        await asyncio.gather(*(producer.publish(topic, body) for body in bodies[:500]))
        await producer.publish_many(topic, bodies[500:])
    async with subject.consumer(topic, "c", max_in_flight=500) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == len(bodies):
                message.finish()
                break
    assert sorted(seen) == sorted(bodies)
    async with subject.consumer(topic, "c") as consumer:
        assert await consumer.fetch(1, wait=0.05) == []


# --- the dresses of a connection -----------------------------------------------------------------


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_round_trips(
    start_broker: StartBroker,
    certificates: Certificates,
    topic: str,
    run: Run,
    compression: str | None,
    tls: bool,
) -> None:
    broker = start_broker(*certificates.broker_flags, verify=False)
    settings: ClientKeywords = {"compression": compression}  # type: ignore[typeddict-item]
    if tls:
        settings["tls"] = certificates.context()
    run(round_trip(Client(at(broker), **settings), topic))


@in_loop
async def test_a_broker_that_requires_a_certificate(
    start_broker: StartBroker, certificates: Certificates, topic: str
) -> None:
    broker = start_broker(
        *certificates.broker_flags,
        "--tls-required",
        "--tls-client-auth-policy=require-verify",
        f"--tls-root-ca-file={certificates.authority}",
    )
    await round_trip(Client(at(broker), tls=certificates.client_context), topic)
    with pytest.raises(Refused, match="E_INVALID"):
        await Client(at(broker)).consumer(topic, "c").start()


# --- publishing ----------------------------------------------------------------------------------


@in_loop
async def test_the_brokers_refusal_reaches_the_program(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker("--max-msg-size", "100")
    async with client(broker).producer() as producer:
        with pytest.raises(PublishRefused, match="not kept") as caught:
            await producer.publish(topic, b"x" * 101)
        assert caught.value.code == "E_BAD_MESSAGE"
        assert not caught.value.retry
        # The broker closed the connection, as nsqd does; the next message finds another.
        await producer.publish(topic, b"x" * 100)
        assert producer.statistics().connects == 2


@in_loop
async def test_kill_9_while_publishing_loses_nothing_that_was_acknowledged(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker()
    broker.args += ["--tcp-address", at(broker)]
    async with client(broker).producer(batch_messages=50, batch_bytes=10_000) as producer:
        acknowledged: list[bytes] = []

        async def publish(first: int) -> None:
            for i in range(first, first + 400):
                await producer.publish(topic, b"%d" % i)
                acknowledged.append(b"%d" % i)

        publishers = [asyncio.create_task(publish(worker * 1000)) for worker in range(20)]
        for kill in range(3):
            goal = 1000 + 1500 * kill
            await turns_until(lambda goal=goal: len(acknowledged) >= goal)  # type: ignore[misc]
            await asyncio.to_thread(broker.restart, kill=True)
        await asyncio.gather(*publishers)
        assert len(acknowledged) == 8000
        assert producer.statistics().connects >= 4
        assert producer.statistics().failed == 0

    seen: Counter[bytes] = Counter()
    async with client(broker).consumer(topic, "c", max_in_flight=2000) as consumer:
        async for message in consumer:
            seen[message.body] += 1
            if len(seen) == 8000:
                message.finish()
                break
    assert set(seen) == set(acknowledged)


@in_loop
async def test_a_delay_is_kept(broker: Broker, topic: str) -> None:
    async with client(broker).producer() as producer, client(broker).consumer(topic, "c") as own:
        began = time.monotonic()
        await producer.publish(topic, b"later", delay=0.3)
        await producer.publish(topic, b"now")
        bodies = []
        async for message in own:
            bodies.append(message.body)
            if message.body == b"later":
                message.finish()
                break
        assert bodies == [b"now", b"later"]
        assert time.monotonic() - began >= 0.3


# --- consuming -----------------------------------------------------------------------------------


@in_loop
async def test_handlers_fail_and_messages_come_again(broker: Broker, topic: str) -> None:
    async with client(broker).producer() as producer:
        await producer.publish_many(topic, numbers(500))
    attempts: Counter[bytes] = Counter()
    done: Counter[bytes] = Counter()
    async with client(broker).consumer(topic, "c", retry_delay=0.01) as consumer:

        async def handle(message: Message) -> None:
            attempts[message.body] += 1
            assert message.attempts == attempts[message.body]
            if int(message.body) % 5 == 0 and message.attempts < 3:
                raise ValueError("not yet")
            done[message.body] += 1
            if len(done) == 500:
                consumer.request_stop()

        await consumer.run(handle, concurrency=50)
        assert consumer.statistics().requeued == 200
    assert done == Counter(numbers(500))
    async with client(broker).consumer(topic, "c") as consumer:
        assert await consumer.fetch(1, wait=0.05) == []


@in_loop
async def test_what_times_out_comes_again_and_touch_prevents_it(
    start_broker: StartBroker, topic: str
) -> None:
    broker = start_broker("--msg-timeout", "1s")
    async with client(broker).producer() as producer:
        await producer.publish_many(topic, [b"forgotten", b"touched"])
    async with client(broker).consumer(topic, "c", auto_finish=False) as consumer:
        (first, second) = [await anext(aiter(consumer)) for _ in range(2)]
        touched = second if second.body == b"touched" else first
        again: list[Message] = []
        while not again:
            touched.touch()
            again = await consumer.fetch(5, wait=0.3)
        assert [(message.body, message.attempts) for message in again] == [(b"forgotten", 2)]
        assert touched.finish()
        forgotten = first if touched is second else second
        assert forgotten.finish() is False
        assert again[0].finish()
        assert consumer.statistics().refused == 0


@in_loop
async def test_two_brokers_share_the_credit_and_one_dies(
    start_broker: StartBroker, topic: str
) -> None:
    brokers = [start_broker(), start_broker()]
    for number, each in enumerate(brokers):
        async with client(each).producer() as producer:
            await producer.publish_many(topic, numbers(300, start=number * 1000))
    seen: set[bytes] = set()
    async with client(*brokers).consumer(topic, "c", max_in_flight=10) as consumer:
        async for message in consumer:
            seen.add(message.body)
            assert consumer.statistics().in_flight <= 10
            if len(seen) == 100:
                brokers[1].args += ["--tcp-address", at(brokers[1])]
                await asyncio.to_thread(brokers[1].restart, kill=True)
            if len(seen) == 600:
                message.finish()
                break
        assert consumer.statistics().connects >= 3
    assert seen == set(numbers(300) + numbers(300, start=1000))


@in_loop
async def test_stopping_loses_nothing_and_finishes_what_was_done(
    broker: Broker, topic: str
) -> None:
    async with client(broker).producer() as producer:
        await producer.publish_many(topic, numbers(2000))
    done: Counter[bytes] = Counter()
    while len(done) < 2000:
        async with client(broker).consumer(topic, "c", max_in_flight=500) as consumer:
            here = 0

            async def handle(message: Message) -> None:
                nonlocal here
                await asyncio.sleep(0)
                done[message.body] += 1
                here += 1
                if here == 150 or len(done) == 2000:
                    consumer.request_stop()

            await consumer.run(handle, concurrency=7)
    # No message was in two consumers' hands: each one that was handled was finished.
    assert done == Counter(numbers(2000))


@in_loop
async def test_moving_to_another_broker(start_broker: StartBroker, topic: str) -> None:
    one, two = start_broker(), start_broker()
    for number, each in enumerate((one, two)):
        async with client(each).producer() as producer:
            await producer.publish_many(topic, numbers(10, start=number * 100))
    async with client(one).consumer(topic, "c", max_in_flight=4) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 5:
                consumer.set_addresses([at(two)])
            if sum(body in numbers(10, start=100) for body in seen) == 10:
                message.finish()
                break
    async with client(one).consumer(topic, "c") as consumer:
        left: list[Message] = []
        while len(left) < 5:
            left += await consumer.fetch(10)
        assert {message.body for message in left} == set(numbers(10)) - set(seen)
        for message in left:
            message.finish()


def test_a_script(broker: Broker, topic: str) -> None:
    with Client.sync(at(broker)) as subject:
        with subject.producer() as producer:
            assert producer.publish_many(topic, numbers(5000)) == 5000
        with subject.consumer(topic, "c", max_in_flight=500) as consumer:
            seen = []
            for message in consumer:
                seen.append(message.body)
                if len(seen) == 5000:
                    message.finish()
                    break
        assert sorted(seen) == sorted(numbers(5000))
        with subject.consumer(topic, "c") as consumer:
            assert consumer.fetch(1, wait=0.05) == []
