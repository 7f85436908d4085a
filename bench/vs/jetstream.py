"""NATS JetStream: a file stream, acknowledged publishes, pull consumers with explicit acks.

`synced` is `sync_interval: always`, `written` a sync every 2 s. A batch is either 200 publishes
whose acknowledgements are awaited together (``NatsJetStream``, the usual way), or one atomic batch
(``NatsAtomicBatch``, since 2.12), which is what an MPUB is.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.vs.peer import Consuming, Publishing, Running, started
from penstock.bench.fleet import Load, Outcome
from penstock.bench.histogram import Histogram
from penstock.bench.link import SILENCE_S, Address, receive
from penstock.bench.schedule import DUE_AT_BYTES
from penstock.bench.wire import BenchError

_READY = r"client connections on (\S+):(\d+)[\s\S]*Server is ready"
_SYNC = {"synced": "always", "written": "2s"}
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":0}\r\n'
_READ_BYTES_MAX = 256 * 1024
_BATCHES_IN_TURN = 16  # more than are ever in flight, so that no batch id is used twice at once
_STREAM = "S"


class NatsJetStream:
    """A stream with one subject is the topic, a durable pull consumer the channel."""

    name = "nats"
    single_publishes = True

    def version(self) -> str:
        argv = [_executable(), "--version"]
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return shown.strip().removeprefix("nats-server: v")

    @contextmanager
    def server(self, folder: Path, durability: str) -> Iterator[Running]:
        config = folder / "nats.conf"
        config.write_text(
            'listen: "127.0.0.1:-1"\nping_interval: "10m"\nwrite_deadline: "60s"\n'
            f'jetstream {{ store_dir: "{folder / "data"}", sync_interval: {_SYNC[durability]} }}\n'
        )
        with started([_executable(), "-c", str(config)], ready=_READY, folder=folder) as server:
            said = server.wait_ready()
            yield Running((said[1], int(said[2])), server.observed)

    def prepare(self, address: Address, topic: str, channels: Sequence[str]) -> None:
        stream = {"name": _STREAM, "subjects": [topic], "storage": "file", "allow_atomic": True}
        link, inbox = _open(address)
        with link:
            _request(link, inbox, f"$JS.API.STREAM.CREATE.{_STREAM}", stream)
            for channel in channels:
                config = {
                    "durable_name": channel,
                    "ack_policy": "explicit",
                    "deliver_policy": "all",
                    "max_ack_pending": 10_000,
                    "ack_wait": 60_000_000_000,
                }
                wanted = {"stream_name": _STREAM, "config": config}
                _request(link, inbox, f"$JS.API.CONSUMER.CREATE.{_STREAM}.{channel}", wanted)

    def publish(self, address: Address, topic: str, publishing: Publishing) -> Sequence[Load]:
        return [publishing.load(address, (topic,), NatsLine)]

    def consume(self, address: Address, topic: str, consuming: Consuming) -> Sequence[Load]:
        return [NatsConsumeLoad(address, topic, consuming)]


class NatsAtomicBatch(NatsJetStream):
    """The same, publishing in atomic batches; a worker a connection, to keep batch ids apart."""

    name = "nats-batch"
    single_publishes = False

    def publish(self, address: Address, topic: str, publishing: Publishing) -> Sequence[Load]:
        share = publishing.messages // publishing.connections
        one = replace(publishing, connections=1, messages=share)
        return [
            one.load(address, (topic,) * _BATCHES_IN_TURN, AtomicBatchLine)
            for _ in range(publishing.connections)
        ]


class NatsLine:
    """PUB with a reply subject, as many as a command has messages, each acknowledged.

    An acknowledgement is a MSG line and a line of JSON.
    """

    def __init__(self, address: Address, per_command: int) -> None:
        self.link, self._inbox = _open(address)
        self._lines_per_command = 2 * self.acks_of(per_command)
        self._lines = 0

    def acks_of(self, per_command: int) -> int:
        """How many acknowledgements answer a command."""
        return per_command

    def command(self, topic: str, body: bytes, per_command: int) -> bytes:
        one = b"PUB %b %b %d\r\n%b\r\n" % (topic.encode(), self._inbox, len(body), body)
        return one * per_command

    def feed(self, data: bytes) -> int:
        if b'"error"' in data or b"-ERR" in data:
            raise BenchError(f"NATS answered {data[:300]!r}")
        data = _without_ping(self.link, data)
        self._lines += data.count(b"\n")
        commands, self._lines = divmod(self._lines, self._lines_per_command)
        return commands


class AtomicBatchLine(NatsLine):
    """HPUBs with one batch id, of which the last commits and is acknowledged."""

    _numbers = itertools.count()

    def acks_of(self, per_command: int) -> int:
        return 1

    def command(self, topic: str, body: bytes, per_command: int) -> bytes:
        batch = f"{os.getpid():x}-{next(self._numbers)}"
        return b"".join(
            self._one(topic, body, batch, number, per_command)
            for number in range(1, per_command + 1)
        )

    def _one(self, topic: str, body: bytes, batch: str, number: int, last: int) -> bytes:
        header = f"NATS/1.0\r\nNats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {number}\r\n"
        if number == last:
            header += "Nats-Batch-Commit: 1\r\n"
        head = (header + "\r\n").encode()
        reply = self._inbox + b" " if number == last else b""
        line = b"HPUB %b %b%d %d\r\n" % (topic.encode(), reply, len(head), len(head) + len(body))
        return line + head + body + b"\r\n"


@dataclass(frozen=True)
class NatsConsumeLoad:
    """Pull requests that keep ``credit`` messages asked for, each message acknowledged."""

    address: Address
    topic: str
    consuming: Consuming

    def open(self) -> NatsConsuming:
        return NatsConsuming(self)


class NatsConsuming:
    """Every consumer's connections in one loop."""

    def __init__(self, load: NatsConsumeLoad) -> None:
        self._consuming = load.consuming
        self._latency = Histogram()
        self._pullers = [
            _Puller(load.address, channel, load.consuming, self._latency)
            for channel in load.consuming.channels
            for _ in range(load.consuming.connections)
        ]

    def run(self) -> Outcome:
        started_at_ns = time.monotonic_ns()
        poll = select.epoll()
        at_work = {puller.link.fileno(): puller for puller in self._pullers}
        left = dict.fromkeys(self._consuming.channels, self._consuming.messages)
        for fileno, puller in at_work.items():
            poll.register(fileno, select.EPOLLIN)
            puller.ask(self._consuming.credit)
        while any(count > 0 for count in left.values()):
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise BenchError(f"NATS sent nothing for {SILENCE_S:.0f} s; {left} are missing")
            for fileno, _ in ready:
                puller = at_work[fileno]
                left[puller.channel] -= puller.on_data()
        ended_at_ns = time.monotonic_ns()
        poll.close()
        received = sum(puller.received for puller in self._pullers)
        return Outcome(received, started_at_ns, ended_at_ns, self._latency)


