"""Worker processes: started, made ready, set off together, and heard out.

A worker is `python -m penstock.bench.fleet` with a pickled load on its standard input. It opens
its connections, says so, waits for the word to go, runs, and hands its outcome back. The broker's
CPU is read between "all are ready" and "go", so connecting is never part of a figure. A worker that
fails sends its error, and ends the run: half a load measures nothing.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from penstock.bench.histogram import Histogram
from penstock.bench.wire import BenchError
from penstock.errors import PenstockError


@dataclass
class Outcome:
    """What one worker did; instants are of the monotonic clock, which all processes share."""

    messages: int
    started_at_ns: int
    ended_at_ns: int
    latency: Histogram = field(default_factory=Histogram)
    counts: dict[str, float] = field(default_factory=dict)
    cpu_ns: int = 0


class Running(Protocol):
    """A load with its connections open."""

    def run(self) -> Outcome:
        """Do it, once."""
        ...


class Load(Protocol):
    """What a worker is to do; travels to it pickled."""

    def open(self) -> Running:
        """Connect and build all that can be built before the clock starts."""
        ...


class Fleet:
    """The workers of one run. ``with`` ends those that are left, whatever happened."""

    def __init__(self, loads: Sequence[Load], *, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._workers = [_start(load) for load in loads]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    stream.close()

    def wait_ready(self) -> None:
        """Until every worker has its connections open."""
        for worker in self._workers:
            said = self._hear(worker)
            if said != "ready":
                raise BenchError(f"a worker said {said!r} instead of being ready")

    def go(self) -> None:
        """Set them off."""
        for worker in self._workers:
            _say(worker, b"go\n")

    def outcomes(self) -> list[Outcome]:
        """Every worker's outcome, in the order of the loads."""
        outcomes = []
        for worker in self._workers:
            said = self._hear(worker)
            if not isinstance(said, Outcome):
                raise BenchError(f"a worker said {said!r} instead of its outcome")
            outcomes.append(said)
        return outcomes

    def _hear(self, worker: subprocess.Popen[bytes]) -> object:
        assert worker.stdout is not None
        ready, _, _ = select.select([worker.stdout], [], [], self._deadline_s)
        if not ready:
            raise BenchError(
                f"the load was not through after {self._deadline_s:.0f} s and was given up; "
                "the broker may be stuck, or --deadline too short for this machine"
            )
        try:
            said: object = pickle.load(worker.stdout)  # noqa: S301 - our own child wrote it
        except EOFError as error:
            raise BenchError(f"a worker ended with exit code {worker.wait()}") from error
        if isinstance(said, PenstockError):
            raise said
        return said


def _start(load: Load) -> subprocess.Popen[bytes]:
    # The child finds the same packages as we do, also those that a script's own folder holds.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "penstock.bench.fleet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    _say(worker, pickle.dumps(load))
    return worker


def _say(worker: subprocess.Popen[bytes], what: bytes) -> None:
    assert worker.stdin is not None
    try:
        worker.stdin.write(what)
        worker.stdin.flush()
    except BrokenPipeError as error:
        raise BenchError(f"a worker ended early with exit code {worker.wait()}") from error


def _work() -> None:
    """A worker's whole life."""
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr  # a stray print must not end up between the pickles

    def answer(said: object) -> None:
        pickle.dump(said, answers)
        answers.flush()

    try:
        load: Load = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own parent wrote it
        running = load.open()
        answer("ready")
        if sys.stdin.buffer.readline() != b"go\n":
            return  # the run was called off
        cpu_at_start_ns = time.process_time_ns()
        outcome = running.run()
        outcome.cpu_ns = time.process_time_ns() - cpu_at_start_ns
        answer(outcome)
    except PenstockError as error:
        answer(BenchError(str(error)))


if __name__ == "__main__":
    _work()
