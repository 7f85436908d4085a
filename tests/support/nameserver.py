"""Penstock's own name server inside a test: what brokers tell it, and waiting for that.

`Watched` is its registry, which wakes whoever waits at every change. `Lookupd` has the TCP door in
the test's own loop, `NameServer` on a thread, for tests of a broker in a process of its own; both
can be stopped and come back on the same port, `NameServer` knowing nothing. `NameServerProcess` is
one in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, Self

from penstock.clock import SystemClock
from penstock.config import Address
from penstock.lookup.door import LookupDoor
from penstock.lookup.http import LookupHttpDoor
from penstock.lookup.registry import Producer, Registry
from penstock.protocol.lookup import Node
from tests.support.broker import Broker

NODE = Node("127.0.0.1", "lookup.example", 4160, 4161, "1.3.0")
PATIENCE_SECONDS = 60.0

Names = set[tuple[str, str]]


class Watched(Registry):
    """``on_change`` is called after each."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self.on_change = on_change

    def add(self, producer: Producer) -> None:
        super().add(producer)
        self.on_change()

    def remove(self, producer: Producer) -> None:
        super().remove(producer)
        self.on_change()

    def register(self, producer: Producer, topic: str, channel: str) -> None:
        super().register(producer, topic, channel)
        self.on_change()

    def unregister(self, producer: Producer, topic: str, channel: str) -> None:
        super().unregister(producer, topic, channel)
        self.on_change()

    def names(self) -> Names:
        """All that is registered by anyone."""
        return {(topic, channel) for topic, channel, _, _ in self.registrations()}


class Lookupd:
    """Penstock's name server in the test's loop."""

    def __init__(self, address: Address | None = None) -> None:
        self.changed = asyncio.Event()
        self.registry = Watched(self.changed.set)
        self.door = LookupDoor(self.registry, NODE, SystemClock())
        self.address = address or Address("127.0.0.1", 0)

    async def start(self) -> None:
        self.http, port = await start_http(self.registry)
        self.door.node = NODE._replace(http_port=port)
        await self.door.start(self.address, "tcp_address")
        self.address = self.door.addresses[0]

    async def stop(self) -> None:
        await self.http.stop()
        self.door.stop()
        await self.until(lambda: not self.registry.producers)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits, woken by every change, until the condition holds; pytest's timeout bounds it."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def until_names(self, *names: tuple[str, str]) -> None:
        await self.until(lambda: self.registry.names() == set(names))


async def start_http(registry: Registry) -> tuple[LookupHttpDoor, int]:
    """Its HTTP door, and the port of it."""
    door = LookupHttpDoor(registry, SystemClock(), shutdown_timeout_s=0)
    listener = await door.listen(Address("127.0.0.1", 0), "http_address")
    return door, listener.addresses[0].port


@asynccontextmanager
async def lookupd() -> AsyncIterator[Lookupd]:
    made = Lookupd()
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


class NameServer:
    """`with NameServer() as lookup`; `lookup.address` is for `--lookupd-tcp-address`."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._port = 0
        self._started = threading.Event()
        self.registry = Watched(self._changed)

    def start(self) -> None:
        self.registry = Watched(self._changed)
        self._started.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        http, port = await start_http(self.registry)
        door = LookupDoor(self.registry, NODE._replace(http_port=port), SystemClock())
        await door.start(Address("127.0.0.1", self._port), "tcp_address")
        self._port = door.addresses[0].port
        self._started.set()
        await self._end.wait()
        door.stop()
        await http.stop()
        while door.connections:  # noqa: ASYNC110 - the door has no event for a test to wait on
            await asyncio.sleep(0.001)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread.is_alive():
            self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _changed(self) -> None:
        with self._news:
            self._news.notify_all()

    def wait_for_names(self, *names: tuple[str, str]) -> None:
        """Until exactly these are registered: (topic, channel), the channel empty for the topic."""
        self.wait_for(lambda: self.registry.names() == set(names), f"exactly {names}")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        with self._news:
            if not self._news.wait_for(condition, PATIENCE_SECONDS):
                raise AssertionError(f"waited for {what}; there is {self.registry.names()}")


class NameServerProcess(Broker):
    """`penstock nsqlookupd`, or `penstock lookup`."""

    def command(self) -> list[str]:
        own: list[str] = []
        for flag in ("--tcp-address", "--http-address"):
            own += [flag, f"127.0.0.1:{self._wanted_ports.get(flag, 0)}"]
        return [sys.executable, "-m", "penstock", self.verb, *own, *self.args]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, target: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=25)
        connection.request(method, target)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        if response.headers["Content-Type"] != "application/json; charset=utf-8":
            return response.status, body.decode()
        return response.status, json.loads(body)

    def until(self, target: str, condition: Callable[[Any], bool]) -> Any:
        """Asks until the answer is so; pytest's timeout bounds it."""
        while not condition(value := self.ask("GET", target)[1]):
            pass
        return value
