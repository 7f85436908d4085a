"""Where in a segment which seq and which time lies."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.file.index import Covered, Index, decode_index, encode_index


def filled(step_bytes: int, blocks: list[tuple[int, int, int]]) -> Index:
    index = Index(step_bytes)
    for entry in blocks:
        index.note(*entry)
    return index


def test_an_entry_for_every_so_many_bytes() -> None:
    index = filled(100, [(n, n * 40, n * 10) for n in range(10)])
    assert [*index.offsets] == [0, 120, 240, 360]
    assert [*index.seqs] == [0, 3, 6, 9]
    assert [*index.times] == [0, 30, 60, 90]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 300), st.integers(0, 3)), max_size=30),
    st.integers(1, 500),
)
def test_what_is_looked_for_lies_at_or_behind_the_offset(
    steps: list[tuple[int, int, int]], step_bytes: int
) -> None:
    blocks = [(0, 0, 0)]
    for seqs, size, later in steps:
        seq, offset, at_ns = blocks[-1]
        blocks.append((seq + seqs, offset + size, at_ns + later))
    index = filled(step_bytes, blocks)
    for seq, offset, _ in blocks:
        assert offset - max(step_bytes, 0) <= index.offset_of(seq) <= offset
    for at_ns in range(blocks[-1][2] + 1):
        first = min(offset for _, offset, at in blocks if at >= at_ns)
        assert index.offset_before(at_ns) <= first


def test_an_empty_index_sends_to_the_beginning() -> None:
    assert Index(1).offset_of(5) == Index(1).offset_before(5) == 0


def test_an_index_is_kept_with_what_it_covers() -> None:
    index = filled(10, [(n, n * 10, -n) for n in range(5)])
    covered = Covered(7, 35, 99, -4, 90, 4)
    kept = encode_index(index, covered)
    decoded = decode_index(kept, 10)
    assert decoded is not None
    assert decoded[1] == covered
    assert [*decoded[0].offsets] == [
        0,
        10,
        20,
        30,
    ]  # what lies behind the covered bytes is left out
    assert [*decoded[0].seqs] == [0, 1, 2, 3]
    assert [*decoded[0].times] == [0, -1, -2, -3]


def test_a_torn_index_is_as_good_as_none() -> None:
    kept = encode_index(filled(1, [(0, 0, 0), (5, 9, 9)]), Covered(0, 50, 6, 9, 6, 2))
    assert all(decode_index(kept[:cut], 1) is None for cut in range(len(kept)))
    for at in range(len(kept)):
        flipped = bytearray(kept)
        flipped[at] ^= 1
        assert decode_index(bytes(flipped), 1) is None
