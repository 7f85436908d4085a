"""Journal batches as bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptionError
from penstock.protocol.journal import (
    CURSOR,
    FINISHED,
    KIND_NAMES,
    SLEPT,
    Batch,
    Record,
    decode_batch,
    encode_batch,
    find_batches,
    newest_record_at_ns,
)

SAMPLES = Path(__file__).parent / "samples"
SAMPLE = Batch(
    [(CURSOR, 7, 0, 2**64 - 1, 0, 5, 0), (SLEPT, 2**32 - 1, 3, 4, 65535, -(2**63), 2**63 - 1)],
    {1: "client", 2**32 - 1: "größer"},
    snapshot=True,
)

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
records: st.SearchStrategy[Record] = st.tuples(
    st.sampled_from([*KIND_NAMES]),
    st.integers(0, 2**32 - 1),
    u64,
    u64,
    st.integers(0, 65535),
    i64,
    i64,
)
batches = st.builds(
    Batch,
    st.lists(records, max_size=6),
    st.dictionaries(st.integers(0, 2**32 - 1), st.text(max_size=9), max_size=3),
    st.booleans(),
)


def decoded(stored: bytes) -> list[Batch]:
    return [decode_batch(stored, start, end) for start, end, _, _ in find_batches(stored)]


def test_version_1_is_read_and_written_as_it_was_stored() -> None:
    """If this fails, the format changed, and older journals cannot be read any more."""
    kept = bytes.fromhex((SAMPLES / "journal_v1.hex").read_text())
    assert encode_batch(SAMPLE, 12345) == kept
    assert decoded(kept) == [SAMPLE]
    assert [*find_batches(kept)] == [(0, len(kept), True, 12345)]


@given(st.lists(st.tuples(batches, u64), max_size=4))
def test_what_is_encoded_is_decoded(several: list[tuple[Batch, int]]) -> None:
    kept = b"".join(encode_batch(batch, synced_bytes) for batch, synced_bytes in several)
    assert decoded(kept) == [batch for batch, _ in several]
    found = [*find_batches(kept)]
    assert [synced_bytes for _, _, _, synced_bytes in found] == [number for _, number in several]
    assert [snapshot for _, _, snapshot, _ in found] == [batch.snapshot for batch, _ in several]


@given(st.lists(batches, min_size=1, max_size=3), st.data())
def test_nothing_behind_a_tear_or_a_flipped_bit_is_found(
    several: list[Batch], data: st.DataObject
) -> None:
    pieces = [encode_batch(batch) for batch in several]
    kept = bytearray(b"".join(pieces))
    at = data.draw(st.integers(0, len(kept) - 1))
    whole = 0
    while sum(map(len, pieces[: whole + 1])) <= at:
        whole += 1
    assert decoded(bytes(kept[:at])) == several[:whole]
    kept[at] ^= 1 << data.draw(st.integers(0, 7))
    assert decoded(bytes(kept)) == several[:whole]


def test_attempts_stop_at_what_their_field_holds() -> None:
    kept = encode_batch(Batch([(FINISHED, 1, 2, 3, 70_000, 5, 6)], {}))
    assert decoded(kept)[0].records[0][4] == 65535


@given(batches)
def test_the_newest_record_gives_the_time_of_a_batch(batch: Batch) -> None:
    kept = encode_batch(batch)
    assert newest_record_at_ns(kept, 0) == max([record[5] for record in batch.records], default=0)


def test_many_client_names_fit_into_a_snapshot() -> None:
    names = {number: f"client-{number:05d}.example.com" for number in range(20_000)}
    assert decoded(encode_batch(Batch([], names, snapshot=True)))[0].names == names


def test_a_name_of_any_length_can_be_written() -> None:
    stored = encode_batch(Batch([], {1: "n" * 100_000, 2: "short"}))
    assert decode_batch(stored, 0, len(stored)).names == {1: "n" * 1024, 2: "short"}


@pytest.mark.parametrize("names", [b"\1\0\0", b"\1\0\0\0\4\0ann"])
def test_names_that_nobody_wrote_are_damage(names: bytes) -> None:
    stored = encode_batch(Batch([], {})) + names
    with pytest.raises(CorruptionError, match="names of a batch"):
        decode_batch(stored, 0, len(stored))
