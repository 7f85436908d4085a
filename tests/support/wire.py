"""NSQ's TCP protocol V2 from a client's side, for black-box tests: bytes out, frames in.

Written apart from Penstock's own codecs, so that a mistake made twice in the same way cannot pass.
The command builders put together whatever they are given, also what no sane client would send;
`Peer` is one blocking connection that reads frame by frame and fails loudly, saying what came.

    peer = Peer(broker.port)
    peer.send(sub("topic", "channel"), rdy(1))
    peer.expect_ok()
    message = peer.expect_message()
    peer.send(fin(message.id))
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.snappyframes import SnappyDecoder, SnappyEncoder

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"

# How long a frame may take before the test fails, heartbeats in between or not. Not a statement
# about speed: only longer than any stall of a shared machine, and shorter than pytest's limit.
PATIENCE_SECONDS = 25.0

NO_SUCH_ID = b"0123456789abcdef"

# --- commands ----------------------------------------------------------------------------------


def text(value: str | bytes | int) -> bytes:
    if isinstance(value, bytes):
        return value
    return str(value).encode()


def line(*words: str | bytes | int) -> bytes:
    return b" ".join(map(text, words)) + b"\n"


def sized(body: bytes, size: int | None = None) -> bytes:
    """A body behind its size, or behind another one (negative too)."""
    return struct.pack(">i", len(body) if size is None else size) + body


def identify(body: dict[str, Any] | bytes | None = None, /, **fields: Any) -> bytes:
    if not isinstance(body, bytes):
        body = json.dumps((body or {}) | fields).encode()
    return line("IDENTIFY") + sized(body)


def auth(secret: str | bytes) -> bytes:
    return line("AUTH") + sized(text(secret))


def sub(topic: str | bytes, channel: str | bytes) -> bytes:
    return line("SUB", topic, channel)


def rdy(count: int | str) -> bytes:
    return line("RDY", count)


def fin(message_id: bytes | str) -> bytes:
    return line("FIN", message_id)


def req(message_id: bytes | str, delay_ms: int | str = 0) -> bytes:
    return line("REQ", message_id, delay_ms)


def touch(message_id: bytes | str) -> bytes:
    return line("TOUCH", message_id)


def pub(topic: str | bytes, body: bytes) -> bytes:
    return line("PUB", topic) + sized(body)


def dpub(topic: str | bytes, delay_ms: int | str, body: bytes) -> bytes:
    return line("DPUB", topic, delay_ms) + sized(body)


def mpub(
    topic: str | bytes,
    bodies: Sequence[bytes],
    *,
    count: int | None = None,
    size: int | None = None,
) -> bytes:
    """`count` and `size`, where given, are announced in place of the true ones."""
    payload = struct.pack(">i", len(bodies) if count is None else count)
    payload += b"".join(map(sized, bodies))
    return line("MPUB", topic) + sized(payload, size)


CLS = line("CLS")
NOP = line("NOP")

# --- frames ------------------------------------------------------------------------------------


class Frame(NamedTuple):
    kind: int
    data: bytes

    def __str__(self) -> str:
        kind = {RESPONSE: "response", ERROR: "error", MESSAGE: "message"}.get(self.kind, self.kind)
        return f"{kind} {self.data[:200]!r}"


class Delivery(NamedTuple):
    """A message as it came."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def decode_delivery(data: bytes) -> Delivery:
    assert len(data) >= 26, f"a message frame has at least 26 bytes, this one has {len(data)}"
    timestamp_ns, attempts = struct.unpack(">qH", data[:10])
    return Delivery(timestamp_ns, attempts, data[10:26], data[26:])


class Closed(AssertionError):
    """The broker closed the connection where the test expected a frame."""


class Quiet(AssertionError):
    """Nothing came where the test expected a frame."""


# --- one connection ----------------------------------------------------------------------------


