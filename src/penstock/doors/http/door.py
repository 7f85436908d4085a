"""The HTTP door: listens, keeps time for slow clients, and holds what all connections share."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from email.utils import formatdate
from functools import partial

from penstock.clock import Clock
from penstock.config import Address, Settings, TlsRequired
from penstock.doors.http.answers import Refused
from penstock.doors.http.connection import Connection
from penstock.doors.http.routes import Route, Routes
from penstock.limits import DELAY_MAX_MS, MIB
from penstock.runtime.host import Host
from penstock.runtime.listening import Listener, listen
from penstock.runtime.tlscontext import tls_context

log = logging.getLogger("penstock.http")

TICK_S = 5
BODIES_BYTES_MAX = 256 * MIB  # of all requests that are still coming in
QUERIES_KEPT_MAX = 1_000


class HttpDoor:
    """nsqd's HTTP API, with TLS on an address of its own."""

    def __init__(
        self, host: Host, settings: Settings, clock: Clock, tcp_port: Callable[[], int]
    ) -> None:
        self.host = host
        self.settings = settings
        self.clock = clock  # of the wire
        self.tcp_port = tcp_port
        self.started_at_ns = clock.now_ns()
        self.started_monotonic_ns = clock.monotonic_ns()
        longest = settings.max_req_timeout_ms
        self.delay_ms_max = DELAY_MAX_MS if longest is None else min(longest, DELAY_MAX_MS)
        self.tls_context: ssl.SSLContext | None = tls_context(settings)
        self.routes = Routes(settings)
        self.publish_queries: dict[bytes, tuple[str, int]] = {}
        self.connections: dict[Connection, None] = {}
        self.bodies_bytes = 0
        self.stopping = False
        self.plain: Listener | None = None
        self.secure: Listener | None = None
        self.ticker: asyncio.TimerHandle | None = None
        self._date = ("", -1)

    async def start(self) -> None:
        loop, settings = self.host.loop, self.settings
        if settings.http_address is not None:
            make = partial(Connection, self, secure=False)
            self.plain = await listen(loop, make, settings.http_address, "http_address")
        if settings.https_address is not None and self.tls_context is not None:
            make = partial(Connection, self, secure=True)
            self.secure = await listen(
                loop, make, settings.https_address, "https_address", self.tls_context
            )
        self._tick()

    @property
    def addresses(self) -> list[Address]:
        return self.plain.addresses if self.plain is not None else []

    @property
    def secure_addresses(self) -> list[Address]:
        return self.secure.addresses if self.secure is not None else []

    @property
    def http_port(self) -> int:
        return self.addresses[0].port if self.addresses else 0

    async def stop(self) -> None:
        """Take no more requests and answer those that are under way; who does not take the answer
        within the shutdown timeout is cut off."""
        self.stopping = True
        if self.ticker is not None:
            self.ticker.cancel()
        for listener in (self.plain, self.secure):
            if listener is not None:
                listener.close()
        for connection in [*self.connections]:
            connection.close_in_order()
        until = self.host.loop.time() + self.settings.shutdown_timeout_ms / 1000
        while self.connections:
            if self.host.loop.time() >= until:
                for connection in [*self.connections]:
                    if connection.transport is not None:
                        connection.transport.abort()
            await asyncio.sleep(0.002)

    # -- what connections share

    def find(self, method: bytes, path: bytes, *, secure: bool) -> Route | Refused:
        if not secure and self.settings.tls_required is TlsRequired.YES:
            ports = self.secure_addresses
            body = f'{{"message": "TLS_REQUIRED", "https_port": {ports[0].port if ports else 0}}}'
            return Refused(403, "TLS_REQUIRED", body=body.encode())
        return self.routes.find(method, path)

    def take_room(self, size: int) -> bool:
        """Room for a piece of a body; there may be none left."""
        if self.bodies_bytes + size > BODIES_BYTES_MAX:
            return False
        self.bodies_bytes += size
        return True

    def give_room_back(self, size: int) -> None:
        self.bodies_bytes -= size

    def remember_query(self, query: bytes, asked: tuple[str, int]) -> None:
        """A publisher says the same each time."""
        if len(self.publish_queries) >= QUERIES_KEPT_MAX:
            self.publish_queries.clear()
        self.publish_queries[query] = asked

    def date(self) -> str:
        second = self.clock.now_ns() // 1_000_000_000
        if second != self._date[1]:
            self._date = (formatdate(second, usegmt=True), second)
        return self._date[0]

    def health(self) -> str:
        """nsqd's words: OK, or NOK and why."""
        for problem in self.host.problems.values():
            return f"NOK - {problem}"
        return "OK"

    def _tick(self) -> None:
        self.ticker = self.host.loop.call_later(TICK_S, self._tick)
        for connection in [*self.connections]:
            connection.tick()
