"""Counting by strides: equal to counting frame by frame, whatever the stream holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.wire import (
    OK_FRAME,
    BenchError,
    body_of,
    command_of,
    count_ok,
    count_redelivered,
    cut_whole_frames,
    fins_of,
    fins_of_ids,
    frame_bytes,
    is_uniform,
)
from penstock.protocol.nsq_client import FRAME_HEAD, HEARTBEAT, MESSAGE_HEAD, TYPE_ANSWER


def message_frame(message_id: bytes, body: bytes, attempts: int = 1) -> bytes:
    return MESSAGE_HEAD.pack(MESSAGE_HEAD.size - 4 + len(body), 2, 7, attempts, message_id) + body


def answer_frame(data: bytes, kind: int = TYPE_ANSWER) -> bytes:
    return FRAME_HEAD.pack(4 + len(data), kind) + data


IDS = st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=40)


@given(ids=IDS, body_bytes=st.integers(1, 300))
def test_a_run_of_equal_frames_gives_the_fins_that_one_by_one_would(
    ids: list[bytes], body_bytes: int
) -> None:
    frames = b"".join(message_frame(each, body_of(body_bytes)) for each in ids)
    stride = frame_bytes(body_bytes)
    assert is_uniform(frames, len(ids), stride)
    assert fins_of(frames, len(ids), stride) == fins_of_ids(ids)
    assert count_redelivered(frames, len(ids), stride) == 0


@given(ids=IDS, at=st.integers(0, 39))
def test_a_heartbeat_among_the_frames_is_never_taken_for_one(ids: list[bytes], at: int) -> None:
    frames = [message_frame(each, body_of(20)) for each in ids]
    frames.insert(at, answer_frame(HEARTBEAT))
    stream = b"".join(frames)
    stride = frame_bytes(20)
    count = len(stream) // stride
    # Only a stream that begins with whole message frames may pass, and only those of it.
    assert not is_uniform(stream[: count * stride], count, stride) or count <= at
    assert len(cut_whole_frames(stream)[0]) == len(ids) + 1


def test_redelivered_messages_are_counted() -> None:
    frames = b"".join(message_frame(b"0" * 16, b"x", attempts) for attempts in (1, 2, 1, 3))
    assert count_redelivered(frames, 4, frame_bytes(1)) == 2


@given(count=st.integers(0, 50), cut=st.integers(0, 9))
def test_only_whole_answers_count(count: int, cut: int) -> None:
    assert count_ok(OK_FRAME * count + OK_FRAME[:cut]) == count


def test_an_error_among_the_answers_voids_the_run() -> None:
    answers = OK_FRAME * 3 + answer_frame(b"E_PUB_FAILED disk full", kind=1) + OK_FRAME * 9
    with pytest.raises(BenchError, match="E_PUB_FAILED disk full"):
        count_ok(answers)


def test_an_error_that_is_not_all_here_waits_for_the_rest() -> None:
    answers = OK_FRAME * 3 + answer_frame(b"E_PUB_FAILED disk full", kind=1)
    assert count_ok(answers[:-1]) == 3


def test_an_error_frame_to_a_consumer_voids_the_run() -> None:
    with pytest.raises(BenchError, match="E_INVALID"):
        cut_whole_frames(answer_frame(b"E_INVALID cannot RDY", kind=1))


def test_a_frame_that_has_only_begun_is_left_in_the_stream() -> None:
    frame = message_frame(b"0123456789abcdef", b"body")
    frames, taken = cut_whole_frames(frame + frame[:-1])
    assert (len(frames), taken) == (1, len(frame))


def test_commands_are_those_of_the_protocol() -> None:
    assert command_of("t", b"ab", 1) == b"PUB t\n\0\0\0\2ab"
    mpub = command_of("t", b"ab", 2)
    assert mpub == b"MPUB t\n\0\0\0\x10\0\0\0\2" + b"\0\0\0\2ab" * 2


@pytest.mark.parametrize("size", [0, 1, 4, 200, 4096])
def test_a_body_has_the_size_asked_for(size: int) -> None:
    assert len(body_of(size)) == size
