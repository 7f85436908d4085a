"""A few threads that may wait for a disk, and the way back to the event loop.

Jobs are plain callables, results come back in one wake-up of the loop for all that finished
meanwhile. It is used once per commit, never per message. (An executor's futures cost three times
as much per job.)

A broker in memory has no disk to wait for, and no threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar

T = TypeVar("T")


class Pool(Protocol):
    """Where blocking work goes. The simulation has one that runs jobs in its own time."""

    def submit(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run ``job`` off the loop, then ``then(result, error)`` on it."""


class LoopPool:
    """No threads: jobs that wait for nothing run on the loop, in its next round or when told to."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self.jobs: deque[Callable[[], None]] = deque()

    def submit(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        if not self.jobs:
            self._call_soon(self.run)
        self.jobs.append(lambda: then(*_outcome(job)))

    def run(self) -> None:
        while self.jobs:
            self.jobs.popleft()()

    def close(self) -> None:
        self.run()


class DiskPool:
    """Real threads."""

    def __init__(
        self, threads: int, call_soon_threadsafe: Callable[[Callable[[], None]], object]
    ) -> None:
        self._wake = call_soon_threadsafe
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._woken = False
        self._threads = [
            threading.Thread(target=self._work, name=f"disk-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        def run() -> None:
            outcome = _outcome(job)
            self._done.append(lambda: then(*outcome))
            if not self._woken:
                self._woken = True
                self._wake(self._drain)

        self._jobs.put(run)

    def _drain(self) -> None:
        """On the loop: everything that is done by now."""
        self._woken = False
        done = self._done
        while done:
            done.popleft()()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """Let what is queued finish, then end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._drain()


def _outcome(job: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return job(), None
    except Exception as error:  # noqa: BLE001  the loop knows what it means
        return None, error
