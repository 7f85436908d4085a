"""The whole name server: what is known, and the doors over it.

`penstock lookup` and `penstock nsqlookupd` start this; who starts it owns the event loop.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from penstock.clock import Clock, SystemClock
from penstock.config import Address
from penstock.limits import SECOND_MS
from penstock.lookup.door import LookupDoor
from penstock.lookup.http import LookupHttpDoor
from penstock.lookup.registry import Registry, RegistryOptions
from penstock.protocol.lookup import Node
from penstock.protocol.nsq import NSQD_VERSION

SHUTDOWN_TIMEOUT_MS = 5 * SECOND_MS


@dataclass(frozen=True, slots=True)
class NameServerOptions:
    """``broadcast_address`` is where others reach it; empty is the host's name."""

    tcp_address: Address
    http_address: Address
    broadcast_address: str
    registry: RegistryOptions


class NameServer:
    """A name server that listens."""

    def __init__(self, options: NameServerOptions, clock: Clock | None = None) -> None:
        clock = clock if clock is not None else SystemClock()
        self.options = options
        self.registry = Registry(options.registry)
        host = socket.gethostname()
        self._node = Node(options.broadcast_address or host, host, 0, 0, NSQD_VERSION)
        self._http = LookupHttpDoor(self.registry, clock, SHUTDOWN_TIMEOUT_MS / 1000)
        self._tcp = LookupDoor(self.registry, self._node, clock)
        self.tcp_addresses: list[Address] = []
        self.http_addresses: list[Address] = []

    async def start(self) -> None:
        """Listen; raises in one sentence what is in the way."""
        options = self.options
        http = await self._http.listen(options.http_address, "http-address")
        self.http_addresses = http.addresses
        try:
            await self._tcp.start(options.tcp_address, "tcp-address")
        except BaseException:
            await self._http.stop()
            raise
        self.tcp_addresses = self._tcp.addresses
        self._tcp.node = self._node._replace(
            tcp_port=self.tcp_addresses[0].port, http_port=self.http_addresses[0].port
        )

    async def stop(self) -> None:
        self._tcp.stop()
        await self._http.stop()
