"""A broker's registration with name servers: healthy ones, ones that die and come back, and ones
that are none. The broker is the bare core here, its clock is that of the loop with short times."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from struct import pack

import pytest

from penstock.broker.broker import Broker, BrokerOptions
from penstock.cluster.lookups import Lookups, LookupTimes
from penstock.config import Address
from penstock.protocol.lookup import (
    MAGIC,
    PING,
    Node,
    encode_answer,
    encode_identify,
    encode_node,
    encode_register,
)
from tests.integration.sdk_fake_nsqd import in_loop
from tests.support.nameserver import NODE, Lookupd, lookupd

US = Node("broker.example", "host", 4150, 4151, "1.3.0")
OK = encode_answer(b"OK")
HELLO = encode_answer(encode_node(NODE))

QUICK = LookupTimes(retry_first_s=0.01, retry_longest_s=0.05)
IMPATIENT = LookupTimes(answer_s=0.05, retry_first_s=0.01, retry_longest_s=0.05)
PINGING = LookupTimes(ping_s=0.02)


class Scripted:
    """A peer that answers each connection's bytes in its own way; ``heard`` is all it was sent."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers  # one for each time that something arrives
        self.heard: list[bytes] = []
        self.sessions = 0
        self.changed = asyncio.Event()

    async def __aenter__(self) -> Address:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Address(*self.server.sockets[0].getsockname())

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sessions += 1
        answers = [*self.answers]
        try:
            while data := await reader.read(65_536):
                self.heard.append(data)
                self.changed.set()
                writer.write(answers.pop(0) if answers else b"")
        except ConnectionError:
            pass  # the broker gave up on it
        writer.close()
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


@asynccontextmanager
async def registering(
    broker: Broker, *addresses: Address, times: LookupTimes = QUICK
) -> AsyncIterator[Lookups]:
    lookups = Lookups(broker, US, times)
    lookups.register_with(addresses)
    try:
        yield lookups
    finally:
        await lookups.stop()


def core() -> Broker:
    return Broker(BrokerOptions())


@in_loop
async def test_all_there_is_and_what_comes_and_goes() -> None:
    broker = core()
    topic = broker.make_topic("t", 1)
    topic.channel("c", 1)
    broker.make_topic("bare", 1)
    async with lookupd() as one, registering(broker, one.address):
        await one.until_names(("t", ""), ("t", "c"), ("bare", ""))
        (producer,) = one.registry.producers
        assert producer.node == US
        topic.channel("d", 1)
        broker.make_topic("later", 1)
        await one.until_names(("t", ""), ("t", "c"), ("t", "d"), ("bare", ""), ("later", ""))
        topic.delete_channel("c", 1)
        broker.delete_topic("later", 1)
        await one.until_names(("t", ""), ("t", "d"), ("bare", ""))
        assert one.registry.channels("t") == ["c", "d"], "known, as in nsqlookupd"
        broker.delete_topic("t", 1)
        await one.until_names(("bare", ""))


@in_loop
async def test_topics_that_are_not_open_are_there_too() -> None:
    earlier = core()
    earlier.make_topic("t", 1).channel("c", 1)
    broker = core()
    broker.restore({"topic/t": earlier.known["t"]})
    async with lookupd() as one, registering(broker, one.address):
        await one.until_names(("t", ""), ("t", "c"))


@in_loop
async def test_many_topics_go_in_portions() -> None:
    broker = core()
    for number in range(1_000):
        broker.make_topic(f"t{number}", 1).channel("c", 1)
    async with lookupd() as one, registering(broker, one.address):
        await one.until(lambda: len(one.registry.names()) == 2_000)
        for number in range(1_000):
            broker.delete_topic(f"t{number}", 1)
        await one.until_names()


@in_loop
async def test_a_name_that_comes_and_goes_ends_as_it_is() -> None:
    broker = core()
    topic = broker.make_topic("t", 1)
    async with lookupd() as one, registering(broker, one.address):
        await one.until_names(("t", ""))
        for _ in range(100):
            topic.channel("flickers", 1)
            topic.delete_channel("flickers", 1)
        topic.channel("stays", 1)
        await one.until_names(("t", ""), ("t", "stays"))


