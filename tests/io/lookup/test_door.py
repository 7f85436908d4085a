"""The name server's TCP door and brokers that are none: silent, wrong, or a flood."""

from __future__ import annotations

import asyncio

from penstock.clock import SystemClock
from penstock.config import Address
from penstock.lookup.door import LookupDoor
from penstock.protocol.lookup import (
    MAGIC,
    PING,
    Node,
    decode_node,
    encode_answer,
    encode_identify,
    encode_register,
)
from tests.integration.sdk_fake_nsqd import in_loop
from tests.support.nameserver import NODE, Watched, lookupd

US = Node("broker.example", "host", 4150, 4151, "1.3.0")
OK = encode_answer(b"OK")


@in_loop
async def test_a_broker_that_says_nothing_is_let_go() -> None:
    registry = Watched(lambda: None)
    door = LookupDoor(registry, NODE, SystemClock(), identify_timeout_s=0.05)
    await door.start(Address("127.0.0.1", 0), "tcp_address")
    reader, writer = await asyncio.open_connection(*door.addresses[0])
    writer.write(MAGIC + PING)
    try:
        assert await reader.readexactly(6) == OK
        await reader.read()
    except ConnectionResetError:
        pass  # it was let go without ceremony
    writer.close()
    door.stop()


@in_loop
async def test_an_error_ends_a_connection_and_its_registrations() -> None:
    async with lookupd() as one:
        reader, writer = await asyncio.open_connection(*one.address)
        writer.write(
            MAGIC + encode_identify(US) + encode_register("t", "c") + b"REGISTER ?\n" + PING
        )
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert decode_node(await reader.readexactly(size)) == one.door.node
        error = encode_answer(b"E_BAD_TOPIC REGISTER topic name '?' is not valid")
        assert await reader.read() == OK + error
        assert not one.registry.producers
        assert one.registry.topics() == ["t"]
        writer.close()


@in_loop
async def test_a_flood_whose_answers_nobody_takes_is_not_read_any_further() -> None:
    async with lookupd() as one:
        _, writer = await asyncio.open_connection(*one.address, limit=1024)
        writer.write(MAGIC + encode_identify(US))
        await one.until(lambda: len(one.registry.producers) == 1)
        (connection,) = one.door.connections
        assert connection.transport is not None
        while connection.transport.is_reading():
            writer.write(PING * 1_000)
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() < 4_000_000
        writer.transport.abort()
        await one.until(lambda: not one.registry.producers)
