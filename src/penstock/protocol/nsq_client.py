"""NSQ's protocol V2 as a client speaks it: commands to bytes, and what the broker sends to values.

The SDK stands on this; the broker reads the same wire with ``penstock.protocol.nsq``. Everything
here is bytes in, values out: no socket, no clock, no state but the unfinished frame that a reader
keeps. Delivery is the hot path, so a ``FrameReader`` takes all that one socket read brought and
makes the caller's message objects in one flat scan; answers and errors, which are few, come as
plain pairs. However the bytes are cut into reads, the same frames come out, in the same order of
each kind.

A frame (big-endian)::

    u32 size of what follows | u32 type | data
    type 0, answer    data: OK, _heartbeat_, CLOSE_WAIT, or JSON after IDENTIFY and AUTH
    type 1, error     data: "E_CODE explanation"
    type 2, message   data: i64 publish timestamp, ns | u16 attempts | 16 characters of id | body

A command is a line of words, and for some a u32 size and a body (MPUB: size, count, then each
message behind a size of its own).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from struct import Struct
from typing import Generic, TypeVar

from penstock.errors import PeerError

MAGIC = b"  V2"
NOP = b"NOP\n"
CLS = b"CLS\n"

OK = b"OK"
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"

TYPE_ANSWER = 0
TYPE_ERROR = 1
TYPE_MESSAGE = 2

ID_BYTES = 16
MESSAGE_HEAD = Struct(">IIqH16s")  # size, type, timestamp, attempts, id
FRAME_HEAD = Struct(">II")  # size, type
MESSAGE_SIZE_MIN = MESSAGE_HEAD.size - 4  # a frame's size does not count itself

# The largest frame a broker may announce. nsqd's messages end at 1 MiB unless someone raised it;
# what lies above this is not NSQ at all (the first bytes of an HTTP answer read as a size of 1.2
# GB).
FRAME_BYTES_MAX = 256 * 1024 * 1024

_SIZE = Struct(">I")
_pack_size = _SIZE.pack

M = TypeVar("M")

Scalar = str | int | bool


class FrameReader(Generic[M]):
    """Cuts a stream into frames.

    ``new_message(timestamp_ns, attempts, id, body)`` makes what stands for a message.
    """

    __slots__ = ("_new_message", "_parts", "_have", "_need")

    def __init__(self, new_message: Callable[[int, int, bytes, bytes], M]) -> None:
        self._new_message = new_message
        self._parts: list[bytes] = []  # an unfinished frame, as it came
        self._have = 0
        self._need = 0  # bytes that the unfinished frame takes before a scan can go on

    def feed(self, data: bytes) -> tuple[list[M], list[tuple[int, bytes]]]:
        """Messages, and (type, data) of all other frames, that ``data`` completes."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return [], []
            data = b"".join(self._parts)
            self._parts.clear()

        messages: list[M] = []
        others: list[tuple[int, bytes]] = []
        new_message = self._new_message
        unpack = MESSAGE_HEAD.unpack_from
        position = 0
        end = len(data)
        last_head = end - MESSAGE_HEAD.size  # the last place where a whole message head can begin
        while position <= last_head:
            # For a frame that is no message the last three values are bytes of what follows:
            # unused.
            size, kind, timestamp_ns, attempts, message_id = unpack(data, position)
            after = position + 4 + size
            if kind != TYPE_MESSAGE or size < MESSAGE_SIZE_MIN or after > end:
                if not self._complete(size, kind, end - position):
                    break
                others.append((kind, data[position + 8 : after]))
            else:
                messages.append(
                    new_message(timestamp_ns, attempts, message_id, data[position + 34 : after])
                )
            position = after

        # Fewer bytes are left than a message's head has: short answers, or the start of a frame.
        while end - position >= FRAME_HEAD.size:
            size, kind = FRAME_HEAD.unpack_from(data, position)
            if not self._complete(size, kind, end - position):
                break
            after = position + 4 + size
            others.append((kind, data[position + 8 : after]))
            position = after

        if position < end:
            self._keep(data[position:])
        return messages, others

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return self._have if self._parts else 0

    def _complete(self, size: int, kind: int, available: int) -> bool:
        """Whether the frame is all there; it must be one that the protocol knows."""
        _check_head(size, kind)
        return size + 4 <= available

    def _keep(self, rest: bytes) -> None:
        self._parts.append(rest)
        self._have = len(rest)
        self._need = 4
        if self._have >= FRAME_HEAD.size:
            self._need += _SIZE.unpack_from(rest)[0]
        else:
            self._need = FRAME_HEAD.size  # type and size are checked before a body is waited for


