"""The name server's TCP door: brokers connect, say who they are, and keep it up to date.

A broker is registered as long as its connection lasts. One that vanishes without a word is noticed
by TCP's keep-alive, and is not shown any more once it was silent for the inactive timeout. Who says
nothing worth hearing is let go, and who does not take answers is not read any further.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

from penstock.clock import Clock
from penstock.config import Address
from penstock.errors import PeerError
from penstock.lookup.registry import Producer, Registry
from penstock.protocol.lookup import (
    OK,
    Command,
    CommandReader,
    Identify,
    Node,
    Ping,
    Register,
    encode_answer,
    encode_node,
)
from penstock.runtime.listening import Listener, keep_alive, listen, peer_of

log = logging.getLogger("penstock.lookup")

# Who has not said IDENTIFY by then is no broker.
IDENTIFY_TIMEOUT_S = 60.0


class LookupDoor:
    """nsqlookupd's TCP protocol on one address. ``node`` is what brokers are told of it."""

    def __init__(
        self,
        registry: Registry,
        node: Node,
        clock: Clock,
        identify_timeout_s: float = IDENTIFY_TIMEOUT_S,
    ) -> None:
        self.registry = registry
        self.node = node
        self.clock = clock
        self.identify_timeout_s = identify_timeout_s
        self.connections: dict[Connection, None] = {}
        self.listener: Listener | None = None

    async def start(self, address: Address, setting: str) -> None:
        loop = asyncio.get_running_loop()
        self.listener = await listen(loop, lambda: Connection(self), address, setting)

    @property
    def addresses(self) -> list[Address]:
        assert self.listener is not None
        return self.listener.addresses

    def stop(self) -> None:
        """Brokers register again when there is a name server again."""
        if self.listener is not None:
            self.listener.close()
        for connection in [*self.connections]:
            connection.end()


class Connection(asyncio.Protocol):
    """One broker."""

    def __init__(self, door: LookupDoor) -> None:
        self._door = door
        self._reader = CommandReader()
        self.transport: asyncio.Transport | None = None
        self._producer: Producer | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._peer = ""

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by class
        self.transport = transport = cast("asyncio.Transport", transport)
        self._peer = peer_of(transport)
        self._door.connections[self] = None
        keep_alive(transport)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._door.identify_timeout_s, self._too_late)
        log.info("TCP: new client(%s)", self._peer)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        answers = []
        error: PeerError | None = None
        for command in self._reader.feed(data):
            answer, error = self._carry_out(command)
            answers.append(encode_answer(answer))
            if error is not None:
                break
        if answers:
            self.transport.write(b"".join(answers))
        if error is not None:
            log.error("[%s] - %s", self._peer, error)
            self._leave()
            self.transport.close()

    def pause_writing(self) -> None:
        assert self.transport is not None
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        assert self.transport is not None
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._door.connections.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        self._leave()
        log.info("CLIENT(%s): closing", self._peer)

    def _leave(self) -> None:
        if self._producer is not None:
            self._door.registry.remove(self._producer)
            self._producer = None

    # -- what is asked

    def _carry_out(self, command: Command | PeerError) -> tuple[bytes, PeerError | None]:
        """The answer, and the error if it is one."""
        try:
            if isinstance(command, PeerError):
                raise command
            return self._answer(command), None
        except PeerError as error:
            return str(error).encode(), error

    def _answer(self, command: Command) -> bytes:
        if isinstance(command, Identify):
            return self._identify(command.node)
        if isinstance(command, Ping):
            if self._producer is not None:
                self._producer.heard_at_ns = self._door.clock.monotonic_ns()
            return OK
        assert self._producer is not None, "the reader lets nothing else pass before IDENTIFY"
        change = self._door.registry.register
        if not isinstance(command, Register):
            change = self._door.registry.unregister
        log.debug("DB: client(%s) %s", self._peer, command)
        change(self._producer, command.topic, command.channel)
        return OK

    def _identify(self, node: Node) -> bytes:
        assert self._deadline is not None
        self._deadline.cancel()
        self._producer = Producer(self._peer, node, self._door.clock.monotonic_ns())
        self._door.registry.add(self._producer)
        log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._peer,
            node.broadcast_address,
            node.tcp_port,
            node.http_port,
            node.version,
        )
        return encode_node(self._door.node)

    def _too_late(self) -> None:
        log.info("CLIENT(%s): no IDENTIFY within %g s", self._peer, self._door.identify_timeout_s)
        self.end()

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()
