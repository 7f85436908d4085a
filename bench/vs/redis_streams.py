"""Redis Streams: XADD in pipelines, consumer groups with XREADGROUP and XACK in batches.

`synced` is `appendfsync always` (Redis syncs once a turn of its loop, before it answers), `written`
is `appendfsync everysec`. Rewriting the append-only file is off, as nothing of ours is compacted
either. Answers are counted by their lines: XADD answers two, and no body contains a line break.
"""

from __future__ import annotations

import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.vs.peer import Consuming, Publishing, Running, free_port, started
from penstock.bench.fleet import Load, Outcome
from penstock.bench.histogram import Histogram
from penstock.bench.link import SILENCE_S, Address, receive
from penstock.bench.schedule import DUE_AT_BYTES
from penstock.bench.wire import BenchError

_READY = r"Ready to accept connections"
_FSYNC = {"synced": "always", "written": "everysec"}
_READ_COUNT_MAX = 500
_READ_BYTES_MAX = 256 * 1024
_LINES_PER_ENTRY = 8  # *2, $n, id, *2, $1, b, $n, body
_LINES_OF_HEADER = 5  # *1, *2, $n, stream, *count
_ENTRY_ID = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n")
_DUE_AT = re.compile(rb"\$1\r\nb\r\n\$\d+\r\n([0-9a-f]{%d})" % DUE_AT_BYTES)
_ENTRIES = re.compile(rb"(?::\d+\r\n)*\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")


class RedisStreams:
    """A stream is the topic, a consumer group the channel."""

    name = "redis"
    single_publishes = True

    def version(self) -> str:
        argv = [_executable(), "--version"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return re.sub(r"^.*v=(\S+).*$", r"\1", shown.strip())

    @contextmanager
    def server(self, folder: Path, durability: str) -> Iterator[Running]:
        port = free_port()
        argv = [_executable(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
        argv += ["--save", "", "--appendonly", "yes", "--appendfsync", _FSYNC[durability]]
        argv += ["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]
        with started(argv, ready=_READY, folder=folder) as server:
            yield Running(("127.0.0.1", port), server.observed)

    def prepare(self, address: Address, topic: str, channels: Sequence[str]) -> None:
        with _open(address) as link:
            for channel in channels:
                link.sendall(command("XGROUP", "CREATE", topic, channel, "0", "MKSTREAM"))
                answer = receive(link, 4096)
                if answer != b"+OK\r\n":
                    raise BenchError(f"Redis answered {answer!r} to XGROUP CREATE")

    def publish(self, address: Address, topic: str, publishing: Publishing) -> Sequence[Load]:
        return [publishing.load(address, (topic,), RedisLine)]

    def consume(self, address: Address, topic: str, consuming: Consuming) -> Sequence[Load]:
        return [RedisConsumeLoad(address, topic, consuming)]


class RedisLine:
    """XADD, as many in a pipeline as a command has messages; an error line ends the run."""

    def __init__(self, address: Address, per_command: int) -> None:
        self.link = _open(address)
        self._lines_per_command = 2 * per_command
        self._lines = 0

    def command(self, topic: str, body: bytes, per_command: int) -> bytes:
        return command("XADD", topic, "*", "b", body) * per_command

    def feed(self, data: bytes) -> int:
        if data.startswith(b"-") or b"\n-" in data:
            raise BenchError(f"Redis answered {data[:200]!r}")
        self._lines += data.count(b"\n")
        commands, self._lines = divmod(self._lines, self._lines_per_command)
        return commands


def command(*words: str | bytes) -> bytes:
    """A command in Redis's protocol."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


@dataclass(frozen=True)
class RedisConsumeLoad:
    """XREADGROUP, and one XACK for what it brought, sent together with the next."""

    address: Address
    topic: str
    consuming: Consuming

    def open(self) -> RedisConsuming:
        return RedisConsuming(self)


class RedisConsuming:
    """Every group's connections in one loop."""

    def __init__(self, load: RedisConsumeLoad) -> None:
        self._consuming = load.consuming
        self._latency = Histogram()
        latency = self._latency if load.consuming.timed else None
        self._readers = [
            _Reader(load, channel, str(number), latency)
            for channel in load.consuming.channels
            for number in range(load.consuming.connections)
        ]

    def run(self) -> Outcome:
        started_at_ns = time.monotonic_ns()
        poll = select.epoll()
        at_work = {reader.link.fileno(): reader for reader in self._readers}
        left = dict.fromkeys(self._consuming.channels, self._consuming.messages)
        for fileno, reader in at_work.items():
            poll.register(fileno, select.EPOLLIN)
            reader.ask()
        while any(count > 0 for count in left.values()):
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise BenchError(f"Redis sent nothing for {SILENCE_S:.0f} s; {left} are missing")
            for fileno, _ in ready:
                reader = at_work[fileno]
                left[reader.group] -= reader.on_data()
        ended_at_ns = time.monotonic_ns()
        poll.close()
        received = sum(reader.received for reader in self._readers)
        return Outcome(received, started_at_ns, ended_at_ns, self._latency)


class _Reader:
    """One consumer of a group: a read is out at all times, acknowledgements travel with it."""

    def __init__(
        self, load: RedisConsumeLoad, group: str, name: str, latency: Histogram | None
    ) -> None:
        self.link = _open(load.address)
        self.group = group
        self.received = 0
        self._latency = latency
        self._stream = bytearray()
        self._topic = load.topic
        count = str(min(load.consuming.credit, _READ_COUNT_MAX))
        self._ask = command(
            *("XREADGROUP", "GROUP", group, name, "COUNT", count),
            *("BLOCK", "1000", "STREAMS", load.topic, ">"),
        )

    def ask(self) -> None:
        self.link.sendall(self._ask)

    def on_data(self) -> int:
        """Take in a read; how many entries it completed."""
        self._stream += receive(self.link, _READ_BYTES_MAX)
        head = _ENTRIES.match(self._stream)
        if head is None:
            if self._stream.endswith(b"*-1\r\n"):  # nothing came while it was blocked
                self._stream.clear()
                self.ask()
            elif self._stream.startswith(b"-"):
                raise BenchError(f"Redis answered {bytes(self._stream[:200])!r}")
            return 0
        count = int(head[1])
        if self._stream.count(b"\n", head.end()) < count * _LINES_PER_ENTRY:
            return 0
        ids: list[bytes] = _ENTRY_ID.findall(self._stream, head.end())
        if len(ids) != count:
            raise BenchError(f"{len(ids)} ids were found in {count} entries")
        if self._latency is not None:
            now_ns = time.monotonic_ns()
            for due_at in _DUE_AT.findall(self._stream, head.end()):
                self._latency.record(now_ns - int(due_at, 16))
        self._stream.clear()
        # The next read is asked for in the same write, as a client with a pipeline does.
        self.link.sendall(command("XACK", self._topic, self.group, *ids) + self._ask)
        self.received += count
        return count


def _open(address: Address) -> socket.socket:
    link = socket.create_connection(address, timeout=SILENCE_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def _executable() -> str:
    found = shutil.which("redis-server")
    if found is None:
        raise BenchError(
            "redis-server is not on the PATH; pip install -r bench/vs/requirements.txt"
        )
    return found
