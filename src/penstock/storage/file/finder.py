"""Finding blocks in the segments of a log: by seq or by append time, from any thread.

An index has an entry every few hundred kilobytes; from there headers are stepped over up to the
block that is looked for, and only that one is checked. Where readers will go on is remembered, and
the indexes of sealed segments are kept for the few that were asked for last.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from penstock.errors import CorruptionError
from penstock.protocol.block import HEADER_BYTES, Block, decode_run, length_of
from penstock.storage.file.disk import read_file
from penstock.storage.file.files import Files
from penstock.storage.file.index import Index, decode_index
from penstock.storage.file.layout import index_name
from penstock.storage.file.recovery import Scan, scan_blocks
from penstock.storage.file.segment import Segment, Tip, walk

POSITIONS_MAX = 64
INDEXES_MAX = 16
WALK_BYTES = 256 << 10
READ_BYTES = 4096  # a block's length is only known once its header is read: take it along if small
ANY_TIME = -(2**63)


class Finder:
    """Reads one log's segments; what it remembers is bounded."""

    def __init__(self, files: Files, index_step_bytes: int) -> None:
        self._files = files
        self._step_bytes = index_step_bytes
        self._lock = Lock()  # held for moments, never over a call to the disk
        self._positions: dict[int, tuple[Segment, int]] = {}
        self._indexed: dict[Segment, None] = {}

    def first_at(self, segment: Segment, appended_at_ns: int) -> Block:
        """The first block of the segment that was appended at that time or later."""
        start = self.index_of(segment).offset_before(appended_at_ns)
        offset, _ = self._walk(segment, segment.tip, start, -1, appended_at_ns)
        return self._blocks(segment, segment.tip, offset, 0)[0][0]

    def sealed(self, segments: Iterable[Segment]) -> None:
        """Their indexes are on disk now, so they need not stay in memory."""
        with self._lock:
            self._indexed.update(dict.fromkeys(segments))
        self._forget_indexes()

    def dropped(self, segments: Iterable[Segment]) -> None:
        with self._lock:
            self._positions.clear()
            for segment in segments:
                self._indexed.pop(segment, None)

    def read(self, segment: Segment, seq: int, bytes_max: int) -> list[Block]:
        tip = segment.tip
        with self._lock:
            known = self._positions.get(seq)
        if known is not None and known[0] is segment:
            offset, before = known[1], -1
        else:
            start = self.index_of(segment).offset_of(seq)
            offset, before = self._walk(segment, tip, start, seq, ANY_TIME)
        blocks, end = self._blocks(segment, tip, offset, bytes_max)
        if not blocks[0].base <= max(seq, segment.base) < blocks[0].end:
            # holes lie between segments: what belongs here is damaged, or lies somewhere else
            if before >= 0:
                self._blocks(segment, tip, before, 0)
            raise _damaged(segment, offset, seq, "another block is in its place")
        with self._lock:
            positions = self._positions
            positions[blocks[-1].end] = (segment, end)
            if len(positions) > POSITIONS_MAX:
                del positions[next(iter(positions))]
        return blocks

    def _walk(
        self, segment: Segment, tip: Tip, offset: int, seq: int, appended_at_ns: int
    ) -> tuple[int, int]:
        """Offset of the block looked for, and of the one before it (-1 when none was passed)."""
        before = -1
        while tip.bytes - offset >= HEADER_BYTES:
            wanted = min(WALK_BYTES, tip.bytes - offset)
            buffer = self._files.pread(segment.file, wanted, offset)
            found = walk(buffer, seq, appended_at_ns)
            if found.before >= 0:
                before = offset + found.before
            offset += found.at
            if found.at <= len(buffer) - HEADER_BYTES:
                if found.whole_header:
                    return offset, before
                break
            if len(buffer) < wanted:
                break
        raise _damaged(segment, offset, seq, "no block starts here")

    def _blocks(
        self, segment: Segment, tip: Tip, offset: int, bytes_max: int
    ) -> tuple[list[Block], int]:
        """At least the block at ``offset``, more up to ``bytes_max``; and where they end."""
        room = tip.bytes - offset
        buffer = self._files.pread(segment.file, min(max(bytes_max, READ_BYTES), room), offset)
        first = length_of(buffer)
        if first > len(buffer):
            buffer = self._files.pread(segment.file, min(first, room), offset)
        try:
            blocks, size = decode_run(buffer, 0, max(first, bytes_max))
        except CorruptionError as error:
            raise _damaged(segment, offset, -1, str(error)) from error
        return blocks, offset + size

    def index_of(self, segment: Segment) -> Index:
        index = segment.index
        if index is not None:
            return index
        index = self._loaded_index(segment)
        with self._lock:
            segment.index = index
            self._indexed[segment] = None
        self._forget_indexes()
        return index

    def _loaded_index(self, segment: Segment) -> Index:
        step_bytes = self._step_bytes
        stored = read_file(self._files.disk, index_name(segment.file.path))
        decoded = decode_index(stored, step_bytes) if stored else None
        if decoded is not None and decoded[1].bytes == segment.tip.bytes:
            return decoded[0]
        index = Index(step_bytes)
        start = Scan(Tip(0, segment.base, segment.first_ns, 0), 0)
        scan = scan_blocks(self._files, segment.file, start, segment.tip.bytes, index)
        if scan.tip.bytes < segment.tip.bytes:
            raise _damaged(segment, scan.tip.bytes, scan.tip.end, "no whole block starts here")
        return index

    def _forget_indexes(self) -> None:
        with self._lock:
            while len(self._indexed) > INDEXES_MAX:
                oldest = next(iter(self._indexed))
                del self._indexed[oldest]
                oldest.index = None


def _damaged(segment: Segment, offset: int, seq: int, what: str) -> CorruptionError:
    return CorruptionError(
        f"{segment.file.path} at offset {offset}"
        + (f", from seq {seq} on" if seq >= 0 else "")
        + f": {what}. Its bytes are kept; `penstock check` shows what is damaged, a backup of the "
        "file repairs it"
    )
