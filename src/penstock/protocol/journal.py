"""A channel's journal as bytes: batches of fixed-size records, what happened to which seqs.

A record is a plain tuple (no object per message, none per batch either): the channel appends tuples to a
list, the engine keeps them. Its seven fields::

    kind      what happened (the constants below)
    log       the log's first tag: which lane of which partition
    low, high the seqs, high not included
    attempts  how often the range has been handed out
    at_ns     when
    value     DELIVERED, FINISHED: the client's number; SLEPT: the wake time, ns; else 0

A channel is restored by replaying, in order, the newest snapshot and all batches after it. A snapshot is
itself a batch of records that brings an empty channel to that state.

One batch on disk (little-endian)::

    4  magic "PSJ1" | 4 CRC-32 of all that follows | 4 length of the records in bytes
    2  flags (SNAPSHOT: forget what came before)   | 2 length of the names
    records, 40 bytes each | names: u32 number, u16 length, utf-8 (clients first seen in this batch)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

MAGIC = b"PSJ1"
BATCH = Struct("<4sIIHH")
RECORD = Struct("<BxHIQQqq")
CLIENT = Struct("<IH")
SNAPSHOT = 1

CURSOR, DELIVERED, FINISHED, REQUEUED, SLEPT, TIMED_OUT, SKIPPED, EMPTIED, DEAD_LETTERED, MOVED = range(
    1, 11
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


class Batch(NamedTuple):
    """Records written together, with the names of clients first seen in them."""

    records: Sequence[Record]
    names: Mapping[int, str]
    snapshot: bool = False


def encode_batch(batch: Batch) -> bytes:
    pack = RECORD.pack
    records = b"".join(
        [
            pack(kind, min(attempts, 65535), log, low, high, at_ns, value)
            for kind, log, low, high, attempts, at_ns, value in batch.records
        ]
    )
    names = b"".join(
        [
            CLIENT.pack(number, len(name.encode())) + name.encode()
            for number, name in batch.names.items()
        ]
    )
    checked = BATCH.pack(
        MAGIC, 0, len(records), SNAPSHOT if batch.snapshot else 0, len(names)
    )[8:]
    crc = crc32(names, crc32(records, crc32(checked)))
    return b"%b%b%b%b%b" % (MAGIC, crc.to_bytes(4, "little"), checked, records, names)


def decode_batches(stored: bytes) -> Iterator[tuple[Batch, int]]:
    """Whole batches with the offset behind each; stops at the first that is not whole (a torn tail)."""
    at = 0
    while len(stored) - at >= BATCH.size:
        magic, crc, records_bytes, flags, names_bytes = BATCH.unpack_from(stored, at)
        end = at + BATCH.size + records_bytes + names_bytes
        if magic != MAGIC or end > len(stored) or records_bytes % RECORD.size:
            return
        if crc32(memoryview(stored)[at + 8 : end]) != crc:
            return
        records_at = at + BATCH.size
        records = [
            (kind, log, low, high, attempts, at_ns, value)
            for kind, attempts, log, low, high, at_ns, value in RECORD.iter_unpack(
                memoryview(stored)[records_at : records_at + records_bytes]
            )
        ]
        names: dict[int, str] = {}
        name_at = records_at + records_bytes
        while name_at < end:
            number, length = CLIENT.unpack_from(stored, name_at)
            name_at += CLIENT.size
            names[number] = stored[name_at : name_at + length].decode(errors="replace")
            name_at += length
        yield Batch(records, names, bool(flags & SNAPSHOT)), end
        at = end