def cut_frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """(type, data, what follows) of the first frame that is no message, if it is all there.

    For the handshake only: behind its answers the stream may change its encryption or compression,
    so not a byte more may be looked at.
    """
    if len(data) < FRAME_HEAD.size:
        return None
    size, kind = FRAME_HEAD.unpack_from(data)
    _check_head(size, kind)
    if kind == TYPE_MESSAGE:
        raise PeerError("E_BAD_FRAME", "the peer sent a message before it was asked for any")
    after = 4 + size
    return (kind, data[8:after], data[after:]) if after <= len(data) else None


def _check_head(size: int, kind: int) -> None:
    if kind > TYPE_MESSAGE or size > FRAME_BYTES_MAX:
        raise PeerError(
            "E_BAD_FRAME",
            f"the peer sent a frame of type {kind} and {size} bytes, which is not NSQ's protocol; "
            "check that the address is a broker's TCP port (4150), not its HTTP port",
        )
    if size < (MESSAGE_SIZE_MIN if kind == TYPE_MESSAGE else 4):
        raise PeerError("E_BAD_FRAME", f"the peer sent a frame of type {kind} and {size} bytes")


def encode_identify(settings: Mapping[str, Scalar]) -> bytes:
    """IDENTIFY with what the client asks for."""
    body = json.dumps(settings, separators=(",", ":")).encode()
    return b"IDENTIFY\n" + _pack_size(len(body)) + body


def decode_answer(data: bytes) -> dict[str, Scalar]:
    """The JSON object that answers IDENTIFY and AUTH."""
    try:
        values = json.loads(data)
    except ValueError as error:
        raise PeerError("E_BAD_ANSWER", f"the peer answered {data[:80]!r}, not JSON") from error
    if not isinstance(values, dict):
        raise PeerError("E_BAD_ANSWER", f"the peer answered {data[:80]!r}, not a JSON object")
    return {key: value for key, value in values.items() if isinstance(value, Scalar)}


def decode_error(data: bytes) -> tuple[str, str]:
    """An error frame's code and explanation."""
    code, _, explanation = data.decode("utf-8", "replace").partition(" ")
    return code, explanation


def encode_auth(secret: str) -> bytes:
    """AUTH with the secret that the broker's auth server knows."""
    body = secret.encode()
    return b"AUTH\n" + _pack_size(len(body)) + body


def encode_sub(topic: str, channel: str) -> bytes:
    """SUB: from now on this connection is a consumer of the channel."""
    return f"SUB {topic} {channel}\n".encode()


def encode_rdy(count: int) -> bytes:
    """RDY: how many messages may be in flight on this connection."""
    return b"RDY %d\n" % count


def encode_fin(message_id: bytes) -> bytes:
    """FIN: the message is done with."""
    return b"FIN " + message_id + b"\n"


def encode_req(message_id: bytes, delay_ms: int) -> bytes:
    """REQ: deliver the message again after a delay."""
    return b"REQ %b %d\n" % (message_id, delay_ms)


def encode_touch(message_id: bytes) -> bytes:
    """TOUCH: the message is still being worked on, give it another timeout."""
    return b"TOUCH " + message_id + b"\n"


def encode_pub(topic: str, body: bytes) -> bytes:
    """PUB of one message."""
    return b"PUB %b\n%b%b" % (topic.encode(), _pack_size(len(body)), body)


def encode_dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    """DPUB of one message, delivered after a delay."""
    return b"DPUB %b %d\n%b%b" % (topic.encode(), delay_ms, _pack_size(len(body)), body)


def encode_mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB of several messages, kept all or none."""
    each = chain.from_iterable(zip(map(_pack_size, map(len, bodies)), bodies))
    payload_bytes = mpub_bytes(bodies)
    head = b"MPUB %b\n%b%b" % (topic.encode(), _pack_size(payload_bytes), _pack_size(len(bodies)))
    return b"".join(chain((head,), each))


def mpub_bytes(bodies: Iterable[bytes]) -> int:
    """The size that an MPUB of these bodies announces (a broker bounds it)."""
    sizes = list(map(len, bodies))
    return 4 + 4 * len(sizes) + sum(sizes)
