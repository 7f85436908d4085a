"""What a system must offer to be compared: a server to start, and loads that speak to it.

Durability has our two words. `synced`: the answer to a publish comes after the disk has it.
`written`: it survives the death of the server's process, and a sync follows within about 2 s.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.bench.dialect import Dialect
from penstock.bench.fleet import Load
from penstock.bench.link import Address
from penstock.bench.process import Observed, ServerProcess
from penstock.bench.publish import PublishLoad
from penstock.bench.schedule import ScheduledPublishLoad


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    address: Address
    observed: Observed


@dataclass(frozen=True)
class Publishing:
    """Messages to publish, ``per_command`` in one command or pipeline.

    With a rate they are published on a schedule instead of as fast as answers come, one by one, and
    their bodies begin with the instant they were due.
    """

    connections: int
    inflight: int
    per_command: int
    body_bytes: int
    messages: int
    rate_per_s: int = 0

    def load(self, address: Address, topics: Sequence[str], dialect: Dialect) -> Load:
        """The load that does it."""
        if self.rate_per_s:
            return ScheduledPublishLoad(
                address,
                topics,
                self.connections,
                self.body_bytes,
                self.rate_per_s,
                self.messages,
                dialect=dialect,
            )
        return PublishLoad(
            address,
            topics,
            self.connections,
            self.inflight,
            self.per_command,
            self.body_bytes,
            self.messages // self.per_command,
            dialect,
        )


@dataclass(frozen=True)
class Consuming:
    """Messages to consume and acknowledge one by one, on each of the channels."""

    channels: Sequence[str]
    connections: int
    credit: int
    body_bytes: int
    messages: int
    timed: bool = False


class Peer(Protocol):
    """One system under comparison."""

    name: str
    single_publishes: bool  # whether it publishes messages one by one, too

    def version(self) -> str:
        """What the server calls itself."""
        ...

    def server(self, folder: Path, durability: str) -> AbstractContextManager[Running]:
        """A new server, its data in the folder."""
        ...

    def prepare(self, address: Address, topic: str, channels: Sequence[str]) -> None:
        """What must exist before anyone publishes."""
        ...

    def publish(self, address: Address, topic: str, publishing: Publishing) -> Sequence[Load]:
        """The loads that publish."""
        ...

    def consume(self, address: Address, topic: str, consuming: Consuming) -> Sequence[Load]:
        """The loads that consume."""
        ...


@contextmanager
def started(argv: Sequence[str], *, ready: str, folder: Path) -> Iterator[ServerProcess]:
    """A server process whose log says that it is ready."""
    with ServerProcess(argv, ready=ready, log=folder / "log", environment={}) as server:
        server.wait_ready()
        yield server


def free_port() -> int:
    """A port that nobody listens on, for servers that can't choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
