"""A real broker in a process of its own, for tests: start, stop, kill -9, start again.

The broker is started the way a supervisor would: by its command line, on port 0, with its ports
read from the start-up lines on stderr. All that it wrote is kept in `log`, which the fixtures print
when a test fails. It is only ever ended by its process id. Nothing here speaks a protocol (see
`wire`), and nothing here imports Penstock: a test sees what a user of another language sees.

    with Broker(tmp_path) as broker:            # python -m penstock nsqd --tcp-address …:0
        peer = Peer(broker.port)
        …
        broker.kill()                           # SIGKILL, nothing flushed
        broker.start()                          # the same directory, a new port
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# Generous: a start takes well under a second, but these machines are shared.
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0

_LISTENING = re.compile(r"\b(TCP|HTTP|HTTPS): listening on (\S+):(\d+)\s*$")


class BrokerDied(AssertionError):
    """The broker ended, or never came up, where the test needs it."""


class Broker:
    """One data directory and, while started, the process that serves it.

    `verb` is Penstock's command (`nsqd` or `serve`), `args` go behind its own flags, `env` on top
    of the environment. `PENSTOCK_VERIFY=1` (the core checks its invariants) is on unless `verify`
    is False: load and memory tests switch it off.
    """

    def __init__(
        self,
        data_path: Path,
        *args: str,
        verb: str = "nsqd",
        env: Mapping[str, str] | None = None,
        verify: bool = True,
        address_flags: tuple[str, ...] = ("--tcp-address", "--http-address", "--https-address"),
    ) -> None:
        self.data_path = data_path
        self.args = list(args)
        self.verb = verb
        self.env = dict(env or {})
        self.verify = verify
        self.address_flags = address_flags
        self.ports: dict[str, int] = {}
        self._wanted_ports: dict[str, int] = {}
        self.exit_code: int | None = None
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._stderr_ended = True
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    # --- life ----------------------------------------------------------------------------------

    def command(self) -> list[str]:
        """What is executed; a flag that the test gives itself is not given twice."""
        own = ["--data-path", str(self.data_path)]
        for flag in self.address_flags:
            own += [flag, f"127.0.0.1:{self._wanted_ports.get(flag, 0)}"]
        given = {arg.lstrip("-").split("=")[0] for arg in self.args if arg.startswith("-")}
        kept: list[str] = []
        for flag, value in zip(own[::2], own[1::2], strict=True):
            if flag.lstrip("-") not in given:
                kept += [flag, value]
        return [sys.executable, "-m", "penstock", self.verb, *kept, *self.args]

    def spawn(self) -> None:
        """Start the process and read its log, without waiting for it to listen."""
        assert self._process is None, "this broker runs already"
        self.data_path.mkdir(parents=True, exist_ok=True)
        env = os.environ | ({"PENSTOCK_VERIFY": "1"} if self.verify else {}) | self.env
        self.ports = {}
        self.exit_code = None
        self._stderr_ended = False
        self._process = subprocess.Popen(
            self.command(),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(
            target=self._read_log, args=(self._process.stderr,), name="broker log", daemon=True
        )
        self._reader.start()

    def start(self) -> Self:
        """Start, and return when the broker says that it listens for TCP clients."""
        self.spawn()
        try:
            self._wait(lambda: "TCP" in self.ports, "say on which port it listens for TCP clients")
        except BrokerDied:
            self.close()
            raise
        return self

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """End it cleanly; the exit code."""
        assert self._process is not None, "this broker does not run"
        if self._process.poll() is None:
            self._process.send_signal(sig)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDied(
                f"the broker did not stop within {STOP_SECONDS_MAX:.0f} s of {sig.name} "
                f"and was killed\n{self.tail()}"
            ) from None
        return self._reap()

    def kill(self) -> None:
        """kill -9: no handler runs, nothing that is only in the process is written."""
        assert self._process is not None, "this broker does not run"
        self._process.kill()
        self._process.wait()
        self._reap()

    def restart(self, *, kill: bool = False, same_port: bool = False) -> Self:
        """Stop (or kill -9) and start again on the same directory.

        The port is a new one, unless clients are expected to find it again.
        """
        if same_port:
            self._wanted_ports = {"--tcp-address": self.port}
        if kill:
            self.kill()
        else:
            assert self.stop() == 0, f"a clean stop exits with 0, not {self.exit_code}"
        return self.start()

    def wait(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Wait for a broker that ends by itself (a refused start, a failpoint); its exit code."""
        assert self._process is not None, "this broker does not run"
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise BrokerDied(f"the broker should have ended, but runs on\n{self.tail()}") from None
        return self._reap()

    def freeze(self) -> None:
        """SIGSTOP: the process stands still and its sockets stay open (the opposite: `thaw`)."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it whatever state it is in; for fixtures."""
        if self._process is not None:
            self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- what it says --------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "this broker does not run"
        return self._process.pid

    @property
    def port(self) -> int:
        """The TCP door's port."""
        return self.ports["TCP"]

    @property
    def http_port(self) -> int:
        self._wait(lambda: "HTTP" in self.ports, "say on which port it listens for HTTP clients")
        return self.ports["HTTP"]

    @property
    def https_port(self) -> int:
        self._wait(lambda: "HTTPS" in self.ports, "say on which port it listens for HTTPS clients")
        return self.ports["HTTPS"]

    @property
    def log(self) -> str:
        """All that this broker, and those before it on this object, wrote to stderr."""
        with self._news:
            return "\n".join(self._lines)

    def tail(self, lines: int = 40) -> str:
        with self._news:
            last = self._lines[-lines:]
        return "\n".join(["--- the broker's log, its end:", *last, "---"])

    def wait_for_log(self, pattern: str) -> re.Match[str]:
        """Wait for a line that contains the regular expression, in all that was logged."""
        regex = re.compile(pattern)
        found: list[re.Match[str]] = []

        def seen() -> bool:
            for line in self._lines:
                if match := regex.search(line):
                    found.append(match)
                    return True
            return False

        self._wait(seen, f"log a line like {pattern!r}")
        return found[0]

    # --- what it costs (Linux) -----------------------------------------------------------------

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, status
        return int(found[1]) * 1024

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    # --- inside --------------------------------------------------------------------------------

    def _read_log(self, stderr: IO[str]) -> None:
        for line in stderr:
            text = line.rstrip("\n")
            listening = _LISTENING.search(text)
            with self._news:
                self._lines.append(text)
                if listening is not None:
                    self.ports[listening[1]] = int(listening[3])
                self._news.notify_all()
        with self._news:
            self._stderr_ended = True
            self._news.notify_all()

    def _wait(self, seen: Callable[[], bool], what: str) -> None:
        with self._news:
            arrived = self._news.wait_for(lambda: seen() or self._stderr_ended, START_SECONDS_MAX)
            if seen():
                return
        why = "it ended" if arrived else f"{START_SECONDS_MAX:.0f} s went by"
        raise BrokerDied(f"the broker did not {what}: {why}\n{self.tail()}")

    def _reap(self) -> int:
        assert self._process is not None and self._reader is not None
        assert self._process.stderr is not None
        self._reader.join()
        self._process.stderr.close()
        self.exit_code = self._process.returncode
        self._process = None
        return self.exit_code
