"""A server under measurement: what it costs, read from the system, and how it is started and ended.

CPU is the process's own clock (all threads, those that ended too, in nanoseconds); memory, threads
and open files are its /proc entries. Nothing is asked of the server itself, so Penstock, Redis and
NATS are read with one measure. A server that a user started is observed the same way, by its pid.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from penstock.bench.wire import BenchError

START_S = 120.0
STOP_S = 60.0
_POLL_S = 0.002


@dataclass(frozen=True)
class Observed:
    """A process seen from outside."""

    pid: int

    def cpu_ns(self) -> int:
        """User and system time of all its threads so far."""
        # The clock id of another process's CPU time, as clock_getcpuclockid(3) makes it.
        try:
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        except OSError as error:
            raise BenchError(f"process {self.pid} is gone, and with it its CPU time") from error

    def rss_bytes(self) -> int:
        """Resident memory now."""
        return self._status_bytes("VmRSS")

    def rss_peak_bytes(self) -> int:
        """The most resident memory it ever had."""
        return self._status_bytes("VmHWM")

    def open_files(self) -> int:
        """Descriptors it has open, sockets included."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _status_bytes(self, key: str) -> int:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError as error:
            raise BenchError(f"process {self.pid} is gone: {error}") from error
        found = re.search(rf"^{key}:\s+(\d+) kB", status, re.MULTILINE)
        if found is None:
            raise BenchError(f"the system does not say the {key} of process {self.pid}")
        return int(found[1]) * 1024


class ServerProcess:
    """A server of our own: started, waited for, ended. ``with`` ends it, whatever happened."""

    def __init__(
        self, argv: Sequence[str], *, ready: str, log: Path, environment: dict[str, str]
    ) -> None:
        self._ready = re.compile(ready)
        self._log = log
        self.started_at_ns = time.monotonic_ns()
        self._log_from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - a server that this bench measures
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | environment,
                start_new_session=True,  # a Ctrl-C ends the bench, which then ends the server
            )
        self.observed = Observed(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def wait_ready(self) -> re.Match[str]:
        """Until its log says that it is up; the match of the line that says it."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if found := self._ready.search(self._said()):
                return found
            if self._process.poll() is not None:
                raise BenchError(f"the server ended as it started{self._last_words()}")
            time.sleep(_POLL_S)
        raise BenchError(f"the server was not up after {START_S:.0f} s{self._last_words()}")

    def stop(self) -> None:
        """The clean end: SIGTERM, and its exit code must be 0."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the server did not stop in {STOP_S:.0f} s") from error
        if code:
            raise BenchError(f"the server stopped with exit code {code}{self._last_words()}")

    def kill(self) -> None:
        """The unclean end: SIGKILL."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_from)
            return log.read().decode("utf-8", "replace")

    def _last_words(self) -> str:
        lines = self._said().strip().splitlines()[-12:]
        return "; its last words:\n  " + "\n  ".join(lines) if lines else " and said nothing"


def disk_bytes(directory: Path) -> int:
    """What the directory's files take on the disk (blocks in use, not sizes)."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).lstat().st_blocks * 512
            except FileNotFoundError:
                continue  # a file that the server replaced as we looked
    return total
