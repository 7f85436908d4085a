"""A log on disk: blocks appended to the last of its segments, read with pread from any.

The way of a block: ``append`` puts it into a list (event loop); ``write`` encodes what is in the
list and hands it to the page cache, rolling to a new segment where one is full; ``sync`` makes it
durable, notes the synced end for outside readers, seals full segments and now and then writes a
checkpoint.

Invariants:

- ``_segments`` is replaced, never changed; only its last one grows. What a reader may see of a
  segment is ``segment.bytes`` and ``segment.end``, set after the bytes are in the file, the bytes
  first.
- the first ``_listed`` segments are those of the manifest: sealed, synced, whole
- start <= synced end <= written end <= end; append times and seqs only grow
- ``_io`` is held by whoever changes files of this log other than by appending to the last segment:
  sealing, dropping, checkpoints; ``_syncing`` by whoever syncs, for the engine may clear a redo
  file meanwhile. ``_lock`` is held for moments, never over a call to the disk.

It knows nothing of topics, durability levels or answers.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import NoReturn

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen, OperatingError, PenstockError
from penstock.protocol.block import Block, encode
from penstock.storage.file.dirs import Dirs
from penstock.storage.file.disk import FULL, replace_file
from penstock.storage.file.files import File, Files
from penstock.storage.file.finder import Finder
from penstock.storage.file.index import Covered, Index, encode_index
from penstock.storage.file.layout import index_name, lane_name
from penstock.storage.file.recovery import recover
from penstock.storage.file.redo import Written
from penstock.storage.file.reserve import Reserve
from penstock.storage.file.segment import (
    Sealed,
    Segment,
    SyncedEnd,
    Tip,
    encode_manifest,
    encode_synced_end,
)
from penstock.storage.port import Bounds

logger = logging.getLogger(__name__)

READ_AGAIN_BYTES = 1 << 20  # checked at a start without a checkpoint; not worth a sync at a stop
UNSYNCED_BYTES_MAX = 128 << 10  # remembered for a redo file; more has a sync of its own


@dataclass(frozen=True, slots=True)
class FileOptions:
    """How the file engine behaves; the defaults suit a broker on one disk."""

    segment_bytes_max: int = 1 << 30
    segment_seconds: int = 0
    """Roll when a block is appended in another period of so many seconds; 0 rolls by size alone."""
    files_open_max: int = 512
    reserve_bytes: int = 64 << 20
    redo_bytes: int = 16 << 20
    """Of one redo file: what a start after a crash has to put in its place."""
    index_step_bytes: int = 256 << 10
    checkpoint_bytes: int = 64 << 20
    checkpoint_blocks: int = 50_000
    writes_inline: bool = True
    """Whether the broker may call ``write`` on its event loop: it costs one system call into the
    page cache (some 20 µs for 50 kB), less than handing it to a thread."""


class FileLog:
    """One lane of one partition."""

    def __init__(
        self,
        files: Files,
        dirs: Dirs,
        reserve: Reserve,
        options: FileOptions,
        directory: str,
        lane: int,
        *,
        closed_well: bool,
        on_close: Callable[[FileLog], None],
        forget: Callable[[str], None],
    ) -> None:
        self._files = files
        self._forget = forget
        self._dirs = dirs
        self._reserve = reserve
        self._options = options
        self._directory = directory
        self._lane = lane
        self._on_close = on_close
        self._prefix = f"{directory}/{lane_name(lane)}"
        self._synced_file = File(f"{self._prefix}.synced", writable=True)
        self._lock = Lock()
        self._io = Lock()
        self._syncing = Lock()
        self._pending: list[Block] = []
        self._finder = Finder(files, options.index_step_bytes)
        self._broken: LogFrozen | None = None
        self._closed = False
        self._ended_well = False
        self._unsynced: list[Written] | None = []
        self._unsynced_bytes = 0

        found = recover(files, directory, lane, options.index_step_bytes)
        self._segments: tuple[Segment, ...] = tuple(found.segments)
        self._listed = found.listed
        self._synced_end = found.synced_end
        self._cut_bytes = found.cut_bytes
        self._clean = closed_well and found.covered
        self._names_synced = self._clean
        last = self._segments[-1] if self._segments else None
        self._written_end = self._end = last.tip.end if last else 0
        self._appended_at_ns = last.tip.appended_at_ns if last else 0
        self._synced_end = min(self._synced_end, self._written_end)

    @property
    def closed_well(self) -> bool:
        """All that was written is synced, and its end is noted."""
        return self._ended_well and self._broken is None

    def bounds(self) -> Bounds:
        with self._lock:
            segments, listed = self._segments, self._listed
        droppable = min(listed, len(segments) - 1)
        start = segments[0].base if segments else self._written_end
        return Bounds(
            start=start,
            end=self._end,
            synced_end=self._synced_end,
            clean=self._clean,
            cut_bytes=self._cut_bytes,
            bytes=sum([segment.tip.bytes for segment in segments]),
            appended_at_ns=self._appended_at_ns,
            droppable_end=segments[droppable - 1].tip.end if droppable > 0 else start,
            holes=tuple(
                [
                    (left.tip.end, right.base)
                    for left, right in pairwise(segments)
                    if left.tip.end < right.base
                ]
            ),
        )

    def append(self, block: Block) -> None:
        assert not self._closed
        with self._lock:
            assert block.base >= self._end, (block, self._end)
            assert block.appended_at_ns >= self._appended_at_ns, "append times never decrease"
            self._pending.append(block)
            self._end = block.end
            self._appended_at_ns = block.appended_at_ns

    def write(self) -> None:
        with self._lock:
            blocks, self._pending = self._pending, []
        self._check_usable()
        if not blocks:
            return
        runs = self._laid_out(blocks)
        try:
            if not self._segments:
                self._dirs.make(self._directory)
            for run in runs:
                if run.fresh:
                    failpoint.hit("log.create")
                self._files.write(run.segment.file, run.pieces, run.offset, "log.write")
                if run.fresh:
                    self._names_synced = False  # now: a sync under way may not have seen the name
                failpoint.hit("log.written")
        except OSError as error:
            self._take_back(runs, error)
        for run in runs:
            self._publish(run)
        self._written_end = blocks[-1].end
        self._remember(runs)  # behind the end: a sync that ends now must not take it for synced

    def unsynced(self) -> Sequence[Written] | None:
        """What was written and waits for a sync; None when that is more than is remembered."""
        return self._unsynced

    def vouched(self) -> int:
        """All that was written is durable, in a redo file; the synced end. (Outside readers hear of
        it when the redo file is cleared.)"""
        self._all_durable(self._written_end)
        return self._synced_end

    def _remember(self, runs: list[_Run]) -> None:
        self._unsynced_bytes += sum([run.tip.bytes - run.offset for run in runs])
        if self._unsynced_bytes > UNSYNCED_BYTES_MAX:
            self._unsynced = None
        elif self._unsynced is not None:
            self._unsynced += [
                Written(run.segment.file.path, run.offset, run.pieces) for run in runs
            ]

    def _all_durable(self, end: int) -> None:
        """Everything below ``end`` is; when it was written last, nothing waits any more."""
        with self._lock:
            self._synced_end = max(self._synced_end, end)
            if self._written_end == end:
                self._unsynced = []
                self._unsynced_bytes = 0

    def catch_up(self) -> None:
        """Sync for the redo file's sake: a log that was closed well has done so."""
        with self._syncing:
            if not self._ended_well:
                self._sync()

    def sync(self) -> int:
        with self._syncing:
            return self._sync()

    def _sync(self) -> int:
        self._check_usable()
        tips = [(segment, segment.tip) for segment in self._segments[self._listed :]]
        waiting = [
            (segment, tip)
            for segment, tip in tips
            # one that was cut is dirty too: its old end must not come back behind a newer segment
            if segment.synced_bytes < tip.bytes or segment.file.dirty
        ]
        if not waiting:
            return self._synced_end
        try:
            # what a write adds to the names from here on belongs to the next sync
            names_synced, self._names_synced = self._names_synced, True
            for segment, tip in waiting:
                failpoint.hit("log.sync")
                self._files.sync(segment.file)
                failpoint.hit("log.synced")
                segment.synced_bytes = tip.bytes
            if not names_synced:
                self._dirs.sync(self._directory)
            last, tip = tips[-1]
            self._all_durable(tip.end)
            self._note_synced_end(SyncedEnd(tip.end, last.base, tip.bytes))
            with self._io:
                self._seal()
                if (
                    tip.bytes - last.checkpoint_bytes >= self._options.checkpoint_bytes
                    or tip.blocks - last.checkpoint_blocks >= self._options.checkpoint_blocks
                ):
                    self._checkpoint(last, tip)
        except OSError as error:
            self._freeze(error)
        return self._synced_end

    def read(self, seq: int, bytes_max: int) -> list[Block]:
        while True:
            segments = self._segments
            at = bisect_right(segments, seq, key=_end_of)
            if at == len(segments):
                return []
            try:
                return self._finder.read(segments[at], seq, bytes_max)
            except OSError as error:
                if segments[at] in self._segments:
                    raise _unreadable(segments[at], error) from error
                # dropped a moment ago: what follows it is the answer

    def seek_time(self, appended_at_ns: int) -> int:
        while True:
            segments = self._segments
            at = bisect_left(segments, appended_at_ns, key=_appended_at_of)
            if at == len(segments):
                return self._written_end
            segment = segments[at]
            try:
                return self._finder.first_at(segment, appended_at_ns).base
            except OSError as error:
                if segment in self._segments:
                    raise _unreadable(segment, error) from error

    def drop_below(self, seq: int) -> int:
        self._check_usable()
        with self._io:
            segments = self._segments
            # the last one stays whatever it holds: it says where the log ends
            most = min(self._listed, len(segments) - 1)
            count = 0
            while count < most and segments[count].tip.end <= seq:
                count += 1
            if count:
                try:
                    self._drop(segments[:count])
                except OSError as error:
                    if error.errno in FULL:
                        raise DiskFull(
                            f"{self._prefix}: no room to note that old segments go; they are kept. "
                            "Free some space, or give the broker a reserve"
                        ) from error
                    self._freeze(error)
        return self.bounds().start

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if self._broken is None:
                self.write()
                with self._syncing:
                    self._sync()
                    self._ended_well = True
                try:
                    with self._io:
                        self._close_well()
                except OSError as error:
                    self._freeze(error)
        finally:
            self._forget_files()
            self._on_close(self)

    # --- writing ----------------------------------------------------------------------------------

    def _laid_out(self, blocks: list[Block]) -> list[_Run]:
        """Encode the blocks and say which go to the end of which segment."""
        options = self._options
        segments = self._segments
        runs: list[_Run] = []
        if len(segments) > self._listed:
            runs.append(_Run(segments[-1], fresh=False))
        for block in blocks:
            block.synced_end = self._synced_end
            head, frames = encode(block)
            length = len(head) + len(frames)
            if not runs or self._begins_segment(runs[-1], block, length):
                segment = Segment(self._directory, self._lane, block.base)
                segment.index = Index(options.index_step_bytes)
                segment.first_ns = block.appended_at_ns
                runs.append(_Run(segment, fresh=True))
            runs[-1].add(block, head, frames, length)
        return [run for run in runs if run.pieces]

    def _begins_segment(self, run: _Run, block: Block, length: int) -> bool:
        if block.base > run.tip.end:
            return True  # so that holes lie between segments, where the log knows them all
        if run.tip.bytes + length > self._options.segment_bytes_max and run.tip.bytes:
            return True
        period_ns = self._options.segment_seconds * 1_000_000_000
        return bool(period_ns) and (
            block.appended_at_ns // period_ns != run.segment.first_ns // period_ns
        )

    def _publish(self, run: _Run) -> None:
        segment = run.segment
        assert segment.index is not None
        for seq, offset, appended_at_ns in run.entries:
            segment.index.note(seq, offset, appended_at_ns)
        segment.tip = run.tip
        if run.fresh:
            with self._lock:
                self._segments = (*self._segments, segment)

    def _take_back(self, runs: list[_Run], error: OSError) -> NoReturn:
        """Leave the files as they were before a write that failed."""
        try:
            for run in reversed(runs):
                if not run.fresh:
                    self._files.truncate(run.segment.file, run.offset)
                    continue
                self._files.forget(run.segment.file)
                try:
                    self._files.disk.unlink(run.segment.file.path)
                except FileNotFoundError:
                    pass  # the write failed before it came to this segment
        except OSError as another:
            self._freeze(another)
        if error.errno not in FULL:
            self._freeze(error)
        self._reserve.refuse()
        with self._lock:
            self._end = self._pending[-1].end if self._pending else self._written_end
        raise DiskFull(
            f"{self._prefix}: the disk is full. Nothing of this publish was kept, all before it "
            "is safe; consumers go on, free some space and publish again"
        ) from error

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise LogFrozen(str(self._broken)) from self._broken

    def _freeze(self, error: OSError) -> NoReturn:
        self._broken = LogFrozen(
            f"{self._prefix}: the disk failed ({error.strerror or error}). The log takes no more "
            f"writes; all below seq {self._synced_end} is safe and can be read. Check the disk, "
            "then restart the broker"
        )
        logger.error("%s", self._broken)
        raise self._broken from error

    # --- what is noted beside the segments --------------------------------------------------------

    def _note_synced_end(self, synced: SyncedEnd) -> None:
        self._unless_full(
            lambda: self._files.note(
                self._synced_file, encode_synced_end(synced), "synced_end.write"
            )
        )
        failpoint.hit("synced_end.written")

    def _seal(self) -> None:
        """List the synced segments in front of the last one in the manifest."""
        segments = self._segments
        full = [
            segment
            for segment in segments[self._listed : -1]
            if segment.synced_bytes == segment.tip.bytes
        ]
        if not full:
            return
        failpoint.hit("log.sealed")
        lines = [segment.line() for segment in segments[: self._listed] + tuple(full)]

        def seal() -> None:
            for segment in full:
                self._save_index(segment, segment.tip)
            self._save_manifest(lines)

        if not self._unless_full(seal):
            return
        with self._lock:
            self._listed += len(full)
        self._finder.sealed(full)

    def _checkpoint(self, segment: Segment, tip: Tip, *, durable: bool = True) -> None:
        if self._unless_full(lambda: self._save_index(segment, tip, durable=durable)):
            segment.checkpoint_bytes = tip.bytes
            segment.checkpoint_blocks = tip.blocks

    def _save_index(self, segment: Segment, tip: Tip, *, durable: bool = True) -> None:
        assert segment.index is not None
        covered = Covered(
            segment.base, tip.bytes, tip.end, tip.appended_at_ns, self._synced_end, tip.blocks
        )
        path = index_name(segment.file.path)
        content = encode_index(segment.index, covered)
        replace_file(self._files.disk, path, content, "checkpoint", durable=durable)

    def _save_manifest(self, lines: list[Sealed]) -> None:
        path = f"{self._prefix}.manifest"
        replace_file(self._files.disk, path, encode_manifest(lines), "manifest")
        self._dirs.sync(self._directory)

    def _unless_full(self, note: Callable[[], None]) -> bool:
        """Notes spare work or serve others; a full disk puts them off to a later sync."""
        try:
            note()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._reserve.refuse()
            return False
        return True

    def _drop(self, gone: tuple[Segment, ...]) -> None:
        lines = [segment.line() for segment in self._segments[len(gone) : self._listed]]
        self._reserve.spend(lambda: self._save_manifest(lines))
        with self._lock:
            self._segments = self._segments[len(gone) :]
            self._listed -= len(gone)
        self._finder.dropped(gone)
        failpoint.hit("log.drop")
        for segment in gone:
            self._reserve.spend(partial(self._forget, segment.file.path))
            self._files.forget(segment.file)
            self._files.disk.unlink(segment.file.path)
            try:
                self._files.disk.unlink(index_name(segment.file.path))
            except FileNotFoundError:
                pass  # an index can be missing; it is made again when needed

    def _close_well(self) -> None:
        segments = self._segments
        if len(segments) > self._listed:
            last = segments[-1]
            if last.checkpoint_bytes < last.tip.bytes:
                small = last.tip.bytes - last.checkpoint_bytes < READ_AGAIN_BYTES
                self._checkpoint(last, last.tip, durable=not small)

    def _forget_files(self) -> None:
        self._files.forget(self._synced_file)
        for segment in self._segments:
            self._files.forget(segment.file)


