"""Blocks as bytes: what goes in comes out, and nothing that was not written whole does."""

import struct
from array import array
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptionError
from penstock.protocol.block import (
    BRIEF,
    DELAY_LANE,
    FLAG_CODEC,
    FRAME_HEAD_BYTES,
    HEADER,
    HEADER_BYTES,
    NUMBER_MASK,
    STEP,
    Block,
    decode,
    decode_run,
    encode,
    form_frames,
    gather,
    length_of,
    with_attempts,
)
from tests.support.blocks import block, chain

SAMPLES = Path(__file__).parent / "samples"


def stored(one: Block) -> bytes:
    return b"".join(encode(one))


SAMPLE = Block(
    tag=0xABCDEF,
    lane=DELAY_LANE,
    base=1000,
    ends=form_frames(0, [(1700000000000000000, [b"first", b""]), (1700000000000000001, [b"3"])])[0],
    frames=form_frames(
        0x0102030405060708, [(1700000000000000000, [b"first", b""]), (1700000000000000001, [b"3"])]
    )[1],
    appended_at_ns=1700000000000000002,
    published_first_ns=1700000000000000000,
    published_last_ns=1700000000000000001,
    commit=77,
    synced_end=990,
    seqs=array("Q", [1000, 1002, 1010]),
    ids=array("Q", [0x0102030405060708, 0x0102030405060709, 0x010203040506070A]),
    wakes=array("q", [1, -1, 2**62]),
    mark=(-5, 999),
    attributes=[b"", b"\x01\x03\x00\x00\x00key", b"\x09\x00\x00\x00\x00"],
)


def test_version_1_is_read_and_written_as_it_was_stored() -> None:
    """If this fails, the format changed: see the workflow in penstock.protocol.block."""
    kept = bytes.fromhex((SAMPLES / "block_v1.hex").read_text())
    assert stored(SAMPLE) == kept
    found = decode(kept)
    assert found == SAMPLE
    assert (found.tag, found.commit, found.synced_end, found.end) == (0xABCDEF, 77, 990, 1011)


def test_a_frame_is_nsqs() -> None:
    ends, frames = form_frames(0xFEDC, [(5, [b"hello"])])
    assert frames == struct.pack(">IIqH", 35, 2, 5, 1) + b"000000000000fedc" + b"hello"
    assert [*ends] == [len(frames)] == [FRAME_HEAD_BYTES + 5]


def test_groups_share_the_count_of_ids() -> None:
    _, frames = form_frames(1, [(5, [b"a", b"b"]), (6, []), (7, [b"c"])])
    single = [
        form_frames(at, [(ns, [body])])[1]
        for at, ns, body in ((1, 5, b"a"), (2, 5, b"b"), (3, 7, b"c"))
    ]
    assert frames == b"".join(single)


bodies_lists = st.lists(st.binary(max_size=20), min_size=1, max_size=8)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def blocks(draw: st.DrawFn, base: int | None = None) -> Block:
    bodies = draw(bodies_lists)
    count = len(bodies)
    base = draw(st.integers(0, 2**60)) if base is None else base

    def column(values: st.SearchStrategy[int]) -> list[int] | None:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    gaps = column(st.integers(1, 1000))
    seqs = [base]
    for gap in (gaps or [])[1:]:
        seqs.append(seqs[-1] + gap)
    return block(
        base,
        bodies,
        at_ns=draw(st.integers(1, 2**62)),
        lane=draw(st.integers(-(2**31), 2**31 - 1)),
        tag=draw(st.integers(0, 2**24 - 1)),
        seqs=seqs if gaps else None,
        ids=column(u64),
        wakes=column(i64),
        mark=draw(st.none() | st.tuples(i64, u64)),
        attributes=draw(
            st.none() | st.lists(st.binary(max_size=9), min_size=count, max_size=count)
        ),
    )


