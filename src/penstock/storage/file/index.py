"""Where in a segment which seq and which append time lies: one entry for every so many bytes.

In memory three arrays (24 bytes for each 256 KiB of segment). On disk one file beside the segment:
for a sealed one its whole index, for the last one the *checkpoint* - what is in it is synced and
was checked, so recovery goes on from there. It is replaced as a whole and carries a checksum: a
torn one is as good as none, only slower.

Layout (little-endian)::

    4  magic "PSI1" | 4 CRC-32 of all that follows
    8  base of the segment          8  bytes covered
    8  end: seq behind them         8  append time of the last block, ns
    8  synced end                   8  blocks covered
    4  count of entries
    base seqs u64 x count, offsets u64 x count, append times i64 x count
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from penstock.protocol.block import LITTLE

MAGIC = b"PSI1"
HEAD = Struct("<4sIQQQqQQI")
CHECKED_FROM = 8


class Covered(NamedTuple):
    """How much of a segment an index file speaks for."""

    base: int
    bytes: int
    end: int
    appended_at_ns: int
    synced_end: int
    blocks: int


class Index:
    """Entries of one segment; one writer, any number of readers."""

    __slots__ = ("offsets", "seqs", "step_bytes", "times")

    def __init__(self, step_bytes: int) -> None:
        self.step_bytes = step_bytes
        # readers count by `offsets`, which is why an entry gets into it last
        self.seqs = array("Q")
        self.times = array("q")
        self.offsets = array("Q")

    def note(self, seq: int, offset: int, appended_at_ns: int) -> None:
        """A block starts here; kept if the last entry is far enough behind."""
        offsets = self.offsets
        if not offsets or offset - offsets[-1] >= self.step_bytes:
            self.seqs.append(seq)
            self.times.append(appended_at_ns)
            offsets.append(offset)

    def offset_of(self, seq: int) -> int:
        """A block's offset at or before the one that holds ``seq``."""
        at = bisect_right(self.seqs, seq, 0, len(self.offsets))
        return self.offsets[at - 1] if at else 0

    def offset_before(self, appended_at_ns: int) -> int:
        """A block's offset at or before the first block appended at that time or later."""
        at = bisect_left(self.times, appended_at_ns, 0, len(self.offsets))
        return self.offsets[at - 1] if at else 0


def encode_index(index: Index, covered: Covered) -> bytes:
    count = bisect_left(index.offsets, covered.bytes)
    body = HEAD.pack(MAGIC, 0, *covered, count)[CHECKED_FROM:] + b"".join(
        [_stored(column[:count]) for column in (index.seqs, index.offsets, index.times)]
    )
    return b"%b%b%b" % (MAGIC, crc32(body).to_bytes(4, "little"), body)


def decode_index(stored: bytes, step_bytes: int) -> tuple[Index, Covered] | None:
    """None when it was not written whole."""
    if len(stored) < HEAD.size:
        return None
    magic, crc, base, size, end, appended_at_ns, synced_end, blocks, count = HEAD.unpack_from(
        stored
    )
    if magic != MAGIC or crc32(memoryview(stored)[CHECKED_FROM:]) != crc:
        return None
    if len(stored) != HEAD.size + 24 * count:
        return None
    index = Index(step_bytes)
    columns = stored[HEAD.size :]
    index.seqs = _loaded("Q", columns[: 8 * count])
    index.offsets = _loaded("Q", columns[8 * count : 16 * count])
    index.times = _loaded("q", columns[16 * count :])
    return index, Covered(base, size, end, appended_at_ns, synced_end, blocks)


def _stored(column: array[int]) -> bytes:
    if not LITTLE:
        column.byteswap()
    return column.tobytes()


def _loaded(code: str, stored: bytes) -> array[int]:
    column = array(code, stored)
    if not LITTLE:
        column.byteswap()
    return column
