"""`penstock.testing`: when time was moved, all that was due has happened."""

import asyncio
import threading

import pytest

from penstock import Client
from penstock.testing import FakeClock, MemoryBroker

MINUTE = 60


def test_what_was_published_with_a_delay_is_ready_when_it_is_due() -> None:
    async def asked() -> None:
        async with MemoryBroker(FakeClock()) as broker:
            async with broker.client().producer() as producer:
                # more than one move takes
                await producer.publish_many("t", [bytes(100_000)] * 40, delay=MINUTE)
            broker.advance(MINUTE - 1)
            assert broker.depth("t") == 0
            broker.advance(1)
            assert broker.depth("t") == 40

    asyncio.run(asked())


def test_the_same_in_a_thread() -> None:
    with MemoryBroker(FakeClock()) as broker:
        with Client.sync(broker.address) as client, client.producer() as producer:
            producer.publish("t", b"x", delay=MINUTE)
        assert (broker.published("t"), broker.depth("t")) == ([b"x"], 0)
        broker.advance(MINUTE)
        assert (broker.published("t"), broker.depth("t")) == ([b"x"], 1)


def test_a_message_that_a_consumer_holds_too_long_is_ready_again() -> None:
    async def asked() -> None:
        async with MemoryBroker(FakeClock()) as broker:
            client = broker.client()
            async with client.producer() as producer:
                await producer.publish("t", b"x")
            async with client.consumer("t", "c", auto_finish=False) as consumer:
                [first] = await consumer.fetch(1, wait=10)
                assert broker.in_flight("t", "c") == 1
                broker.advance(MINUTE)
                [again] = await consumer.fetch(1, wait=10)
                assert (first.attempts, again.attempts) == (1, 2)
                again.finish()

    asyncio.run(asked())


def test_a_broker_in_real_time_is_not_moved() -> None:
    with MemoryBroker() as broker, pytest.raises(ValueError, match="FakeClock"):
        broker.advance(1)


def test_several_at_once_and_no_thread_stays_behind() -> None:
    before = threading.active_count()
    with MemoryBroker() as one, MemoryBroker() as two:
        for broker in (one, two):
            with Client.sync(broker.address) as client, client.producer() as producer:
                producer.publish("t", broker.address.encode())
        assert one.published("t") == [one.address.encode()]
        assert two.published("t") == [two.address.encode()]
    assert threading.active_count() == before


def test_names_that_nobody_used_have_no_messages() -> None:
    with MemoryBroker() as broker:
        assert broker.published("t") == []
        assert broker.depth("t") == broker.depth("t", "c") == 0
        assert broker.in_flight("t", "c") == broker.sleeping("t", "c") == 0


def test_outside_of_its_block_it_says_so() -> None:
    broker = MemoryBroker()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not running"):
            print(broker.address)
        with pytest.raises(RuntimeError, match="not running"):
            broker.published("t")
        with broker:
            assert broker.published("t") == []
