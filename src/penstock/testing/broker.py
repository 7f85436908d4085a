"""The broker of a test: everything real but the disk, and the clock if you like.

``async with`` runs it on the test's own event loop; ``with`` on a loop of its own in a thread. What
it tells about itself (``published``, ``depth``, ``in_flight``) is read from the broker directly,
not over the wire.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar, Unpack

from penstock.broker.channel import Channel
from penstock.config import Address, Durability, Settings
from penstock.runtime.host import Host
from penstock.runtime.pool import LoopPool
from penstock.sdk import Client
from penstock.sdk.options import ClientKeywords
from penstock.server import Server
from penstock.testing.clock import FakeClock

T = TypeVar("T")

READ_BYTES = 1 << 20
ANSWER_TIMEOUT_S = 10


class MemoryBroker:
    """A broker in memory for one test."""

    def __init__(self, clock: FakeClock | None = None, settings: Settings | None = None) -> None:
        self.clock = clock
        base = settings if settings is not None else Settings()
        self.settings = replace(
            base,
            storage="memory://",
            durability=Durability.MEMORY,
            tcp_address=Address("127.0.0.1", 0),
            http_address=None,
        )
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # -- running

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    def __enter__(self) -> Self:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="test-broker", daemon=True)
        self._thread.start()
        self._across(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._across(self._stop())
        self._across(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        server = Server(self.settings, self.clock, memory_history=True)
        await server.start()
        self._server = server

    async def _stop(self) -> None:
        server, self._server = self._running(), None
        await server.stop(settle=False)  # nothing outlives it

    def _across(self, work: Coroutine[object, object, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_TIMEOUT_S)

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask on the broker's loop, where its state is whole."""
        self._running()
        if self._thread is None:
            return question()

        async def asked() -> T:
            return question()

        return self._across(asked())

    # -- reaching it

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``, for any NSQ client."""
        host, port = self._running().tcp_addresses[0]
        return f"{host}:{port}"

    def client(self, **options: Unpack[ClientKeywords]) -> Client:
        """A client of it on asyncio; for scripts there is ``Client.sync(broker.address)``."""
        return Client(self.address, **options)

    # -- time

    def advance(self, seconds: float) -> None:
        """Time passes: what is due by then is ready, leases that ran out are given back."""
        clock = self.clock
        if clock is None:
            raise ValueError("this broker lives in real time: give it a FakeClock to move its time")

        def pass_time() -> None:
            clock.advance(seconds)
            host, pool = self._host(), self._running().pool
            assert isinstance(pool, LoopPool)
            host.timers.ring()
            while pool.jobs or host.committer.scheduled:  # until all that was due has happened
                pool.run()
                host.committer.turn()
                if host.timers.is_due():
                    host.timers.ring()

        self._ask(pass_time)

    # -- looking inside

    def published(self, topic: str) -> list[bytes]:
        """The bodies of all messages of a topic, oldest first; those that sleep come last."""

        def read() -> list[bytes]:
            host = self._host()
            found = host.broker.topics.get(topic)
            if found is None:
                return []
            bodies: list[bytes] = []
            for lane in found.ready_lanes():
                at = lane.start
                while blocks := host.committer.writers[lane].log.read(at, READ_BYTES):
                    bodies += [block.body_at(i) for block in blocks for i in range(block.count)]
                    at = blocks[-1].end
            for partition in found.partitions:
                if partition.delay is not None:
                    opened = host.committer.writers[partition.delay].log
                    for _, seq in sorted(partition.schedule.entries):
                        block = opened.read(seq, 1)[0]
                        bodies.append(block.body_at(block.index_of(seq)))
            return bodies

        return self._ask(read)

    def depth(self, topic: str, channel: str | None = None) -> int:
        """How many messages wait: for a channel, or for the first channel to come."""

        if channel is not None:
            return self._count(topic, channel, Channel.depth)

        def count() -> int:
            found = self._host().broker.topics.get(topic)
            return 0 if found is None else found.depth()

        return self._ask(count)

    def in_flight(self, topic: str, channel: str) -> int:
        """How many messages of a channel consumers have and did not finish."""
        return self._count(topic, channel, Channel.in_flight_count)

    def sleeping(self, topic: str, channel: str) -> int:
        """How many messages a channel has requeued with a delay that has not passed."""
        return self._count(topic, channel, Channel.sleeping_count)

    def _count(self, topic: str, channel: str, of: Callable[[Channel], int]) -> int:
        """Of a channel that nobody has named yet, 0."""

        def count() -> int:
            found = self._host().broker.topics.get(topic)
            known = None if found is None else found.channels.get(channel)
            return 0 if known is None else of(known)

        return self._ask(count)

    def _host(self) -> Host:
        host = self._running().host
        assert host is not None
        return host

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the broker is not running: ask it inside of its `with` block")
        return self._server