class _Run:
    """Blocks of one write that go to one segment, and how far it will go then."""

    __slots__ = ("entries", "fresh", "offset", "pieces", "segment", "tip")

    def __init__(self, segment: Segment, *, fresh: bool) -> None:
        self.segment = segment
        self.fresh = fresh
        self.tip = segment.tip
        self.offset = segment.tip.bytes
        self.pieces: list[bytes | memoryview] = []
        self.entries: list[tuple[int, int, int]] = []

    def add(self, block: Block, head: bytes, frames: bytes, length: int) -> None:
        size, _, _, blocks = self.tip
        self.pieces += (head, frames)
        self.entries.append((block.base, size, block.appended_at_ns))
        self.tip = Tip(size + length, block.end, block.appended_at_ns, blocks + 1)


def _end_of(segment: Segment) -> int:
    return segment.tip.end


def _appended_at_of(segment: Segment) -> int:
    return segment.tip.appended_at_ns


def _unreadable(segment: Segment, error: OSError) -> PenstockError:
    if isinstance(error, FileNotFoundError):
        return CorruptionError(
            f"{segment.file.path} is missing: it held seqs {segment.base} to "
            f"{segment.tip.end - 1}. Put the file back, or restore the log from a backup"
        )
    return OperatingError(
        f"{segment.file.path} cannot be read: {error.strerror or error}. Nothing was changed; "
        "check the disk"
    )
