"""The client side of NSQ's wire: commands as nsqd reads them, frames however they are cut."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PeerError
from penstock.protocol import nsq_client as wire

Parsed = tuple[int, int, bytes, bytes]


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", 4 + len(data), kind) + data


def reader() -> wire.FrameReader[Parsed]:
    return wire.FrameReader(lambda *values: values)


answers = st.tuples(st.sampled_from([0, 1]), st.binary(max_size=60))
deliveries = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65535),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=80),
)


@given(st.lists(answers | deliveries, max_size=20), st.lists(st.integers(1, 90), max_size=60))
def test_any_chunking_gives_the_same_frames(
    items: list[tuple[int, bytes] | Parsed], cuts: list[int]
) -> None:
    stream = b""
    for item in items:
        if len(item) == 2:
            stream += frame(item[0], item[1])
        else:
            stream += frame(2, struct.pack(">qH16s", *item[:3]) + item[3])
    subject = reader()
    messages: list[Parsed] = []
    others: list[tuple[int, bytes]] = []
    while stream:
        size = cuts.pop() if cuts else len(stream)
        more_messages, more_others = subject.feed(stream[:size])
        messages += more_messages
        others += more_others
        stream = stream[size:]
    assert messages == [item for item in items if len(item) == 4]
    assert others == [item for item in items if len(item) == 2]
    assert subject.unfinished_bytes == 0


def test_a_frame_cut_byte_by_byte_is_kept_until_it_is_whole() -> None:
    subject = reader()
    data = frame(2, struct.pack(">qH16s", 5, 1, b"0123456789abcdef") + b"body")
    for byte in data[:-1]:
        assert subject.feed(bytes([byte])) == ([], [])
    assert subject.unfinished_bytes == len(data) - 1
    assert subject.feed(data[-1:]) == ([(5, 1, b"0123456789abcdef", b"body")], [])


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        struct.pack(">II", 10, 3),
        struct.pack(">II", 3, 0),
        struct.pack(">II", 29, 2),
        struct.pack(">II", 0xFFFFFFFF, 0),
        struct.pack(">II", wire.FRAME_BYTES_MAX + 1, 2),
    ],
)
def test_what_is_not_nsq_is_refused_before_anything_is_waited_for(data: bytes) -> None:
    with pytest.raises(PeerError):
        reader().feed(data)
    with pytest.raises(PeerError):
        reader().feed(data + bytes(100))
    with pytest.raises(PeerError):
        wire.cut_frame(data)


def test_a_http_answer_is_told_apart() -> None:
    with pytest.raises(PeerError, match="4150"):
        wire.cut_frame(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@given(st.lists(answers, max_size=4), st.binary(max_size=20))
def test_cut_frame_takes_one_frame_and_nothing_behind_it(
    items: list[tuple[int, bytes]], rest: bytes
) -> None:
    stream = b"".join(frame(*item) for item in items)
    for item in items:
        cut = wire.cut_frame(stream + rest)
        assert cut is not None
        assert cut[:2] == item
        stream = cut[2][: len(cut[2]) - len(rest)]
    assert stream == b""


def test_cut_frame_waits_for_the_rest_and_refuses_messages() -> None:
    whole = frame(0, b"OK")
    assert all(wire.cut_frame(whole[:size]) is None for size in range(len(whole)))
    with pytest.raises(PeerError, match="before it was asked"):
        wire.cut_frame(frame(2, bytes(26)))


def test_commands_are_what_nsqd_reads() -> None:
    assert wire.encode_identify({"a": 1}) == b'IDENTIFY\n\x00\x00\x00\x07{"a":1}'
    assert wire.encode_auth("key") == b"AUTH\n\x00\x00\x00\x03key"
    assert wire.encode_sub("t", "c#ephemeral") == b"SUB t c#ephemeral\n"
    assert wire.encode_rdy(17) == b"RDY 17\n"
    assert wire.encode_fin(b"0123456789abcdef") == b"FIN 0123456789abcdef\n"
    assert wire.encode_req(b"0123456789abcdef", 250) == b"REQ 0123456789abcdef 250\n"
    assert wire.encode_touch(b"0123456789abcdef") == b"TOUCH 0123456789abcdef\n"
    assert wire.encode_pub("t", b"body") == b"PUB t\n\x00\x00\x00\x04body"
    assert wire.encode_dpub("t", 99, b"body") == b"DPUB t 99\n\x00\x00\x00\x04body"


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=20))
def test_mpub_says_its_sizes(bodies: list[bytes]) -> None:
    command = wire.encode_mpub("topic", bodies)
    line, _, rest = command.partition(b"\n")
    size, count = struct.unpack_from(">II", rest)
    assert line == b"MPUB topic"
    assert size == len(rest) - 4 == wire.mpub_bytes(bodies)
    assert count == len(bodies)
    found, position = [], 8
    for _ in range(count):
        length = struct.unpack_from(">I", rest, position)[0]
        found.append(rest[position + 4 : position + 4 + length])
        position += 4 + length
    assert found == bodies
    assert position == len(rest)


def test_answers_and_errors() -> None:
    assert wire.decode_answer(b'{"a":1,"b":"x","c":true,"d":[1]}') == {"a": 1, "b": "x", "c": True}
    assert wire.decode_error(b"E_BAD_TOPIC PUB topic name") == ("E_BAD_TOPIC", "PUB topic name")
    assert wire.decode_error(b"E_INVALID") == ("E_INVALID", "")
    for wrong in (b"OK", b"[1]", b"\xff"):
        with pytest.raises(PeerError, match="not"):
            wire.decode_answer(wrong)
