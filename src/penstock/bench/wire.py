"""Payloads built ahead, and what came back counted by the read instead of by the message.

A bench publishes bodies of one size, so the frames that come back are one size too, and a read of
many frames is a table with a fixed stride: its columns are checked, and the ids for FIN cut out,
with strided slices, about 20 ns a message. What does not fit the stride (heartbeats, errors, a body
of another size) goes through ``penstock.protocol.nsq_client``, frame by frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from penstock.errors import OperatingError
from penstock.protocol.nsq_client import (
    FRAME_HEAD,
    ID_BYTES,
    MESSAGE_HEAD,
    OK,
    TYPE_ANSWER,
    TYPE_ERROR,
    TYPE_MESSAGE,
    FrameReader,
    encode_mpub,
    encode_pub,
)

OK_FRAME = FRAME_HEAD.pack(FRAME_HEAD.size - 4 + len(OK), TYPE_ANSWER) + OK

_ID_AT = MESSAGE_HEAD.size - ID_BYTES
_ATTEMPTS_AT = _ID_AT - 2
_FIN_OF_NOBODY = b"FIN " + b"0" * ID_BYTES + b"\n"
FIN_BYTES = len(_FIN_OF_NOBODY)


class BenchError(OperatingError):
    """The run proves nothing: the peer refused, lost or invented something, or went away."""


def body_of(size: int) -> bytes:
    """A body that looks like text, not like one repeated byte that any compressor would love."""
    words = b"".join(b"%x;" % (n * 2_654_435_761 % 4_294_967_296) for n in range(size // 4 + 1))
    return words[:size]


def command_of(topic: str, body: bytes, per_command: int) -> bytes:
    """One PUB, or one MPUB of ``per_command`` equal bodies."""
    if per_command == 1:
        return encode_pub(topic, body)
    return encode_mpub(topic, [body] * per_command)


def frame_bytes(body_bytes: int) -> int:
    """What one message frame takes on the wire."""
    return MESSAGE_HEAD.size + body_bytes


def count_ok(answers: bytes) -> int:
    """How many whole OK frames ``answers`` begins with; anything else that is whole is an error."""
    count = len(answers) // len(OK_FRAME)
    whole = count * len(OK_FRAME)
    if answers[:whole] == OK_FRAME * count:
        return count
    _refuse_other_answers(answers)
    # Nothing is wrong with the whole frames: an error frame has begun and is not all here.
    return _leading_ok(answers)


def _leading_ok(answers: bytes) -> int:
    count = 0
    while answers.startswith(OK_FRAME, count * len(OK_FRAME)):
        count += 1
    return count


def _refuse_other_answers(answers: bytes) -> None:
    _, others = FrameReader(_no_message).feed(answers)
    for kind, data in others:
        if kind != TYPE_ANSWER or data != OK:
            raise BenchError(
                f"the broker answered {data[:200]!r} where OK was expected; the run is void"
            )


def _no_message(timestamp_ns: int, attempts: int, message_id: bytes, body: bytes) -> None:
    raise BenchError(
        f"a message came to a connection that only publishes ({message_id!r}, attempt {attempts}, "
        f"{len(body)} bytes, of {timestamp_ns})"
    )


def is_uniform(frames: bytes, count: int, stride: int) -> bool:
    """Whether ``frames`` is ``count`` message frames of ``stride`` bytes and nothing else."""
    if len(frames) != count * stride:
        return False
    size_and_type = FRAME_HEAD.pack(stride - 4, TYPE_MESSAGE)
    # Size and type are eight columns; the type's and the size's upper zeros are columns as well.
    return all(
        frames[column::stride] == bytes((value,)) * count
        for column, value in enumerate(size_and_type)
    )


def fins_of(frames: bytes, count: int, stride: int) -> bytearray:
    """A FIN for each of ``count`` uniform frames, ready to send."""
    fins = bytearray(_FIN_OF_NOBODY * count)
    for column in range(ID_BYTES):
        fins[4 + column :: FIN_BYTES] = frames[_ID_AT + column :: stride]
    return fins


def count_redelivered(frames: bytes, count: int, stride: int) -> int:
    """How many of ``count`` uniform frames are not a first attempt."""
    return count - frames[_ATTEMPTS_AT + 1 :: stride].count(1)


def cut_whole_frames(stream: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Frames as (type, data) and how many bytes they took; for what does not fit the stride."""
    frames = []
    at = 0
    while len(stream) - at >= FRAME_HEAD.size:
        size, kind = FRAME_HEAD.unpack_from(stream, at)
        if kind > TYPE_MESSAGE:
            raise BenchError(f"a frame of type {kind} came; the peer does not speak NSQ's protocol")
        after = at + 4 + size
        if after > len(stream):
            break
        if kind == TYPE_ERROR:
            raise BenchError(f"the broker answered {stream[at + 8 : after]!r}; the run is void")
        frames.append((kind, stream[at + 8 : after]))
        at = after
    return frames, at


def fins_of_ids(ids: Sequence[bytes]) -> bytes:
    """A FIN for each id."""
    return b"".join(chain.from_iterable((b"FIN ", message_id, b"\n") for message_id in ids))
