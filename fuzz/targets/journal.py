"""A journal's bytes are batches that encode to the same bytes, up to the first that is damaged.

What the checksum lets through though nobody of ours wrote it is CorruptionError, nothing else.
"""

from fuzz.targets.forged import with_checksum
from penstock.errors import CorruptionError
from penstock.protocol.journal import (
    BATCH,
    DELIVERED,
    FINISHED,
    NAME_BYTES_MAX,
    SLEPT,
    Batch,
    decode_batch,
    encode_batch,
    find_batches,
    newest_record_at_ns,
)

CHECKED_FROM = 8


def seeds() -> list[bytes]:
    delivered = Batch([(DELIVERED, 1, 0, 9, 1, 5, 1), (FINISHED, 1, 0, 4, 0, 6, 1)], {1: "ann"})
    slept = Batch([(SLEPT, 1, 4, 5, 2, 7, 99)], {}, snapshot=True)
    names = Batch([], {1: "ann", 2: "b\xf6b"})
    stored = [encode_batch(one, 40) for one in (delivered, slept, names)]
    return [*stored, b"".join(stored)]


def check(data: bytes) -> None:
    _check(data)
    if len(data) >= BATCH.size:
        _check(with_checksum(data, CHECKED_FROM))


def _check(stored: bytes) -> None:
    at = 0
    for start, end, snapshot, synced_bytes in find_batches(stored):
        assert start == at < end <= len(stored)
        newest_record_at_ns(stored, start)
        try:
            batch = decode_batch(stored, start, end)
        except CorruptionError:
            return
        assert batch.snapshot == snapshot
        if any(len(name.encode()) > NAME_BYTES_MAX for name in batch.names.values()):
            return  # read as it is, written shorter
        again = encode_batch(batch, synced_bytes)
        assert decode_batch(again, 0, len(again)) == batch
        assert [*find_batches(again)] == [(0, len(again), snapshot, synced_bytes)]
        at = end
