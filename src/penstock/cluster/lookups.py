"""The broker's registration with name servers (nsqlookupd's, or Penstock's own).

Each has a connection and a task of its own, so none can hold up another, and none holds up the
broker: nothing here is on a message's way. What a name server was told is not remembered. A new
connection is told of every topic and channel; after that, of those whose coming or going was noted
since. What is said of a name is how things stand at that moment, so many changes of one name are
one command, and a lost connection needs no repair.

The one thing that may wait for a name server, for a bounded time, is a topic that is made: it takes
over the channels that are known elsewhere, so that each of them gets its messages from the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.backoff import Backoff
from penstock.broker.broker import Broker
from penstock.cluster.asking import channels_known_at
from penstock.cluster.resolving import resolve
from penstock.config import Address
from penstock.errors import OperatingError, PeerError
from penstock.protocol.lookup import (
    MAGIC,
    OK,
    PING,
    AnswerReader,
    Node,
    decode_node,
    encode_identify,
    encode_register,
    encode_unregister,
)

log = logging.getLogger("penstock.lookups")

COMMANDS_AT_ONCE = 100
READ_BYTES = 1 << 16
QUESTIONS_AT_ONCE = 16
SHOWN_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class LookupTimes:
    """In seconds. nsqd PINGs as often, and waits a second for connections and answers: all its name
    servers are served in turn, and here nobody else waits."""

    ping_s: float = 15.0
    connect_s: float = 5.0
    answer_s: float = 5.0
    channels_s: float = 5.0
    retry_first_s: float = 0.25
    retry_longest_s: float = 15.0


class Lookups:
    """All name servers of a broker."""

    def __init__(self, broker: Broker, node: Node, times: LookupTimes | None = None) -> None:
        self._broker = broker
        self._node = node
        self._times = times or LookupTimes()
        self._links: dict[Address, Link] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._questions: set[asyncio.Task[list[str]]] = set()
        broker.on_named = self._named

    def register_with(self, addresses: Iterable[Address]) -> None:
        """These name servers, and no others any more."""
        wanted = dict.fromkeys(addresses)
        for address in self._links.keys() - wanted:
            log.info("LOOKUP(%s): removing peer", address)
            del self._links[address]
            task = self._tasks.pop(address)
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for address in wanted:
            if address not in self._links:
                link = Link(self._broker, self._node, address, self._times)
                self._links[address] = link
                self._tasks[address] = asyncio.create_task(link.run())

    async def stop(self) -> None:
        """Leave: a name server forgets whose connection ends."""
        ending = [*self._tasks.values(), *self._leaving, *self._questions]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def find_channels(self, topic: str, then: Callable[[Sequence[str]], None]) -> bool:
        """Ask which channels a new topic has elsewhere, and call ``then`` with them, or with none
        once the time for it is over. False if there is nobody to ask."""
        links = [link for link in self._links.values() if link.can_be_asked]
        if not links:
            return False

        def found(question: asyncio.Task[list[str]]) -> None:
            self._questions.discard(question)
            then(() if question.cancelled() else question.result())

        question = asyncio.create_task(_ask_all(links, topic))
        self._questions.add(question)
        question.add_done_callback(found)
        return True

    def _named(self, topic: str, channel: str) -> None:
        for link in self._links.values():
            link.note(topic, channel)


async def _ask_all(links: list[Link], topic: str) -> list[str]:
    found = await asyncio.gather(*[link.channels(topic) for link in links])
    return [*dict.fromkeys(name for names in found for name in names)]


class Link:
    """One name server."""

    def __init__(self, broker: Broker, node: Node, address: Address, times: LookupTimes) -> None:
        self._broker = broker
        self._node = node
        self._address = address
        self._times = times
        self._backoff = Backoff(times.retry_first_s, times.retry_longest_s)
        self._failing = False  # and the log says so already
        self._connected = False
        self._topics: list[str] = []  # not told yet on this connection
        self._changed: dict[tuple[str, str], None] = {}  # came or went on this connection
        self._news = asyncio.Event()
        self._http: list[Address] = []  # where its HTTP API is
        self._http_known = asyncio.Event()
        self._silent = False  # to HTTP, since its last PING
        self._questions = asyncio.Semaphore(QUESTIONS_AT_ONCE)

    @property
    def can_be_asked(self) -> bool:
        return self._connected and not self._silent

    async def channels(self, topic: str) -> list[str]:
        """Those it knows of the topic; none if it does not say so in time."""
        try:
            async with asyncio.timeout(self._times.channels_s), self._questions:
                await self._http_known.wait()
                return await channels_known_at(self._http, topic)
        except (OSError, OperatingError) as error:
            level = logging.DEBUG if self._silent else logging.WARNING
            self._silent = True
            log.log(
                level,
                "LOOKUPD(%s): which channels it knows of topic %s cannot be told: %s; the topic is"
                " made without them",
                self._address,
                topic,
                str(error) or "no answer in time",
            )
            return []

    def note(self, topic: str, channel: str) -> None:
        """A topic (the channel is empty) or a channel came or went."""
        if self._connected:
            self._changed[topic, channel] = None
            self._news.set()

    async def run(self) -> None:
        """Register, and register again after whatever goes wrong, until cancelled."""
        log.info("LOOKUP(%s): adding peer", self._address)
        while True:
            try:
                await self._session()
            except (OSError, PeerError, OperatingError) as error:  # a TimeoutError is an OSError
                self._failed(error)
            except Exception:
                # ours; as with a client's, it ends that connection and nothing else
                log.exception("LOOKUPD(%s): this is a bug in Penstock", self._address)
            await asyncio.sleep(self._backoff.next_delay())

    def _failed(self, error: Exception) -> None:
        level = logging.DEBUG if self._failing else logging.WARNING
        self._failing = True
        log.log(
            level,
            "LOOKUPD(%s): %s; the broker goes on without it and keeps trying",
            self._address,
            str(error) or "no answer in time",
        )

    async def _session(self) -> None:
        reader, writer = await self._connect()
        try:
            exchange = _Exchange(reader, writer, self._times.answer_s)
            theirs = await self._introduce(exchange)
            resolving = asyncio.create_task(self._find_http(theirs))
            try:
                await self._keep_told(exchange)
            finally:
                self._connected = False
                resolving.cancel()
                await asyncio.wait((resolving,))
        finally:
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure: OSError | None = None
        for place in await resolve(self._address):
            try:
                async with asyncio.timeout(self._times.connect_s):
                    return await asyncio.open_connection(*place)
            except OSError as error:
                failure = error
        raise failure or OperatingError("the name stands for no address", retry=True)

    async def _introduce(self, exchange: _Exchange) -> Node:
        (answer,) = await exchange.ask([MAGIC + encode_identify(self._node)])
        theirs = _peer(answer)
        log.info("LOOKUPD(%s): peer info %s", self._address, theirs)
        return theirs

    async def _find_http(self, theirs: Node) -> None:
        self._http = []
        self._http_known.clear()
        try:
            self._http = await resolve(Address(theirs.broadcast_address, theirs.http_port))
        except OSError as error:
            log.debug("LOOKUPD(%s): %s: %s", self._address, theirs.broadcast_address, error)
        finally:
            self._http_known.set()

    async def _keep_told(self, exchange: _Exchange) -> None:
        self._silent = False
        self._topics = self._broker.topic_names()
        self._changed.clear()
        self._connected = True
        while True:
            self._news.clear()
            while commands := self._due():
                _check(commands, await exchange.ask(commands))
            self._failing = False
            self._backoff.reset()
            if not await exchange.wait_for(self._news, self._times.ping_s):
                _check([PING], await exchange.ask([PING]))
                self._silent = False

    def _due(self) -> list[bytes]:
        """What to say next."""
        commands: list[bytes] = []
        while self._topics and len(commands) < COMMANDS_AT_ONCE:
            topic = self._topics.pop()
            channels = self._broker.channel_names(topic)
            if channels is not None:
                commands += [encode_register(topic, channel) for channel in channels or ("",)]
        while self._changed and len(commands) < COMMANDS_AT_ONCE:
            topic, channel = next(iter(self._changed))
            del self._changed[topic, channel]
            channels = self._broker.channel_names(topic)
            there = channels is not None and (not channel or channel in channels)
            encode = encode_register if there else encode_unregister
            commands.append(encode(topic, channel))
        return commands


class _Exchange:
    """Commands and their answers on one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer_s = answer_s
        self._answers = AnswerReader()

    async def ask(self, commands: list[bytes]) -> list[bytes]:
        """As many answers; fewer if the last one is an error."""
        answers: list[bytes] = []
        async with asyncio.timeout(self._answer_s):
            self._writer.write(b"".join(commands))
            await self._writer.drain()
            while len(answers) < len(commands) and not any(map(_is_error, answers)):
                answers += self._answers.feed(_some(await self._reader.read(READ_BYTES)))
        if len(answers) > len(commands):
            raise PeerError("E_BAD_BODY", f"answered what nobody asked: {_shown(answers[-1])}")
        return answers

    async def wait_for(self, news: asyncio.Event, seconds: float) -> bool:
        """Whether there is news within that time; raises if the connection ends meanwhile."""
        heard = asyncio.ensure_future(self._reader.read(READ_BYTES))
        told = asyncio.ensure_future(news.wait())
        try:
            await asyncio.wait((heard, told), timeout=seconds, return_when="FIRST_COMPLETED")
            if heard.done():
                raise PeerError(
                    "E_BAD_BODY", f"said what nobody asked: {_shown(_some(heard.result()))}"
                )
            return told.done()
        finally:
            heard.cancel()
            told.cancel()
            await asyncio.gather(heard, told, return_exceptions=True)


def _some(data: bytes) -> bytes:
    if not data:
        raise OperatingError("it closed the connection", retry=True)
    return data


def _peer(answer: bytes) -> Node:
    if _is_error(answer):
        raise PeerError("E_INVALID", f"IDENTIFY was answered with {_shown(answer)}")
    try:
        return decode_node(answer)
    except PeerError as error:
        raise PeerError("E_BAD_BODY", f"IDENTIFY was answered with {_shown(answer)}") from error


def _check(commands: list[bytes], answers: list[bytes]) -> None:
    for command, answer in zip(commands, answers, strict=False):  # none behind an error
        if answer != OK:
            raise PeerError("E_INVALID", f"{_shown(command)} was answered with {_shown(answer)}")


def _is_error(answer: bytes) -> bool:
    return answer.startswith(b"E_")


def _shown(data: bytes) -> str:
    return repr(data[:SHOWN_BYTES_MAX].decode("utf-8", "replace"))
