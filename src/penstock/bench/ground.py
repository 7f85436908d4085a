"""Where a bench runs: brokers to measure, each in its own data directory, or one that runs already.

A broker of ours is `penstock serve` in a process of its own, on free ports, through
``penstock.bench.metered`` (which counts its disk syncs). A broker that someone else started is only
talked to; its CPU is read when its pid is given.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.bench.fleet import Fleet, Load, Outcome
from penstock.bench.link import Address, expect_answer, open_link
from penstock.bench.metered import new_meter, read_syncs
from penstock.bench.process import Observed, ServerProcess, disk_bytes
from penstock.bench.wire import BenchError
from penstock.protocol.nsq_client import OK, encode_pub

Metrics = dict[str, float]

_MB = 1_000_000
_READY = r"TCP: listening on (\S+):(\d+)\n(?:.*\n)*.*HTTP: listening on (\S+):(\d+)"
_ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True)
class Ground:
    """What the command line said about where to run."""

    directory: Path  # data directories are made below it, and removed
    against: Address | None = None
    against_pid: int | None = None
    deadline_s: float = 600.0
    profile: Path | None = None  # a directory for py-spy's samples of the broker

    @contextmanager
    def broker(self, durability: str, *, fdatasync_us: int = 0) -> Iterator[Broker]:
        """A broker to measure: a new one of our own, or the one that runs already."""
        if self.against is not None:
            yield Broker(self, self.against, _observed(self.against_pid))
            return
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=self.directory))
        try:
            with OwnBroker(self, folder, durability, fdatasync_us) as broker:
                yield broker
        finally:
            shutil.rmtree(folder)

    @contextmanager
    def own_broker(self, durability: str, *, fdatasync_us: int = 0) -> Iterator[OwnBroker]:
        """A broker that the bench may stop, kill and start again."""
        with self.broker(durability, fdatasync_us=fdatasync_us) as broker:
            if not isinstance(broker, OwnBroker):
                raise BenchError(
                    "this bench stops and restarts its broker; run it without --against"
                )
            yield broker


class Broker:
    """A broker that can be talked to, and perhaps observed."""

    def __init__(self, ground: Ground, address: Address, observed: Observed | None) -> None:
        self._ground = ground
        self.address = address
        self.observed = observed
        # Unique, so that a run against a broker in use meets nobody's messages.
        self.topic = f"bench_{time.time_ns():x}"

    def syncs(self) -> int | None:
        """Disk syncs so far, if they are counted."""
        return None

    def apply(self, loads: Sequence[Load], *, note: str = "") -> Measured:
        """Run the loads together; the broker's costs are those between "go" and the last answer."""
        deadline_s = self._ground.deadline_s
        with Fleet(loads, deadline_s=deadline_s) as fleet:
            fleet.wait_ready()
            with self._profiled(note):
                syncs = self.syncs()
                cpu_ns = self.observed.cpu_ns() if self.observed else None
                fleet.go()
                outcomes = fleet.outcomes()
                if self.observed and cpu_ns is not None:
                    cpu_ns = self.observed.cpu_ns() - cpu_ns
                if syncs is not None:
                    syncs = (self.syncs() or 0) - syncs
        return Measured(outcomes, cpu_ns, syncs)

    @contextmanager
    def _profiled(self, note: str) -> Iterator[None]:
        """py-spy beside the run, if asked for; it costs the broker some per cent."""
        folder = self._ground.profile
        if folder is None or self.observed is None or not note:
            yield
            return
        py_spy = shutil.which("py-spy")
        if py_spy is None:
            raise BenchError("--profile needs py-spy on the PATH (pip install py-spy)")
        target = folder / f"{note}.collapsed"
        argv = [py_spy, "record", "--pid", str(self.observed.pid), "--format", "raw"]
        argv += ["--rate", "500", "--native", "--output", str(target)]
        sampler = subprocess.Popen(  # noqa: S603 - the profiler a person asked for
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            time.sleep(0.5)  # py-spy says nothing when it has begun; the profile only starts later
            yield
        finally:
            sampler.send_signal(2)
            sampler.wait(60)


class OwnBroker(Broker):
    """A broker in a process and a data directory of ours."""

    def __init__(self, ground: Ground, folder: Path, durability: str, fdatasync_us: int) -> None:
        self._folder = folder
        self._durability = durability
        self._fdatasync_us = fdatasync_us
        self._meter = folder / "syncs"
        new_meter(self._meter)
        self._server = self._start()
        address, self.http_address = self._wait_ready()
        super().__init__(ground, address, self._server.observed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.__exit__(*exc)

    @property
    def process(self) -> Observed:
        """The process as it is now; it changes with a restart."""
        return self._server.observed

    def syncs(self) -> int | None:
        return read_syncs(self._meter)

    def disk_bytes(self) -> int:
        """What its data take on the disk."""
        return disk_bytes(self.data_path)

    @property
    def data_path(self) -> Path:
        return self._folder / "data"

    def stop(self) -> None:
        """The clean end."""
        self._server.stop()

    def kill(self) -> None:
        """The unclean end: kill -9."""
        self._server.kill()

    def start(self) -> float:
        """Start again on the same data; seconds until a first publish was answered."""
        self._server = self._start()
        self.address, self.http_address = self._wait_ready()
        self.observed = self._server.observed
        link = open_link(self.address)
        link.sendall(encode_pub("bench_first_after_start", b"x"))
        expect_answer(link, OK)
        took_s = (time.monotonic_ns() - self._server.started_at_ns) / 1e9
        link.close()
        return took_s

    def _start(self) -> ServerProcess:
        argv = [sys.executable, "-m", "penstock.bench.metered"]
        argv += [str(self._meter), str(self._fdatasync_us)]
        argv += ["serve", "--data-path", str(self._folder / "data")]
        argv += ["--tcp-address", _ANY_PORT, "--http-address", _ANY_PORT]
        argv += ["--durability", self._durability]
        return ServerProcess(argv, ready=_READY, log=self._folder / "log", environment={})

    def _wait_ready(self) -> tuple[Address, Address]:
        said = self._server.wait_ready()
        return (said[1], int(said[2])), (said[3], int(said[4]))


@dataclass(frozen=True)
class Measured:
    """What came of loads that ran together."""

    outcomes: list[Outcome]
    cpu_ns: int | None
    syncs: int | None

    @property
    def seconds(self) -> float:
        """From the first worker's start to the last one's end."""
        started_at_ns = min(outcome.started_at_ns for outcome in self.outcomes)
        return (max(outcome.ended_at_ns for outcome in self.outcomes) - started_at_ns) / 1e9

    def count(self, name: str) -> float:
        """A count of the workers, added up."""
        return sum(outcome.counts.get(name, 0) for outcome in self.outcomes)

    def rates(self, messages: int) -> Metrics:
        """The figures that every bench has, per message of the given number."""
        metrics: Metrics = {}
        if self.cpu_ns is not None:
            metrics["broker_cpu_us_per_message"] = round(self.cpu_ns / messages / 1e3, 4)
            metrics["broker_cpu_percent"] = round(self.cpu_ns / self.seconds / 1e7, 1)
        metrics["messages_per_s"] = round(messages / self.seconds)
        generator_ns = sum(outcome.cpu_ns for outcome in self.outcomes)
        metrics["generator_cpu_us_per_message"] = round(generator_ns / messages / 1e3, 4)
        if self.syncs is not None:
            metrics["syncs_per_s"] = round(self.syncs / self.seconds, 1)
        return metrics


def in_mb(size_bytes: int) -> float:
    """Megabytes of a million bytes, as the targets are written."""
    return round(size_bytes / _MB, 1)


def _observed(pid: int | None) -> Observed | None:
    return None if pid is None else Observed(pid)
