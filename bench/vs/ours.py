"""Penstock, as `penstock bench` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.vs.peer import Consuming, Publishing, Running, started
from penstock import __version__
from penstock.bench.consume import ConsumeLoad
from penstock.bench.dialect import NsqLine
from penstock.bench.fleet import Load
from penstock.bench.link import Address, open_subscription

_READY = r"TCP: listening on (\S+):(\d+)"


class Penstock:
    """NSQ's protocol over one block log; MPUB is the batch, a channel the group."""

    name = "penstock"
    single_publishes = True

    def version(self) -> str:
        return __version__

    @contextmanager
    def server(self, folder: Path, durability: str) -> Iterator[Running]:
        argv = [sys.executable, "-m", "penstock", "serve"]
        argv += ["--tcp-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
        argv += ["--data-path", str(folder / "data"), "--durability", durability]
        with started(argv, ready=_READY, folder=folder) as server:
            said = server.wait_ready()
            yield Running((said[1], int(said[2])), server.observed)

    def prepare(self, address: Address, topic: str, channels: Sequence[str]) -> None:
        for channel in channels:
            open_subscription(address, topic, channel).close()

    def publish(self, address: Address, topic: str, publishing: Publishing) -> Sequence[Load]:
        return [publishing.load(address, (topic,), NsqLine)]

    def consume(self, address: Address, topic: str, consuming: Consuming) -> Sequence[Load]:
        return [
            ConsumeLoad(
                address,
                topic,
                consuming.channels,
                consuming.connections,
                consuming.credit,
                consuming.body_bytes,
                consuming.messages,
                consuming.timed,
            )
        ]
