"""An HTTP server on the event loop: listens, keeps time for slow clients, and holds what all
connections share. A door gives it routes, and the class of its requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from email.utils import formatdate
from functools import partial

from penstock.clock import Clock
from penstock.config import Address
from penstock.http.answers import Refused
from penstock.http.connection import Connection
from penstock.http.request import Request
from penstock.http.routes import Route, Routes
from penstock.limits import MIB
from penstock.runtime.listening import Listener, listen

TICK_S = 5
BODIES_BYTES_MAX = 256 * MIB  # of all requests that are still coming in


class HttpServer:
    """On any number of addresses, with TLS or without."""

    request: type[Request] = Request

    def __init__(self, routes: Routes, clock: Clock, shutdown_timeout_s: float) -> None:
        self.routes = routes
        self.clock = clock  # of the wire
        self.shutdown_timeout_s = shutdown_timeout_s
        self.connections: dict[Connection, None] = {}
        self.bodies_bytes = 0
        self.stopping = False
        self.listeners: list[Listener] = []
        self.ticker: asyncio.TimerHandle | None = None
        self._date = ("", -1)

    async def listen(
        self, address: Address, setting: str, tls: ssl.SSLContext | None = None
    ) -> Listener:
        make = partial(Connection, self, secure=tls is not None)
        listener = await listen(asyncio.get_running_loop(), make, address, setting, tls)
        self.listeners.append(listener)
        if self.ticker is None:
            self._tick()
        return listener

    async def stop(self, until: float | None = None) -> None:
        """Take no more requests and answer those that are under way; who does not take the answer
        until then (the loop's time), or within the shutdown timeout, is cut off."""
        self.stopping = True
        if self.ticker is not None:
            self.ticker.cancel()
        for listener in self.listeners:
            listener.close()
        for connection in [*self.connections]:
            connection.close_in_order()
        loop = asyncio.get_running_loop()
        if until is None:
            until = loop.time() + self.shutdown_timeout_s
        while self.connections:
            if loop.time() >= until:
                for connection in [*self.connections]:
                    if connection.transport is not None:
                        connection.transport.abort()
            await asyncio.sleep(0.002)

    # -- what connections share

    def find(self, method: bytes, path: bytes, *, secure: bool) -> Route | Refused:
        return self.routes.find(method, path)

    def call_soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def take_room(self, size: int) -> bool:
        """Room for a piece of a body; there may be none left."""
        if self.bodies_bytes + size > BODIES_BYTES_MAX:
            return False
        self.bodies_bytes += size
        return True

    def give_room_back(self, size: int) -> None:
        self.bodies_bytes -= size

    def date(self) -> str:
        second = self.clock.now_ns() // 1_000_000_000
        if second != self._date[1]:
            self._date = (formatdate(second, usegmt=True), second)
        return self._date[0]

    def _tick(self) -> None:
        self.ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        for connection in [*self.connections]:
            connection.tick()
