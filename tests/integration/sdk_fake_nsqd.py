"""A scripted broker for the SDK's tests: NSQ's protocol over real sockets, in the test's own loop.

It keeps published messages per topic and gives them to whoever subscribes, under RDY, and it can be
told to misbehave. It is no model of nsqd: what the SDK must get right against a real broker is
tested against one in ``tests/integration``.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import ssl
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Self

from penstock.sdk.compression import Codec, new_codec


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", 4 + len(data), kind) + data


def message_frame(number: int, body: bytes, attempts: int = 1) -> bytes:
    return frame(2, struct.pack(">qH16s", 1_000 + number, attempts, b"%016x" % number) + body)


class FakeNsqd:
    """``async with FakeNsqd() as broker``; ``commands`` is what came, in order."""

    def __init__(self, port: int = 0, **facts: object) -> None:
        self.port = port
        self.facts: dict[str, object] = {
            "max_rdy_count": 2500,
            "msg_timeout": 60000,
            "auth_required": False,
        } | facts
        self.tls: ssl.SSLContext | None = None
        self.topics: dict[str, list[bytes]] = {}
        self.commands: list[bytes] = []
        self.identities: list[dict[str, object]] = []
        self.sessions: list[Session] = []
        self.finished: list[bytes] = []
        self.requeued: list[tuple[bytes, int]] = []
        self.touched: list[bytes] = []
        self.queue: deque[tuple[bytes, int]] = deque()  # what subscribers get: body, attempts
        self.numbers = itertools.count(1)
        self.ready_counts: list[int] = []
        # Answers a command instead of the default, if it returns bytes; b"" answers nothing.
        self.script: Callable[[Session, list[bytes], bytes], bytes | None] = lambda *_: None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Session(self), "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._server.close()
        for session in list(self.sessions):
            session.drop()
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def push(self, *bodies: bytes, attempts: int = 1) -> None:
        self.queue.extend((body, attempts) for body in bodies)
        for session in self.sessions:
            session.deliver()

    def changed(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits, woken by every command, until the condition holds; pytest's timeout bounds it."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Session(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, broker: FakeNsqd) -> None:
        self.broker = broker
        self.codec: Codec | None = None
        self.data = b""
        self.magic = False
        self.ready = 0
        self.in_flight: dict[bytes, tuple[bytes, int]] = {}
        self.subscribed = False
        self.closing = False
        self.upgrading = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.broker.sessions.append(self)
        self.broker.changed()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.broker.sessions:
            self.broker.sessions.remove(self)
        self.broker.queue.extend((b, attempts + 1) for b, attempts in self.in_flight.values())
        self.in_flight.clear()
        for session in self.broker.sessions:
            session.deliver()
        self.broker.changed()

    def drop(self) -> None:
        self.transport.abort()

    def send(self, data: bytes) -> None:
        self.transport.write(self.codec.compress(data) if self.codec else data)

    def data_received(self, data: bytes) -> None:
        self.data += self.codec.decompress(data) if self.codec else data
        if not self.magic:
            if len(self.data) < 4:
                return
            assert self.data[:4] == b"  V2"
            self.magic, self.data = True, self.data[4:]
        while not self.upgrading and self.one_command():
            pass
        self.broker.changed()

    def one_command(self) -> bool:
        line, newline, rest = self.data.partition(b"\n")
        if not newline:
            return False
        words = line.split(b" ")
        body = b""
        if words[0] in {b"PUB", b"MPUB", b"DPUB", b"IDENTIFY", b"AUTH"}:
            if len(rest) < 4 or len(rest) < 4 + struct.unpack(">I", rest[:4])[0]:
                return False
            size = struct.unpack(">I", rest[:4])[0]
            body, rest = rest[4 : 4 + size], rest[4 + size :]
        self.data = rest
        self.broker.commands.append(line)
        scripted = self.broker.script(self, words, body)
        if scripted is not None:
            if scripted:
                self.send(scripted)
            return True
        getattr(self, "on_" + words[0].decode().lower())(words, body)
        return True

    def on_identify(self, _: list[bytes], body: bytes) -> None:
        asked = json.loads(body)
        self.broker.identities.append(asked)
        features = {"tls_v1": self.broker.tls is not None and asked["tls_v1"]}
        features |= {name: asked[name] for name in ("snappy", "deflate")}
        self.send(frame(0, json.dumps(self.broker.facts | features).encode()))
        if features["tls_v1"]:
            self.upgrading = True
            self.task = asyncio.get_running_loop().create_task(self.upgrade(asked))
        else:
            self.compress(asked)

    async def upgrade(self, asked: dict[str, object]) -> None:
        assert self.broker.tls is not None
        transport = await asyncio.get_running_loop().start_tls(
            self.transport, self, self.broker.tls, server_side=True
        )
        assert transport is not None
        self.transport = transport
        self.upgrading = False
        self.send(frame(0, b"OK"))
        self.compress(asked)

    def compress(self, asked: dict[str, object]) -> None:
        for name in ("snappy", "deflate"):
            if asked[name]:
                self.codec = new_codec(name, 6)
                self.send(frame(0, b"OK"))

    def on_auth(self, _: list[bytes], body: bytes) -> None:
        if body == b"open sesame":
            self.send(frame(0, b'{"identity":"","identity_url":"","permission_count":1}'))
        else:
            self.send(frame(1, b"E_AUTH_FAILED AUTH failed"))
            self.transport.close()

    def on_pub(self, words: list[bytes], body: bytes) -> None:
        self.broker.topics.setdefault(words[1].decode(), []).append(body)
        self.send(frame(0, b"OK"))

    on_dpub = on_pub

    def on_mpub(self, words: list[bytes], body: bytes) -> None:
        count = struct.unpack(">I", body[:4])[0]
        position = 4
        for _ in range(count):
            size = struct.unpack_from(">I", body, position)[0]
            self.broker.topics.setdefault(words[1].decode(), []).append(
                body[position + 4 : position + 4 + size]
            )
            position += 4 + size
        assert position == len(body)
        self.send(frame(0, b"OK"))

    def on_sub(self, _words: list[bytes], _body: bytes) -> None:
        self.subscribed = True
        self.send(frame(0, b"OK"))

    def on_rdy(self, words: list[bytes], _: bytes) -> None:
        self.ready = int(words[1])
        self.broker.ready_counts.append(sum(session.ready for session in self.broker.sessions))
        self.deliver()

    def on_fin(self, words: list[bytes], _: bytes) -> None:
        if words[1] not in self.in_flight:
            self.send(frame(1, b"E_FIN_FAILED FIN " + words[1] + b" failed ID not in flight"))
            return
        self.broker.finished.append(self.in_flight.pop(words[1])[0])
        self.deliver()

    def on_req(self, words: list[bytes], _: bytes) -> None:
        body, attempts = self.in_flight.pop(words[1])
        self.broker.requeued.append((body, int(words[2])))
        self.broker.push(body, attempts=attempts + 1)

    def on_touch(self, words: list[bytes], _: bytes) -> None:
        self.broker.touched.append(self.in_flight[words[1]][0])

    def on_cls(self, _words: list[bytes], _body: bytes) -> None:
        self.closing = True
        self.send(frame(0, b"CLOSE_WAIT"))

    def on_nop(self, _words: list[bytes], _body: bytes) -> None:
        pass

    def deliver(self) -> None:
        frames = []
        while (
            self.subscribed
            and not self.closing
            and self.broker.queue
            and len(self.in_flight) < self.ready
        ):
            body, attempts = self.broker.queue.popleft()
            number = next(self.broker.numbers)
            self.in_flight[b"%016x" % number] = body, attempts
            frames.append(message_frame(number, body, attempts))
        if frames:
            self.send(b"".join(frames))


def in_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """A test that is a coroutine, in a loop of its own that complains about what is forgotten."""

    @functools.wraps(test)
    def run(*arguments: object, **keywords: object) -> None:
        asyncio.run(test(*arguments, **keywords), debug=True)

    return run


async def turns_until(condition: Callable[[], bool]) -> None:
    """Gives the client turns until it has noticed; for states that no event of the broker marks."""
    while not condition():  # noqa: ASYNC110 - the client under test has no event for a test to wait on
        await asyncio.sleep(0.001)