class Peer:
    """A blocking connection. It answers heartbeats and hides them unless told otherwise."""

    def __init__(
        self,
        port: int,
        *,
        magic: bytes = MAGIC,
        answer_heartbeats: bool = True,
        host: str = "127.0.0.1",
    ) -> None:
        self.answer_heartbeats = answer_heartbeats
        self._patience = PATIENCE_SECONDS
        self._socket: socket.socket = socket.create_connection((host, port), PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encode: Callable[[bytes], bytes] | None = None
        self._decode: Callable[[bytes], bytes] | None = None
        self._buffer = bytearray()
        self._eof = False
        if magic:
            self.send(magic)

    # --- out

    def send(self, *commands: bytes) -> None:
        """In one write."""
        data = b"".join(commands)
        self.send_raw(data if self._encode is None else self._encode(data))

    def send_raw(self, data: bytes) -> None:
        """Past the compression, where there is one."""
        self._socket.settimeout(self._patience)
        self._socket.sendall(data)

    def half_close(self) -> None:
        """No more from us; we go on reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Vanish with a RST instead of a FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def socket(self) -> socket.socket:
        return self._socket

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Another limit than the usual one for what is read inside."""
        before, self._patience = self._patience, seconds
        try:
            yield
        finally:
            self._patience = before

    # --- in

    def _fill(self, until: float) -> bool:
        """More bytes into the buffer; False at the end of the stream."""
        if self._eof:
            return False
        self._socket.settimeout(max(0.001, until - time.monotonic()))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            raise Quiet(f"nothing came within {self._patience} s") from None
        except ConnectionResetError:
            # A close with our bytes unread is a RST: the broker is gone all the same.
            data = b""
        except ssl.SSLEOFError:
            data = b""
        if not data:
            self._eof = True
            return False
        self._buffer += data if self._decode is None else self._decode(data)
        return True

    def read_frame(self, until: float | None = None) -> Frame | None:
        """The next frame, heartbeats included; None if the broker closed instead."""
        if until is None:
            until = time.monotonic() + self._patience
        while len(self._buffer) < 4:
            if not self._fill(until):
                if self._buffer:
                    raise Closed(f"closed inside a frame: {bytes(self._buffer)!r}")
                return None
        (size,) = struct.unpack_from(">I", self._buffer)
        assert size >= 4, f"a frame's size counts its type, so it is at least 4, not {size}"
        while len(self._buffer) < 4 + size:
            if not self._fill(until):
                raise Closed(f"closed inside a frame: {bytes(self._buffer[:200])!r}")
        (kind,) = struct.unpack_from(">I", self._buffer, 4)
        data = bytes(self._buffer[8 : 4 + size])
        del self._buffer[: 4 + size]
        assert kind in {RESPONSE, ERROR, MESSAGE}, f"no such frame type: {kind}"
        return Frame(kind, data)

    def next_frame(self) -> Frame:
        """The next frame that is not a heartbeat."""
        until = time.monotonic() + self._patience
        while True:
            frame = self.read_frame(until)
            if frame is None:
                raise Closed("the broker closed the connection")
            if self.answer_heartbeats and frame == (RESPONSE, HEARTBEAT):
                self.send(NOP)
                continue
            return frame

    # --- expectations

    def expect_response(self, data: bytes) -> None:
        frame = self.next_frame()
        assert frame == (RESPONSE, data), f"expected response {data!r}, got {frame}"

    def expect_ok(self, times: int = 1) -> None:
        for _ in range(times):
            self.expect_response(b"OK")

    def expect_json(self) -> dict[str, Any]:
        frame = self.next_frame()
        assert frame.kind == RESPONSE, f"expected a JSON response, got {frame}"
        value = json.loads(frame.data)
        assert isinstance(value, dict), value
        return value

    def expect_error(self, data: str | bytes) -> None:
        """Exactly this error, and the connection stays open (see `expect_fatal`)."""
        frame = self.next_frame()
        assert frame == (ERROR, text(data)), f"expected error {data!r}, got {frame}"

    def expect_fatal(self, data: str | bytes) -> None:
        """Exactly this error, and then the broker closes."""
        self.expect_error(data)
        self.expect_closed()

    def expect_closed(self) -> None:
        until = time.monotonic() + self._patience
        frame = self.read_frame(until)
        while self.answer_heartbeats and frame == (RESPONSE, HEARTBEAT):
            frame = self.read_frame(until)
        assert frame is None, f"expected the broker to close the connection, got {frame}"

    def expect_message(self, body: bytes | None = None) -> Delivery:
        frame = self.next_frame()
        assert frame.kind == MESSAGE, f"expected a message, got {frame}"
        delivery = decode_delivery(frame.data)
        if body is not None:
            assert delivery.body == body, f"expected body {body!r}, got {delivery}"
        return delivery

    def expect_messages(self, count: int) -> list[Delivery]:
        return [self.expect_message() for _ in range(count)]

    def expect_nothing(self, seconds: float = 0.2) -> None:
        """Nothing comes for a while. It can pass wrongly on a slow machine, never fail wrongly."""
        with self.patience(seconds):
            try:
                frame = self.next_frame()
            except Quiet:
                return
        raise AssertionError(f"expected silence, got {frame}")

    # --- the usual beginnings

    def negotiate(self, **fields: Any) -> dict[str, Any]:
        """IDENTIFY with feature negotiation, and its answer; upgrades are left to the caller."""
        self.send(identify({"feature_negotiation": True} | fields))
        return self.expect_json()

    def subscribe(self, topic: str, channel: str, ready: int | None = None) -> None:
        self.send(sub(topic, channel))
        self.expect_ok()
        if ready is not None:
            self.send(rdy(ready))

    def publish(self, topic: str, *bodies: bytes) -> None:
        """One PUB each, all OKs awaited."""
        self.send(*(pub(topic, body) for body in bodies))
        self.expect_ok(len(bodies))

    # --- upgrades, each after the broker agreed to it, and each followed by an OK in the new dress

    def start_tls(self, context: ssl.SSLContext, server_hostname: str = "localhost") -> None:
        assert not self._buffer, "the broker spoke before the handshake"
        self._socket = context.wrap_socket(self._socket, server_hostname=server_hostname)
        self.expect_ok()

    def start_snappy(self, *, compress: bool = True) -> None:
        decoder, encoder = SnappyDecoder(), SnappyEncoder(compress=compress)
        self._compressed(decoder.decode, encoder.encode)

    def start_deflate(self, level: int = 6) -> None:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

        def encode(data: bytes) -> bytes:
            return deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)

        self._compressed(inflate.decompress, encode)

    def _compressed(
        self, decode: Callable[[bytes], bytes], encode: Callable[[bytes], bytes]
    ) -> None:
        # The OK may have come in the same read as the plain answer before it.
        early, self._buffer = bytes(self._buffer), bytearray()
        self._decode, self._encode = decode, encode
        if early:
            self._buffer += decode(early)
        self.expect_ok()
