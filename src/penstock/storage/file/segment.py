"""A segment of a log, the manifest that lists the sealed ones, and the note of the synced end.

Only the last segment of a log grows. The others are *sealed*: synced, listed in the log's manifest
with their bounds, and from then on only ever dropped or replaced as a whole by a newer generation
(the same messages under the same seqs). A segment that no manifest lists and that lies behind the
listed ones is part of the log's tail; one that lies before them is left over from a drop or a
replacement.

The manifest (little-endian), replaced by rename, so a damaged one is damage::

    4 magic "PSM1" | 4 CRC-32 of all that follows | 4 count
    for each: 8 base, 8 end, 8 bytes, 8 first and 8 last append time (ns), 4 generation

The note of the synced end, written in place after every sync; one that does not check is as good as
none::

    4 magic "PSE1" | 4 CRC-32 of all that follows | 8 synced end | 8 base of the segment | 8 bytes
    of it
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from penstock.errors import CorruptionError
from penstock.protocol.block import HEADER_BYTES, MAGIC, STEP
from penstock.storage.file.files import File
from penstock.storage.file.index import Index
from penstock.storage.file.layout import segment_name

MANIFEST_MAGIC = b"PSM1"
MANIFEST_HEAD = Struct("<4sII")
MANIFEST_ENTRY = Struct("<QQQqqI")
SYNCED_MAGIC = b"PSE1"
SYNCED = Struct("<4sIQQQ")
CHECKED_FROM = 8


class Sealed(NamedTuple):
    """A manifest's line."""

    base: int
    end: int
    bytes: int
    first_ns: int
    last_ns: int
    generation: int


class SyncedEnd(NamedTuple):
    """How far a log is durable, and where in which segment that is."""

    end: int
    base: int
    bytes: int


class Tip(NamedTuple):
    """How far a segment goes. Replaced as a whole, so that any thread sees numbers that belong
    together."""

    bytes: int
    end: int
    appended_at_ns: int
    blocks: int


class Segment:
    """One file of a log; ``tip`` speaks of what is written and may be read."""

    __slots__ = (
        "base",
        "checkpoint_blocks",
        "checkpoint_bytes",
        "file",
        "first_ns",
        "generation",
        "index",
        "name",
        "synced_bytes",
        "tip",
    )

    def __init__(
        self, directory: str, lane: int, base: int, generation: int = 0, *, sealed: bool = False
    ) -> None:
        self.base = base
        self.generation = generation
        self.name = segment_name(lane, base, generation)
        self.file = File(f"{directory}/{self.name}", writable=not sealed)
        self.first_ns = 0
        self.tip = Tip(0, base, 0, 0)
        self.synced_bytes = 0
        self.checkpoint_bytes = 0
        self.checkpoint_blocks = 0
        self.index: Index | None = None

    def line(self) -> Sealed:
        size, end, last_ns, _ = self.tip
        return Sealed(self.base, end, size, self.first_ns, last_ns, self.generation)


def sealed_segment(directory: str, lane: int, line: Sealed) -> Segment:
    segment = Segment(directory, lane, line.base, line.generation, sealed=True)
    segment.first_ns = line.first_ns
    segment.tip = Tip(line.bytes, line.end, line.last_ns, 0)
    segment.synced_bytes = segment.checkpoint_bytes = line.bytes
    return segment


def encode_manifest(lines: list[Sealed]) -> bytes:
    body = len(lines).to_bytes(4, "little") + b"".join(
        [MANIFEST_ENTRY.pack(*line) for line in lines]
    )
    return b"%b%b%b" % (MANIFEST_MAGIC, crc32(body).to_bytes(4, "little"), body)


def decode_manifest(stored: bytes, path: str) -> list[Sealed]:
    if len(stored) >= MANIFEST_HEAD.size:
        magic, crc, count = MANIFEST_HEAD.unpack_from(stored)
        whole = len(stored) == MANIFEST_HEAD.size + count * MANIFEST_ENTRY.size
        if magic == MANIFEST_MAGIC and whole and crc32(stored[CHECKED_FROM:]) == crc:
            lines = MANIFEST_ENTRY.iter_unpack(memoryview(stored)[MANIFEST_HEAD.size :])
            return [Sealed(*line) for line in lines]
    raise CorruptionError(
        f"{path} is damaged: it does not list the log's segments any more. Nothing was changed; "
        "restore it from a backup, or move the log's directory away to start it empty"
    )


def encode_synced_end(synced: SyncedEnd) -> bytes:
    body = SYNCED.pack(SYNCED_MAGIC, 0, *synced)[CHECKED_FROM:]
    return b"%b%b%b" % (SYNCED_MAGIC, crc32(body).to_bytes(4, "little"), body)


def decode_synced_end(stored: bytes) -> SyncedEnd | None:
    if len(stored) != SYNCED.size:
        return None
    magic, crc, end, base, size = SYNCED.unpack(stored)
    if magic != SYNCED_MAGIC or crc32(stored[CHECKED_FROM:]) != crc:
        return None
    return SyncedEnd(end, base, size)


class Found(NamedTuple):
    """Where a walk stopped: at a block as looked for, at the buffer's end, or at damage."""

    at: int
    before: int  # where the block in front of `at` starts; -1 when none was stepped over
    whole_header: bool


def walk(buffer: bytes, seq: int, appended_at_ns: int) -> Found:
    """Step over block headers up to the first block that ends above ``seq`` and was appended at
    that time or later. Trusts what it steps over: the caller checks what it stops at, and
    ``before``."""
    at = 0
    before = -1
    last = len(buffer) - HEADER_BYTES
    unpack = STEP.unpack_from
    while at <= last:
        magic, length, appended, end = unpack(buffer, at)
        if magic != MAGIC or length < HEADER_BYTES:
            return Found(at, before, False)
        if end > seq and appended >= appended_at_ns:
            return Found(at, before, True)
        before = at
        at += length
    return Found(at, before, False)
