"""Drives NSQ clients of other people, each in a process of its own, all by one small dialogue.

Each client stands behind a script (`clients/*.py`, `nsqjs/client.js`) that does what its users
would: it makes the library's producer or consumer and lets it run. Script and test talk in JSON
lines; bodies are base64, so that they may be any bytes.

    argv[1]   {"role": "producer" | "consumer", "host", "port", "topic", "channel", "max_in_flight",
               "tls", "ca", "snappy", "deflate", "secret", "lookup": a name server to ask instead}
    stdin     {"do": "publish" | "mpublish" | "dpublish" | "stop", "bodies": [...], "delay_ms"}
    stdout    {"event": "ready"} · {"event": "published"} · {"event": "failed", "why"}
              {"event": "message", "body", "attempts"} · {"event": "finished", "body"}
              {"event": "closed"}

What a consumer does with a message stands in its body: one that begins with `requeue` is requeued
with 100 ms of delay at its first attempt; one that begins with `touch` is held for 1.2 s, touched,
held for 1.2 s more, then finished; all others are finished at once.
"""

from __future__ import annotations

import base64
import json
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

HERE = Path(__file__).parent
NSQJS = HERE / "nsqjs"

# Longer than any client's reconnect interval, shorter than pytest's limit.
PATIENCE_SECONDS = 40.0

PLAIN, TLS, SNAPPY, DEFLATE = "plain", "tls", "snappy", "deflate"
DRESSES = (PLAIN, TLS, SNAPPY, DEFLATE, "tls+snappy", "tls+deflate")


@dataclass(frozen=True)
class Library:
    name: str
    command: tuple[str, ...]
    dresses: tuple[str, ...]
    authorizes: bool = True

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, in words for the person who reads the skip; None if it can."""
        if self.name != "nsqjs":
            return None
        if shutil.which("node") is None or shutil.which("npm") is None:
            return "DID NOT RUN: nsqjs needs node and npm, and there is none on this machine"
        return None


LIBRARIES = {
    "gnsq": Library("gnsq", (sys.executable, str(HERE / "clients" / "gnsq_client.py")), DRESSES),
    # ansq 0.3 negotiates none of the others ("Upgrade to TLSv1 not implemented yet", and so on),
    # and never notes that it is authorized, so that it refuses its own publishes after AUTH.
    "ansq": Library(
        "ansq",
        (sys.executable, str(HERE / "clients" / "ansq_client.py")),
        dresses=(PLAIN,),
        authorizes=False,
    ),
    "nsqjs": Library("nsqjs", ("node", str(NSQJS / "client.js")), DRESSES),
}


class Client:
    """A running script: tell it what to do, wait for what it says."""

    def __init__(
        self,
        library: Library,
        role: str,
        port: int,
        topic: str,
        *,
        channel: str = "channel",
        dress: str = PLAIN,
        ca: Path | None = None,
        secret: str | None = None,
        max_in_flight: int = 50,
        lookup: str | None = None,
    ) -> None:
        worn = dress.split("+")
        job = {
            "role": role,
            "host": "127.0.0.1",
            "port": port,
            "topic": topic,
            "channel": channel,
            "max_in_flight": max_in_flight,
            "tls": TLS in worn,
            "ca": str(ca) if ca else None,
            "snappy": SNAPPY in worn,
            "deflate": DEFLATE in worn,
            "secret": secret,
            "lookup": lookup,
        }
        self.name = f"{library.name} {role}"
        self.seen: list[dict[str, Any]] = []
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._noise: list[str] = []
        self._process = subprocess.Popen(
            [*library.command, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_noise, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    # --- telling

    def tell(self, do: str, bodies: Sequence[bytes] = (), delay_ms: int = 0) -> None:
        assert self._process.stdin is not None
        encoded = [base64.b64encode(body).decode() for body in bodies]
        order = {"do": do, "bodies": encoded, "delay_ms": delay_ms}
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"{self.name} has ended by itself\n{self.noise}") from None

    def publish(self, *bodies: bytes) -> None:
        """One PUB each, answered."""
        self.tell("publish", bodies)
        self.expect("published")

    def mpublish(self, *bodies: bytes) -> None:
        self.tell("mpublish", bodies)
        self.expect("published")

    def dpublish(self, delay_ms: int, body: bytes) -> None:
        self.tell("dpublish", [body], delay_ms)
        self.expect("published")

    # --- listening

    def expect(self, event: str) -> dict[str, Any]:
        """The next event, which must be this one ("closed", a lost connection, is passed over)."""
        while True:
            said = self.next_event(f"say {event!r}")
            if said["event"] == event:
                return said
            if said["event"] != "closed":
                raise AssertionError(f"{self.name}: expected {event!r}, got {said}\n{self.noise}")

    def expect_finished(self, bodies: Sequence[bytes]) -> dict[bytes, list[int]]:
        """Wait until each of these is finished; the attempts seen of each body, in order."""
        missing = set(bodies)
        attempts: dict[bytes, list[int]] = {}
        while missing:
            said = self.next_event(
                f"finish {len(missing)} more messages, one is {next(iter(missing))!r}"
            )
            if said["event"] == "message":
                attempts.setdefault(body_of(said), []).append(said["attempts"])
            elif said["event"] == "finished":
                missing.discard(body_of(said))
            elif said["event"] == "failed":
                raise AssertionError(f"{self.name}: {said}\n{self.noise}")
        return attempts

    def next_event(self, what: str) -> dict[str, Any]:
        """Whatever it says next; `what` tells what it should do if it says nothing."""
        try:
            said = self._events.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise AssertionError(f"{self.name} did not {what}\n{self.noise}") from None
        if said is None:
            raise AssertionError(f"{self.name} ended; it should {what}\n{self.noise}")
        self.seen.append(said)
        return said

    def said_so_far(self) -> list[dict[str, Any]]:
        """What it has said and nobody has read, without waiting."""
        said = []
        while not self._events.empty():
            said.append(self.next_event("go on"))
        return said

    @property
    def noise(self) -> str:
        return "\n".join([f"--- what {self.name} wrote to stderr:", *self._noise[-40:], "---"])

    # --- ending

    def stop(self) -> None:
        """Let it close its connection and end by itself."""
        self.tell("stop")
        self._process.wait(PATIENCE_SECONDS)
        self.close()
        assert self._process.returncode == 0, f"{self.name} ended badly\n{self.noise}"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                # An order that it did not live to read; the descriptor is closed all the same.
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside

    def _read_events(self, stdout: IO[str]) -> None:
        for text in stdout:
            self._events.put(json.loads(text))
        self._events.put(None)

    def _read_noise(self, stderr: IO[str]) -> None:
        self._noise.extend(text.rstrip("\n") for text in stderr)


def body_of(said: dict[str, Any]) -> bytes:
    return base64.b64decode(said["body"])


def install_nsqjs() -> None:
    """`npm ci` in its folder: exactly the versions of the lock file, once per change of it."""
    stamp = NSQJS / "node_modules" / ".package-lock.json"
    lock = NSQJS / "package-lock.json"
    if stamp.exists() and stamp.stat().st_mtime >= lock.stat().st_mtime:
        return
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=NSQJS,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"npm ci failed in {NSQJS}:\n{done.stdout}\n{done.stderr}"
