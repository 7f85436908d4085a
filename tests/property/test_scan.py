"""The scan of NSQ's commands: whatever way the bytes come in pieces, the commands are the same.

Three things are held up to it: any chunking gives what one piece gives; what one piece gives is
what a scanner finds that reads one command at a time; and no bytes at all make it raise or hold
much more than they are themselves.
"""

import tracemalloc
from itertools import pairwise
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.nsq import Limits, scan
from tests.property.budget import budget
from tests.property.naive_scan import events, in_pieces, naive_scan, whole

LIMITS = Limits(message_size_max=40, body_size_max=120, req_timeout_ms_max=3_600_000)


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def mpub_body(bodies: list[bytes]) -> bytes:
    return sized(pack(">i", len(bodies)) + b"".join(map(sized, bodies)))


names = st.sampled_from([b"t", b"orders", b"orders#ephemeral", b"x" * 64, b"x" * 65, b"", b"b\xe4"])
ids = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda number: b"%016x" % number),
    st.integers(0, 40).map(lambda number: b"%016x" % number),
    st.sampled_from([b"0123456789abcdeg", b"0123 56789abcdef", b"012345678\nNOP\n\nx", b"short"]),
    st.sampled_from([b"0123456789abcde\r", b"0123456789\nFIN x", b"\n" * 16, b"ABCDEF0123456789"]),
)
bodies = st.binary(min_size=1, max_size=40)
numbers = st.sampled_from([b"0", b"1", b"2500", b"", b"-1", b"+1", b"1.5", b"3600001", b"9" * 25])
sizes = st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x29"])
ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b" \n", b" x\n"])


def line(*words: st.SearchStrategy[bytes] | bytes) -> st.SearchStrategy[bytes]:
    parts = [st.just(word) if isinstance(word, bytes) else word for word in words]
    return st.builds(lambda end, *got: b" ".join(got) + end, ends, *parts)


good = st.one_of(
    st.lists(ids, min_size=1, max_size=8).map(
        lambda many: b"".join(b"FIN " + one + b"\n" for one in many)
    ),
    st.lists(bodies, min_size=1, max_size=5).map(
        lambda many: b"".join(b"PUB t\n" + sized(one) for one in many)
    ),
    st.builds(bytes.__add__, line(b"PUB", names), bodies.map(sized)),
    st.builds(bytes.__add__, line(b"DPUB", names, numbers), bodies.map(sized)),
    st.builds(bytes.__add__, line(b"MPUB", names), st.lists(bodies, max_size=3).map(mpub_body)),
    st.builds(
        lambda head, many, extra: head + sized(mpub_body(many)[4:] + extra),
        line(b"MPUB", names),
        st.lists(bodies, max_size=2),
        st.binary(max_size=5),
    ),
    st.builds(bytes.__add__, line(b"IDENTIFY"), bodies.map(sized)),
    st.builds(bytes.__add__, line(b"AUTH"), bodies.map(sized)),
    line(b"FIN", ids),
    line(b"TOUCH", ids),
    line(b"REQ", ids, numbers),
    line(b"RDY", numbers),
    line(b"SUB", names, names),
    line(st.sampled_from([b"NOP", b"CLS", b"RDY", b"nop", b"", b"SUB", b"REQ", b"PUB", b"FINE"])),
)
broken = st.one_of(
    st.builds(bytes.__add__, line(st.sampled_from([b"PUB", b"MPUB"]), names), sizes),
    st.builds(bytes.__add__, line(st.sampled_from([b"IDENTIFY", b"AUTH"])), sizes),
    st.binary(max_size=30),
    st.sampled_from([b"x" * 16383 + b"\n", b"NOP" + b" " * 16380 + b"\n", b"y" * 16385]),
)
streams = st.lists(st.one_of(good, good, good, good, good, good, broken), max_size=12).map(b"".join)


@budget(300)
@given(streams)
def test_the_scan_finds_what_a_naive_one_finds(data: bytes) -> None:
    assert whole(data, LIMITS) == naive_scan(data, LIMITS)


@budget(200)
@given(st.data(), streams)
def test_any_chunking_gives_the_same_commands(draw: st.DataObject, data: bytes) -> None:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=8).map(sorted), label="cuts")
    pieces = [data[low:high] for low, high in pairwise([0, *cuts, len(data)])]
    assert in_pieces(pieces, LIMITS) == whole(data, LIMITS)[0]


@budget(60)
@given(streams.filter(lambda data: len(data) < 2000))
def test_byte_by_byte_gives_the_same_commands(data: bytes) -> None:
    assert in_pieces([data[i : i + 1] for i in range(len(data))], LIMITS) == whole(data, LIMITS)[0]


@budget(100)
@given(streams, st.binary(max_size=50))
def test_where_the_bytes_stand_makes_no_difference(data: bytes, before: bytes) -> None:
    commands, at, needed = scan(data, 0, LIMITS)
    later = scan(before + data, len(before), LIMITS)
    assert (events(later[0]), later[1] - len(before), later[2]) == (events(commands), at, needed)


hostile = st.one_of(
    st.binary(max_size=60),
    good,
    st.sampled_from([b"\n", b"FIN \n", b"NOP\n", b"RDY 1\n", b"FIN 0123456789abcdef\n", b"  \n"]),
    st.sampled_from([b"PUB t\n\0\0\0\x01x", b"\xff\n", b"PUB " + b"\xff" * 60 + b"\n", b" " * 99]),
)


@budget(40)
@given(hostile.filter(bool), st.booleans())
def test_no_bytes_make_it_raise_or_hold_much(pattern: bytes, cut: bool) -> None:
    data = pattern * (65536 // len(pattern)) + (pattern[: len(pattern) // 2] if cut else b"")
    tracemalloc.start()
    try:
        whole(data, LIMITS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 40 * len(data)