@given(blocks(), st.binary(max_size=9), st.binary(max_size=9))
def test_what_is_encoded_is_decoded(one: Block, before: bytes, behind: bytes) -> None:
    kept = before + stored(one) + behind
    found = decode(kept, len(before))
    assert found == one
    assert (found.tag, found.end, found.count) == (one.tag, one.end, one.count)
    assert found.published_first_ns == one.published_first_ns
    assert found.published_last_ns == one.published_last_ns
    assert stored(found) == stored(one)
    assert length_of(kept, len(before)) == len(stored(one))


@given(blocks(), st.data())
def test_no_part_of_a_block_is_a_block(one: Block, data: st.DataObject) -> None:
    kept = stored(one)
    cut = data.draw(st.integers(0, len(kept) - 1))
    with pytest.raises(CorruptionError):
        decode(kept[:cut])


@given(blocks(), st.data())
def test_a_flipped_bit_is_seen(one: Block, data: st.DataObject) -> None:
    kept = bytearray(stored(one))
    at = data.draw(st.integers(0, len(kept) - 1))
    kept[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError):
        decode(bytes(kept))


@st.composite
def runs(draw: st.DrawFn) -> list[Block]:
    """Blocks that follow each other in a log."""
    several = [draw(blocks())]
    for _ in range(draw(st.integers(0, 5))):
        several.append(draw(blocks(several[-1].end)))
    return several


@given(runs(), st.data())
def test_a_run_is_decoded_as_its_blocks(several: list[Block], data: st.DataObject) -> None:
    pieces = [stored(one) for one in several]
    kept = b"".join(pieces)
    ends = [sum(map(len, pieces[: n + 1])) for n in range(len(pieces))]
    limit = data.draw(st.integers(0, len(kept) + 5))
    found, end = decode_run(kept, 0, limit)
    assert found == several[: len(found)]
    assert end == ends[len(found) - 1]
    assert len(found) == max(1, len([one for one in ends if one <= limit]))
    assert all(stored(one) == piece for one, piece in zip(found, pieces))


def test_a_run_stops_in_front_of_a_block_in_the_wrong_place() -> None:
    first, second, third = [stored(one) for one in chain(3)]
    for misplaced in (first, third):
        assert decode_run(first + misplaced + third, 0, 10_000)[1] == len(first)
    assert decode_run(first + second + third, 0, 10_000)[1] == len(first + second + third)


def test_a_run_stops_in_front_of_damage() -> None:
    pieces = [stored(one) for one in chain(4)]
    for at in (0, 9, 50, 96, 100):
        damaged = bytearray(pieces[2])
        damaged[at] ^= 4
        found, end = decode_run(pieces[0] + pieces[1] + damaged + pieces[3], 0, 10_000)
        assert found == chain(2)
        assert end == len(pieces[0]) + len(pieces[1])
        with pytest.raises(CorruptionError):
            decode_run(bytes(damaged), 0, 10_000)