@in_loop
async def test_several_name_servers_one_of_them_down_and_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "penstock.lookups")
    broker = core()
    broker.make_topic("t", 1).channel("c", 1)
    async with lookupd() as one, lookupd() as other:
        await other.stop()
        async with registering(broker, one.address, other.address, one.address):
            await one.until_names(("t", ""), ("t", "c"))
            assert len(one.registry.producers) == 1, "given twice, told once"
            again = Lookupd(other.address)
            await again.start()
            await again.until_names(("t", ""), ("t", "c"))
            await again.stop()
            broker.make_topic("u", 1)
            await one.until_names(("t", ""), ("t", "c"), ("u", ""))
            await again.start()
            await again.until_names(("t", ""), ("t", "c"), ("u", ""))
        await one.until_names()
        await again.until_names()
        await again.stop()
    failures = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(failures) >= 2, "told once each time it fails"
    assert all(f"LOOKUPD({other.address})" in line for line in failures)
    assert all("the broker goes on without it and keeps trying" in line for line in failures)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "no answer of a name server"),
        ([encode_answer(b"E_INVALID not you")], "IDENTIFY was answered with 'E_INVALID not you'"),
        ([encode_answer(b"OK")], "IDENTIFY was answered with 'OK'"),
        ([encode_answer(b"[1]")], r"IDENTIFY was answered with '\[1\]'"),
        ([HELLO + OK], "answered what nobody asked: 'OK'"),
        ([HELLO, encode_answer(b"E_BAD_TOPIC bad")], "'REGISTER t c.n' was answered with 'E_BAD"),
        ([HELLO, encode_answer(b"what?")], "was answered with 'what.'"),
        ([HELLO, OK + OK], "answered what nobody asked: 'OK'"),
        ([pack(">I", 100) + b"too few"], "no answer in time"),
        ([], "no answer in time"),
        ([HELLO], "no answer in time"),
    ],
)
def test_what_is_no_name_server_is_told_and_harms_nothing(
    answers: list[bytes], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def test() -> None:
        broker = core()
        broker.make_topic("t", 1).channel("c", 1)
        scripted = Scripted(*answers)
        async with (
            lookupd() as good,
            scripted as bad,
            registering(broker, bad, good.address, times=IMPATIENT),
        ):
            await good.until_names(("t", ""), ("t", "c"))
            await scripted.until(lambda: scripted.sessions >= 3)
            broker.make_topic("u", 1)
            await good.until_names(("t", ""), ("t", "c"), ("u", ""))
        assert scripted.heard[0] == MAGIC + encode_identify(US)

    caplog.set_level(logging.WARNING, "penstock.lookups")
    test()
    told = [record.getMessage() for record in caplog.records if record.name == "penstock.lookups"]
    assert len(told) == 1, "once, however often it is tried"
    assert re.search(words, told[0]), told


@in_loop
async def test_a_name_server_is_pinged_and_left_when_it_ends() -> None:
    scripted = Scripted(HELLO, OK, OK, OK)
    broker = core()
    broker.make_topic("t", 1)
    async with scripted as address, registering(broker, address, times=PINGING):
        await scripted.until(lambda: len(scripted.heard) >= 4)
        assert scripted.heard[1:4] == [encode_register("t", ""), PING, PING]


@in_loop
async def test_a_name_that_nobody_knows_is_asked_for_in_the_background() -> None:
    broker = core()
    broker.make_topic("t", 1)
    async with lookupd() as one:
        nowhere = Address("nowhere.invalid", 4160)
        async with registering(broker, nowhere, one.address):
            await one.until_names(("t", ""))


def found_by(lookups: Lookups, topic: str) -> asyncio.Future[list[str] | None]:
    """The channels of a new topic; None if nobody was asked."""
    found: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
    if not lookups.find_channels(topic, lambda names: found.set_result([*names])):
        found.set_result(None)
    return found


@in_loop
async def test_a_new_topic_has_the_channels_that_name_servers_know() -> None:
    broker = core()
    broker.make_topic("mine", 1)
    async with (
        lookupd() as one,
        lookupd() as other,
        registering(broker, one.address, other.address) as lookups,
    ):
        assert await found_by(lookups, "early") is None, "nobody is connected yet"
        for server, channels in ((one, ("c", "d")), (other, ("d", "e", "f#ephemeral"))):
            await server.until_names(("mine", ""))
            for channel in channels:
                server.registry.make_channel("t", channel)
        assert await found_by(lookups, "t") == ["c", "d", "e"]
        assert await found_by(lookups, "unknown") == []
    assert await found_by(lookups, "late") is None, "it has left"


@in_loop
async def test_who_does_not_say_which_channels_is_not_asked_again_before_its_next_ping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "penstock.lookups")
    times = LookupTimes(ping_s=0.3, channels_s=0.05)
    broker = core()
    broker.make_topic("mine", 1)
    async with lookupd() as one, Scripted() as silent:
        one.door.node = one.door.node._replace(http_port=silent.port)
        async with registering(broker, one.address, times=times) as lookups:
            await one.until_names(("mine", ""))
            asked = [found_by(lookups, "t"), found_by(lookups, "u")]
            assert await asyncio.gather(*asked) == [[], []]
            assert await found_by(lookups, "v") is None
            one.registry.make_channel("w", "c")
            while (found := await found_by(lookups, "w")) is None:  # noqa: ASYNC110  no event tells
                await asyncio.sleep(0.01)
            assert found == []
    told = [record.getMessage() for record in caplog.records if "topic t " in record.getMessage()]
    (line,) = told
    assert f"LOOKUPD({one.address}): which channels it knows of topic t cannot be told:" in line
    assert line.endswith("no answer in time; the topic is made without them")


@in_loop
async def test_questions_end_when_the_broker_leaves() -> None:
    broker = core()
    broker.make_topic("mine", 1)
    async with lookupd() as one, Scripted() as silent:
        one.door.node = one.door.node._replace(http_port=silent.port)
        async with registering(broker, one.address) as lookups:
            await one.until_names(("mine", ""))
            found = found_by(lookups, "t")
        assert await found == []


@in_loop
async def test_other_name_servers_while_it_runs() -> None:
    broker = core()
    broker.make_topic("t", 1)
    async with (
        lookupd() as one,
        lookupd() as two,
        lookupd() as three,
        registering(broker, one.address, two.address) as lookups,
    ):
        await one.until_names(("t", ""))
        await two.until_names(("t", ""))
        (kept,) = two.registry.producers
        lookups.register_with([two.address, three.address])
        await one.until_names()
        await three.until_names(("t", ""))
        assert [*two.registry.producers] == [kept]
        lookups.register_with([])
        await two.until_names()
        await three.until_names()
        lookups.register_with([one.address])
        await one.until_names(("t", ""))


@in_loop
async def test_without_a_host_it_is_this_one() -> None:
    broker = core()
    broker.make_topic("t", 1)
    async with lookupd() as one, registering(broker, Address("", one.address.port)):
        await one.until_names(("t", ""))
