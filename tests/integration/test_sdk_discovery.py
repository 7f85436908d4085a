"""Consumers that find their brokers through name servers, as these learn and forget of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock import BrokerUnreachable, Client
from penstock.errors import ConfigError
from penstock.lookup.registry import Producer
from penstock.protocol.lookup import Node
from penstock.sdk.consumer import Consumer
from tests.integration.sdk_fake_nsqd import FakeNsqd, in_loop, turns_until
from tests.support.nameserver import Watched, start_http

QUICK = 0.02


class Names:
    """A name server's HTTP side, and what it is made to know."""

    def __init__(self) -> None:
        self.registry = Watched(lambda: None)

    async def start(self) -> None:
        self.door, port = await start_http(self.registry)
        self.address = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self.door.stop()

    def add(self, broker: FakeNsqd) -> Producer:
        node = Node("127.0.0.1", "host", broker.port, 1, "1.3.0")
        now_ns = self.door.clock.monotonic_ns()
        producer = Producer("127.0.0.1:1", node, now_ns)
        self.registry.add(producer)
        self.registry.register(producer, "t", "c")
        return producer


@asynccontextmanager
async def names() -> AsyncIterator[Names]:
    made = Names()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def consumer_of(*servers: Names) -> Consumer:
    client = Client(reconnect_delay=0.01, reconnect_delay_max=0.05, connect_timeout=1.0)
    addresses = [server.address for server in servers]
    return client.consumer("t", "c", lookup=addresses, lookup_interval=QUICK)


async def take(consumer: Consumer, count: int) -> set[bytes]:
    taken: set[bytes] = set()
    while len(taken) < count:
        for message in await consumer.fetch(count, wait=5):
            taken.add(message.body)
            message.finish()
    return taken


@in_loop
async def test_all_brokers_that_any_name_server_knows() -> None:
    async with (
        FakeNsqd() as one,
        FakeNsqd() as two,
        FakeNsqd() as later,
        names() as a,
        names() as b,
    ):
        a.add(one)
        b.add(one)
        b.add(two)
        async with consumer_of(a, b) as consumer:
            one.push(b"1")
            two.push(b"2")
            assert await take(consumer, 2) == {b"1", b"2"}
            assert len(one.sessions) == 1
            a.add(later)
            later.push(b"3")
            assert await take(consumer, 1) == {b"3"}


@in_loop
async def test_a_topic_may_be_nowhere_yet() -> None:
    async with FakeNsqd() as broker, names() as server, consumer_of(server) as consumer:
        assert consumer.statistics().connected == ()
        server.add(broker)
        broker.push(b"1")
        assert await take(consumer, 1) == {b"1"}


@in_loop
async def test_a_name_server_that_forgets_ends_no_connection() -> None:
    async with FakeNsqd() as broker, names() as server, names() as other:
        producer = server.add(broker)
        async with consumer_of(server, other) as consumer:
            await broker.until(lambda: len(broker.sessions) == 1)
            session = broker.sessions[0]
            server.registry.remove(producer)
            later = FakeNsqd()
            async with later:
                other.add(later)
                await later.until(lambda: len(later.sessions) == 1)  # so it has asked again
                await server.stop()
                broker.push(b"1")
                assert await take(consumer, 1) == {b"1"}
                assert broker.sessions == [session]


@in_loop
async def test_a_broker_that_is_gone_and_forgotten_is_not_tried_any_more() -> None:
    async with FakeNsqd() as gone, FakeNsqd() as other, names() as server:
        producer = server.add(gone)
        async with consumer_of(server) as consumer:
            await gone.until(lambda: len(gone.sessions) == 1)
            server.registry.remove(producer)
            await gone.stop()
            await turns_until(lambda: not consumer.statistics().connected)
            server.add(other)  # the round that finds it lets the first one go
            await other.until(lambda: len(other.sessions) == 1)
            async with FakeNsqd(gone.port) as again:
                other.push(b"1")
                assert await take(consumer, 1) == {b"1"}
                assert not again.sessions


@in_loop
async def test_a_broker_that_is_named_and_not_there_is_tried_while_others_serve() -> None:
    async with FakeNsqd() as down, FakeNsqd() as up, names() as server:
        await down.stop()
        server.add(down)
        server.add(up)
        async with consumer_of(server) as consumer:
            up.push(b"1")
            assert await take(consumer, 1) == {b"1"}
            back = FakeNsqd(down.port)
            async with back:
                back.push(b"2")
                assert await take(consumer, 1) == {b"2"}


@in_loop
async def test_no_name_server_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "penstock.sdk")
    async with FakeNsqd() as no_http:
        await no_http.stop()
        consumer = Client().consumer("t", "c", lookup=no_http.address)
        with pytest.raises(BrokerUnreachable, match=r"no name server answered at 127\.0\.0\.1:"):
            await consumer.start()
    assert any("it is asked again later" in record.getMessage() for record in caplog.records)


@in_loop
async def test_stopping_ends_the_asking() -> None:
    async with names() as server:
        consumer = consumer_of(server)
        await consumer.start()
        await consumer.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await turns_until(lambda: all(task.done() for task in others))


def test_scripts_find_brokers_too() -> None:
    async def serve() -> None:
        async with FakeNsqd() as broker, names() as server:
            server.add(broker)
            broker.push(b"1")
            assert await asyncio.to_thread(script, server.address) == [b"1"]

    def script(lookup: str) -> list[bytes]:
        with Client.sync() as client, client.consumer("t", "c", lookup=lookup) as consumer:
            messages = consumer.fetch(1, wait=20)
            for message in messages:
                message.finish()
            return [message.body for message in messages]

    asyncio.run(serve())


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="not an address"):
        Client().consumer("t", "c", lookup="here:there")
    with pytest.raises(ConfigError, match="is a path"):
        Client().consumer("t", "c", lookup=["/run/lookup"])
    with pytest.raises(ConfigError, match="lookup_interval"):
        Client().consumer("t", "c", lookup="here", lookup_interval=0)
