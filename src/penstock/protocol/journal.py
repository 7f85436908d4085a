"""A channel's journal as bytes: batches of fixed-size records, what happened to which seqs.

A record is a plain tuple (no object per message, none per batch either): the channel appends
tuples to a list, the engine keeps them. Its seven fields::

    kind      what happened (the constants below)
    log       the log's first tag: which lane of which partition
    low, high the seqs, high not included
    attempts  how often the range has been handed out
    at_ns     when
    value     DELIVERED, FINISHED: the client's number; SLEPT: the wake time, ns; else 0

A channel is restored by replaying, in order, the newest snapshot and all batches after it. A
snapshot is itself a batch of records that brings an empty channel to that state.

One batch on disk (little-endian)::

    4  magic "PSJ1" | 4 CRC-32 of all that follows | 4 length of the records in bytes
    4  length of the names in bytes                | 4 flags (SNAPSHOT: forget what came before)
    8  bytes of this file known to be synced when this batch was written: a bad batch below the
       highest such number is damage, one above it is a torn tail
    records, 40 bytes each | names: u32 number, u16 length, utf-8 (clients first seen in this batch)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from penstock.errors import CorruptionError
from penstock.limits import ATTEMPTS_MAX

MAGIC = b"PSJ1"
BATCH = Struct("<4sIIIIQ")
RECORD = Struct("<BxHIQQqq")
CLIENT = Struct("<IH")
SNAPSHOT = 1
NAME_BYTES_MAX = 1024  # of a client's name, which is what the client says it is

CURSOR, DELIVERED, FINISHED, REQUEUED, SLEPT, TIMED_OUT, SKIPPED, EMPTIED, DEAD_LETTERED, MOVED = (
    range(1, 11)
)
KIND_NAMES = {
    CURSOR: "cursor",
    DELIVERED: "delivered",
    FINISHED: "finished",
    REQUEUED: "requeued",
    SLEPT: "slept",
    TIMED_OUT: "timed_out",
    SKIPPED: "skipped",
    EMPTIED: "emptied",
    DEAD_LETTERED: "dead_lettered",
    MOVED: "moved",
}

Record = tuple[int, int, int, int, int, int, int]
"""(kind, log, low, high, attempts, at_ns, value)"""


def joined(done: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """(log, seq) pairs as (log, low, high) ranges."""
    out: list[tuple[int, int, int]] = []
    for log, seq in sorted(done):
        if out and out[-1][0] == log and out[-1][2] == seq:
            out[-1] = (log, out[-1][1], seq + 1)
        else:
            out.append((log, seq, seq + 1))
    return out


class Batch(NamedTuple):
    """Records written together, with the names of clients first seen in them."""

    records: Sequence[Record]
    names: Mapping[int, str]
    snapshot: bool = False


def encode_batch(batch: Batch, synced_bytes: int = 0) -> bytes:
    pack = RECORD.pack
    records = b"".join(
        [
            pack(kind, min(attempts, ATTEMPTS_MAX), log, low, high, at_ns, value)
            for kind, log, low, high, attempts, at_ns, value in batch.records
        ]
    )
    texts = {number: name.encode()[:NAME_BYTES_MAX] for number, name in batch.names.items()}
    names = b"".join([CLIENT.pack(number, len(text)) + text for number, text in texts.items()])
    flags = SNAPSHOT if batch.snapshot else 0
    checked = BATCH.pack(MAGIC, 0, len(records), len(names), flags, synced_bytes)[8:]
    crc = crc32(names, crc32(records, crc32(checked)))
    return b"%b%b%b%b%b" % (MAGIC, crc.to_bytes(4, "little"), checked, records, names)


def find_batches(stored: bytes, at: int = 0) -> Iterator[tuple[int, int, bool, int]]:
    """(start, end, snapshot, synced_bytes) of each whole batch from ``at`` on; stops at the first
    that is not whole (a torn tail, or damage: that is for the caller to tell)."""
    view = memoryview(stored)
    while len(stored) - at >= BATCH.size:
        magic, crc, records_bytes, names_bytes, flags, synced_bytes = BATCH.unpack_from(stored, at)
        end = at + BATCH.size + records_bytes + names_bytes
        if magic != MAGIC or end > len(stored) or records_bytes % RECORD.size:
            return
        if crc32(view[at + 8 : end]) != crc:
            return
        yield at, end, bool(flags & SNAPSHOT), synced_bytes
        at = end


def decode_batch(stored: bytes, at: int, end: int) -> Batch:
    """The batch that ``find_batches`` found there; CorruptionError when its names are no names."""
    _, _, records_bytes, _, flags, _ = BATCH.unpack_from(stored, at)
    name_at = at + BATCH.size + records_bytes
    records = [
        (kind, log, low, high, attempts, at_ns, value)
        for kind, attempts, log, low, high, at_ns, value in RECORD.iter_unpack(
            memoryview(stored)[at + BATCH.size : name_at]
        )
    ]
    names: dict[int, str] = {}
    while name_at < end:
        if end - name_at < CLIENT.size:
            raise CorruptionError("the names of a batch are cut short")
        number, length = CLIENT.unpack_from(stored, name_at)
        name_at += CLIENT.size
        name = stored[name_at : name_at + length]
        name_at += length
        if name_at > end:
            raise CorruptionError("the names of a batch are cut short")
        names[number] = name.decode(errors="replace")
    return Batch(records, names, bool(flags & SNAPSHOT))


def newest_record_at_ns(stored: bytes, at: int) -> int:
    """The latest time in the records of the batch at ``at``; 0 when it has none."""
    _, _, records_bytes, _, _, _ = BATCH.unpack_from(stored, at)
    records = memoryview(stored)[at + BATCH.size : at + BATCH.size + records_bytes]
    return max([at_ns for _, _, _, _, _, at_ns, _ in RECORD.iter_unpack(records)], default=0)
