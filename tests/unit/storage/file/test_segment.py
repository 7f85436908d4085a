"""The manifest, the note of the synced end, and steps over block headers."""

import pytest

from penstock.errors import CorruptionError
from penstock.protocol.block import encode
from penstock.storage.file.segment import (
    Sealed,
    SyncedEnd,
    decode_manifest,
    decode_synced_end,
    encode_manifest,
    encode_synced_end,
    walk,
)
from tests.support.blocks import chain

LINES = [Sealed(0, 10, 1000, -5, 7, 0), Sealed(12, 2**64 - 1, 2**40, 7, 2**62, 3)]


def flips(kept: bytes) -> list[bytes]:
    return [kept[:at] + bytes([kept[at] ^ 8]) + kept[at + 1 :] for at in range(len(kept))]


def test_a_manifest_lists_segments() -> None:
    assert decode_manifest(encode_manifest(LINES), "m") == LINES
    assert decode_manifest(encode_manifest([]), "m") == []


def test_a_damaged_manifest_is_damage() -> None:
    kept = encode_manifest(LINES)
    for damaged in [kept[:-1], kept + b"x", b"", *flips(kept)]:
        with pytest.raises(CorruptionError, match="m is damaged"):
            decode_manifest(damaged, "m")


def test_a_damaged_note_is_as_good_as_none() -> None:
    note = SyncedEnd(2**60, 5, 77)
    kept = encode_synced_end(note)
    assert decode_synced_end(kept) == note
    assert all(decode_synced_end(damaged) is None for damaged in [kept[:-1], b"", *flips(kept)])


def test_a_walk_stops_at_the_block_that_holds_a_seq() -> None:
    blocks = chain(5, each=3)
    pieces = [b"".join(encode(one)) for one in blocks]
    starts = [sum(map(len, pieces[:n])) for n in range(6)]
    stored = b"".join(pieces)
    for seq in range(15):
        found = walk(stored, seq, -1)
        assert found.whole_header
        assert found.at == starts[seq // 3]
        assert found.before == (starts[seq // 3 - 1] if seq >= 3 else -1)
    assert walk(stored, 15, -1) == (starts[5], starts[4], False)
    assert walk(stored, -1, 7).at == starts[3]
    assert walk(stored[: starts[2] + 50], 10, -1) == (starts[2], starts[1], False)
    damaged = stored[: starts[2]] + b"?" + stored[starts[2] + 1 :]
    assert walk(damaged, 10, -1) == (starts[2], starts[1], False)