class _Puller:
    """One connection: asks for half of its credit again when half has come."""

    def __init__(
        self, address: Address, channel: str, consuming: Consuming, latency: Histogram
    ) -> None:
        self.link, self._inbox = _open(address)
        self._latency = latency if consuming.timed else None
        self.channel = channel
        self.received = 0
        self._half = max(1, consuming.credit // 2)
        self._due = consuming.credit  # messages asked for and not here yet
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.{channel}".encode()
        self._stream = b""
        # A whole message: its line, perhaps headers, the body, a line break.
        self._message = re.compile(
            rb"H?MSG \S+ \d+ (\S+) (?:\d+ )?\d+\r\n(?:NATS/1\.0\r\n(?:[^\r]+\r\n)+\r\n)?"
            rb"([^\r]{%d})\r\n" % consuming.body_bytes
        )

    def ask(self, count: int) -> None:
        self.link.sendall(self._request_of(count))

    def on_data(self) -> int:
        """Take in a read; how many messages it completed."""
        self._stream = _without_ping(self.link, self._stream + receive(self.link, _READ_BYTES_MAX))
        replies = []
        end = 0
        for found in self._message.finditer(self._stream):
            if found.start() != end:
                raise BenchError(f"NATS sent {self._stream[end : found.start()][:200]!r}")
            replies.append(found[1])
            end = found.end()
            if self._latency is not None:
                due_at = found[2][:DUE_AT_BYTES]
                self._latency.record(time.monotonic_ns() - int(due_at, 16))
        self._stream = self._stream[end:]
        acks = b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies])
        self._due -= len(replies)
        if self._due <= self._half:
            acks += self._request_of(self._half)
            self._due += self._half
        self.link.sendall(acks)
        self.received += len(replies)
        return len(replies)

    def _request_of(self, count: int) -> bytes:
        body = b'{"batch":%d}' % count
        return b"PUB %b %b %d\r\n%b\r\n" % (self._subject, self._inbox, len(body), body)


def _open(address: Address) -> tuple[socket.socket, bytes]:
    """A connection and the subject on which answers come to it alone."""
    link = socket.create_connection(address, timeout=SILENCE_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _read_line(link)  # INFO
    inbox = b"_INBOX.%x" % random.getrandbits(64)
    link.sendall(_CONNECT + b"SUB %b 1\r\nPING\r\n" % inbox)
    answer = _read_line(link)
    if answer != b"PONG\r\n":
        raise BenchError(f"NATS answered {answer!r} to PING")
    return link, inbox


def _without_ping(link: socket.socket, data: bytes) -> bytes:
    """The server asks a second or two into a connection whether the client lives; bodies have no
    such line."""
    if b"PING\r\n" not in data:
        return data
    link.sendall(b"PONG\r\n")
    return data.replace(b"PING\r\n", b"")


def _read_line(link: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += receive(link, 1)
    return line


def _request(link: socket.socket, inbox: bytes, subject: str, what: Mapping[str, object]) -> None:
    body = json.dumps(what).encode()
    link.sendall(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(body), body))
    _read_line(link)  # MSG
    answer = _read_line(link)
    if b'"error"' in answer:
        raise BenchError(f"NATS answered {answer!r} to {subject}")


def _executable() -> str:
    found = shutil.which("nats-server")
    if found is None:
        raise BenchError("nats-server is not on the PATH; pip install -r bench/vs/requirements.txt")
    return found