def rewritten(kept: bytes, **fields: int) -> bytes:
    """A block with other header fields and a checksum that fits them."""
    names = [
        "magic",
        "crc",
        "length",
        "version",
        "flags",
        "tag",
        "lane",
        "base",
        "count",
        "columns",
        "kept",
        "plain",
        "appended",
        "first",
        "last",
        "synced",
        "commit",
        "end",
    ]
    header = dict(zip(names, HEADER.unpack_from(kept))) | fields
    changed = HEADER.pack(*header.values())[8:] + kept[HEADER_BYTES:]
    return b"PSB1" + crc32(changed).to_bytes(4, "little") + changed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": 2}, "newer Penstock"),
        ({"flags": FLAG_CODEC & -FLAG_CODEC}, "newer Penstock"),
        ({"flags": 1 << 15}, "newer Penstock"),
        ({"count": 0}, "contradict"),
        ({"count": 3}, "contradict"),
        ({"count": 2**31}, "cut short"),
        ({"plain": 1}, "contradict"),
        ({"columns": 7}, "contradict"),
        ({"flags": 1}, "contradict"),
        ({"flags": 8}, "contradict"),
        ({"end": 9}, "contradict"),
        ({"base": 9}, "contradict"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(fields: dict[str, int], said: str) -> None:
    kept = rewritten(stored(block(0, [b"a", b"b"])), **fields)
    with pytest.raises(CorruptionError, match=said):
        decode(kept)
    good = stored(block(0))
    assert decode_run(good + kept, 0, 10_000)[1] == len(good)


def test_short_headers_are_at_the_full_ones_places() -> None:
    kept = stored(SAMPLE)
    full = HEADER.unpack_from(kept)
    assert BRIEF.unpack_from(kept) == (*full[:5], full[7], full[12], full[15], full[17])
    assert STEP.unpack_from(kept) == (full[0], full[2], full[12], full[17])


def test_finding_messages_in_a_block() -> None:
    one = block(10, [b"a", b"", b"ccc"])
    assert [one.index_of(seq) for seq in (0, 10, 12, 13, 99)] == [0, 0, 2, 3, 3]
    assert [one.seq_at(index) for index in range(3)] == [10, 11, 12]
    assert [one.body_at(index) for index in range(3)] == [b"a", b"", b"ccc"]
    assert b"".join(one.frame_at(index) for index in range(3)) == one.frames
    assert one.id_at(2) == (7 << 40) | 12
    holed = block(10, [b"a", b"b", b"c"], seqs=[10, 20, 30])
    assert [holed.index_of(seq) for seq in (0, 10, 11, 20, 30, 31)] == [0, 0, 1, 1, 2, 3]
    assert holed.seq_at(1) == 20
    assert holed.end == 31


def test_an_id_takes_the_low_bits_of_a_seq() -> None:
    assert block((1 << 40) + 3).id_at(0) == (7 << 40) | (((1 << 40) + 3) & NUMBER_MASK)


@given(bodies_lists, st.data())
def test_slices_of_frames(bodies: list[bytes], data: st.DataObject) -> None:
    one = block(0, bodies)
    first = data.draw(st.integers(0, one.count - 1))
    last = data.draw(st.integers(first + 1, one.count))
    expected = b"".join(one.frame_at(index) for index in range(first, last))
    assert one.frames_between(first, last) == expected
    assert one.bytes_between(first, last) == len(expected)
    assert one.bytes_between(first, first) == 0


def test_attempts_are_the_only_change_of_a_frame_that_goes_out_again() -> None:
    frame = block(3, [b"body"]).frame_at(0)
    again = with_attempts(frame, 7)
    assert again[16:18] == b"\x00\x07"
    assert (again[:16], again[18:]) == (frame[:16], frame[18:])
    assert with_attempts(frame, 10**9)[16:18] == b"\xff\xff"


@given(st.lists(blocks() | st.just(block(0)), max_size=6))
def test_gathering_keeps_every_message(several: list[Block]) -> None:
    joined = gather(several)
    assert b"".join(one.frames for one in joined) == b"".join(one.frames for one in several)
    assert [number for one in joined for number in one.id_list()] == [
        number for one in several for number in one.id_list()
    ]


def test_gathering_joins_neighbours_and_nothing_else() -> None:
    near = chain(3, each=2)
    far = block(10)
    other_tag = block(11, tag=8)
    columns = block(12, tag=8, ids=[5])
    (joined, *rest) = gather([*near, far, other_tag, columns])
    assert (joined.base, joined.end, joined.count) == (0, 6, 6)
    assert [joined.frame_at(index) for index in range(6)] == [
        one.frame_at(index) for one in near for index in range(2)
    ]
    assert all(left < right for left, right in pairwise(joined.ends))
    assert rest == [far, other_tag, columns]
    assert gather([]) == []


def test_attributes_that_end_before_they_begin_are_damage() -> None:
    head, frames = encode(block(0, [b"x", b"y"], attributes=[b"ab", b""]))
    bounds = HEADER_BYTES + 4 * 2
    damaged = bytearray(head + frames)
    damaged[bounds + 4 : bounds + 8] = (1).to_bytes(4, "little")
    damaged[4:8] = crc32(damaged[8:]).to_bytes(4, "little")
    with pytest.raises(CorruptionError, match="end before they begin"):
        decode(bytes(damaged))
