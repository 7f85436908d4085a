"""The whole broker: an engine, the host over it, and the doors. The one place where everything is
wired.

``penstock serve``, ``penstock nsqd``, the test kit and the embedded queue all start this; who
starts it owns the event loop and the signals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace

from penstock.broker.broker import BrokerOptions, TopicPolicy
from penstock.clock import Clock, SystemClock
from penstock.cluster.lookups import Lookups, LookupTimes
from penstock.config import Address, Settings
from penstock.doors.http.door import HttpDoor
from penstock.doors.nsq.door import NsqDoor
from penstock.limits import HOUR_MS
from penstock.protocol.lookup import Node
from penstock.protocol.nsq import NSQD_VERSION
from penstock.runtime.host import Host, HostOptions
from penstock.runtime.pool import DiskPool, LoopPool
from penstock.storage.file.log import FileOptions
from penstock.storage.memory import MemoryEngine
from penstock.storage.registry import open_engine

log = logging.getLogger("penstock.server")

SETTLING_SHARE = 0.8  # of the shutdown timeout; the rest is for answers that are not taken


class Server:
    """A broker that listens."""

    def __init__(
        self, settings: Settings, clock: Clock | None = None, *, memory_history: bool = False
    ) -> None:
        self.settings = settings
        self.memory_history = memory_history  # the test kit looks at what is finished
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.host: Host | None = None
        self.nsq: NsqDoor | None = None
        self.http: HttpDoor | None = None
        self.pool: DiskPool | LoopPool | None = None
        self.lookups: Lookups | None = None

    async def start(self) -> None:
        """Open the storage and listen; raises in one sentence what is in the way."""
        loop = asyncio.get_running_loop()
        settings = self.settings
        files = FileOptions(
            segment_bytes_max=settings.segment_bytes_max,
            files_open_max=settings.segment_files_open_max,
            reserve_bytes=settings.disk_reserve_bytes,
        )
        engine = await loop.run_in_executor(None, open_engine, settings.storage_url, files)
        try:
            options = replace(host_options(settings), memory_history=self.memory_history)
            if isinstance(engine, MemoryEngine):
                self.pool = LoopPool(loop.call_soon)
            else:
                self.pool = DiskPool(settings.sync_threads, loop.call_soon_threadsafe)
            self.host = Host(options, engine, self.pool, self.clock, loop)
            self.nsq = NsqDoor(self.host, self.settings, SystemClock())
            self.http = HttpDoor(self.host, self.settings, SystemClock(), self._tcp_port)
            self.host.start()
            await self.http.start()
            await self.nsq.start()
            self.http.register_with = self._register_with
            self._register_with(settings.lookupd_tcp_addresses)
        except BaseException:
            engine.close()
            raise

    def _register_with(self, addresses: Sequence[Address]) -> None:
        """These name servers, which are not waited for."""
        assert self.host is not None
        node = node_of(self.settings, self.tcp_addresses[0], self.http_addresses)
        if addresses and not node.tcp_port:
            log.warning(
                "LOOKUP: nsqlookupd knows brokers by a TCP port, and %s has none: this broker"
                " registers nowhere. Set broadcast_tcp_port to where clients reach it",
                self.tcp_addresses[0],
            )
            return
        if addresses and self.lookups is None:
            times = LookupTimes(channels_s=self.settings.http_client_request_timeout_ms / 1000)
            self.lookups = Lookups(self.host.broker, node, times)
            self.host.topics.find_channels = self.lookups.find_channels
        if self.lookups is not None:
            self.lookups.register_with(addresses)

    @property
    def tcp_addresses(self) -> list[Address]:
        assert self.nsq is not None
        return self.nsq.addresses

    @property
    def http_addresses(self) -> list[Address]:
        assert self.http is not None
        return self.http.addresses

    @property
    def https_addresses(self) -> list[Address]:
        assert self.http is not None
        return self.http.secure_addresses

    def _tcp_port(self) -> int:
        return self.tcp_addresses[0].port

    def drain(self) -> None:
        """Take no more clients and publishes, and go on serving those who consume. (Name servers
        are not left: consumers may ask them whether it is still there.)"""
        assert self.nsq is not None and self.http is not None
        if not self.nsq.draining:
            log.info("draining: no more clients and publishes are taken")
        self.nsq.drain()
        self.http.draining = True

    async def stop(self, *, settle: bool = True) -> None:
        """Leave the name servers, let consumers settle what they have, let clients go, commit and
        close everything cleanly."""
        if self.lookups is not None:
            await self.lookups.stop()
        if self.nsq is not None and self.http is not None:
            timeout_s = self.settings.shutdown_timeout_ms / 1000
            now = asyncio.get_running_loop().time()
            if settle:
                self.drain()
                await self.nsq.settle(now + SETTLING_SHARE * timeout_s)
            await asyncio.gather(self.http.stop(now + timeout_s), self.nsq.stop(now + timeout_s))
        if self.host is not None:
            await self.host.stop()
        if self.pool is not None:
            self.pool.close()


def node_of(settings: Settings, tcp: Address, http: Sequence[Address] = ()) -> Node:
    """Where this broker says that it is reached. nsqlookupd takes nobody without an HTTP port, and
    tells brokers of one host apart by it: without an HTTP door it is the TCP port, which is at
    least no other broker's."""
    host = socket.gethostname()
    tcp_port = settings.broadcast_tcp_port or tcp.port
    return Node(
        broadcast_address=settings.broadcast_address or host,
        hostname=host,
        tcp_port=tcp_port,
        http_port=settings.broadcast_http_port or (http[0].port if http else 0) or tcp_port,
        version=NSQD_VERSION,
    )


def host_options(settings: Settings) -> HostOptions:
    policies = {
        name: TopicPolicy(settings.partitions_of(name), settings.durability_of(name).value)
        for name in settings.topics
    }
    return HostOptions(
        broker=BrokerOptions(
            default_policy=TopicPolicy(settings.partitions, settings.durability.value),
            policies=policies,
            max_timeout_ns=settings.max_msg_timeout_ms * 1_000_000,
            ephemeral_backlog_max=settings.mem_queue_size,
            cache_bytes_max=settings.block_cache_bytes,
        ),
        sync_interval_ms=settings.sync_interval_ms,
        sync_messages_max=settings.sync_messages_max,
        journal_write_interval_ms=settings.journal_write_interval_ms,
        journal_sync_interval_ms=settings.journal_sync_interval_ms,
        uncommitted_bytes_max=settings.uncommitted_bytes_max,
        retain_ms=settings.retain_hours * HOUR_MS,
        verify=settings.verify,
    )
