"""A data directory seen from outside: what its files show at this moment, with nothing changed.

For `penstock check` and `penstock dump`, which may look at a directory whose broker is running. So
nothing is locked, recovered or cut. What makes that safe is the order of looking: first what speaks
of other files (the note of the synced end, the manifest, the checkpoints), then how long the files
are. They only grow, so none of them is ever seen behind what was said of it. A file that vanishes
between the look at its name and the look at its bytes was dropped, unless the manifest still lists
it. What lies behind a log's synced end may be half written.

A page that the disk cannot read is taken for zeros, which no checksum takes for what was written.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ConfigError, CorruptionError
from penstock.protocol.block import (
    HEADER,
    HEADER_BYTES,
    KNOWN_FLAGS,
    VERSION,
    Block,
    decode_run,
    length_of,
)
from penstock.protocol.journal import Batch, decode_batch
from penstock.storage.file import layout
from penstock.storage.file.disk import RealDisk, names_in, read_file
from penstock.storage.file.files import File, Files
from penstock.storage.file.index import Covered, decode_index
from penstock.storage.file.journal import all_batches, whole_batches
from penstock.storage.file.recovery import tail_of, whole_blocks
from penstock.storage.file.redo import kept, redo_numbers
from penstock.storage.file.segment import Sealed, SyncedEnd, decode_manifest, decode_synced_end
from penstock.storage.file.state import check_state, decode_state
from penstock.storage.file.version import check_format

READ_BYTES = 4 << 20
PAGE_BYTES = 4096
FILES_OPEN_MAX = 8
ANY_TIME = -(2**63)


class PatientDisk(RealDisk):
    """Goes around pages that cannot be read, and counts them."""

    def __init__(self) -> None:
        self.unreadable = 0

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        try:
            return super().pread(handle, length, offset)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        pieces: list[bytes] = []
        end = min(offset + length, self.size(handle))
        while offset < end:
            size = min(PAGE_BYTES - offset % PAGE_BYTES, end - offset)
            try:
                pieces.append(super().pread(handle, size, offset))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                self.unreadable += 1
                pieces.append(bytes(size))
            offset += size
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One file of a log: of its ``bytes`` the first ``synced_bytes`` are durable. ``line`` is the
    manifest's, if it is sealed; ``checkpoint`` is what was known of it when it is not."""

    path: str
    base: int
    bytes: int
    synced_bytes: int
    line: Sealed | None = None
    checkpoint: Covered | None = None


@dataclass(frozen=True, slots=True)
class LogView:
    """One lane of a partition as its files show it."""

    directory: str
    topic: str
    partition: int
    lane: int
    segments: tuple[SegmentView, ...]
    missing: tuple[Sealed, ...]
    synced: SyncedEnd | None
    manifest_error: CorruptionError | None

    @property
    def key(self) -> str:
        """Its name inside the topic, as the broker has it."""
        return f"{self.partition}/{layout.lane_name(self.lane).removeprefix('ready_')}"

    @property
    def prefix(self) -> str:
        return f"{self.directory}/{layout.lane_name(self.lane)}"

    @property
    def parts(self) -> list[SegmentView | Sealed]:
        """The segments, and the lines of those that are missing, in order of seqs."""
        return sorted([*self.segments, *self.missing], key=_base_of)

    def path_of(self, line: Sealed) -> str:
        return f"{self.directory}/{_name(self.lane, line)}"

    @property
    def bytes(self) -> int:
        return sum([segment.bytes for segment in self.segments])

    @property
    def start(self) -> int:
        parts = self.parts
        return parts[0].base if parts else 0

    @property
    def synced_end(self) -> int:
        """The highest that the manifest, the note or a checkpoint says; blocks may say more."""
        ends = [self.synced.end] if self.synced is not None else []
        ends += [line.end for line in self.missing]
        for segment in self.segments:
            if segment.line is not None:
                ends.append(segment.line.end)
            elif segment.checkpoint is not None:
                ends.append(segment.checkpoint.end)
        return max(ends, default=0)

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Seqs between sealed segments that no message ever had."""
        return [
            (left.line.end, right.base)
            for left, right in pairwise(self.segments)
            if left.line is not None and left.line.end < right.base
        ]


class Placed(NamedTuple):
    """A whole block, and where it starts in its file."""

    offset: int
    block: Block


class Bad(NamedTuple):
    """A place where no whole block starts; the next one starts at ``end``."""

    offset: int
    end: int
    why: str


class Survey:
    """The directory at ``path``, which must be one that this version can read."""

    def __init__(self, path: str) -> None:
        self.root = path.rstrip("/") or "/"
        self.disk = PatientDisk()
        self.files = Files(self.disk, FILES_OPEN_MAX)
        form = f"{self.root}/{layout.FORMAT}"
        try:
            stored = read_file(self.disk, form)
        except NotADirectoryError as error:
            raise ConfigError(f"{path} is a file, not a data directory") from error
        if stored is None:
            raise ConfigError(f"{path} is not a data directory: {self._not_ours()}")
        check_format(self.root, form, stored)
        self.redone, self.redo_error = self._redone()

    def total_bytes(self, topics: list[str]) -> int:
        """What the logs and journals of these topics take, roughly: a broker may be at work."""
        total = 0
        for topic in topics:
            for path in Path(self.directory_of(topic)).rglob("*"):
                if path.suffix == ".seg" or layout.parse_journal(path.name) is not None:
                    try:
                        total += path.stat().st_size
                    except FileNotFoundError:
                        pass  # dropped while we looked
        return total

    def directory_of(self, topic: str) -> str:
        return f"{self.root}/{layout.TOPICS}/{layout.encoded(topic)}"

    def topics(self) -> list[str]:
        """Those that have files."""
        return sorted(map(layout.decoded, names_in(self.disk, f"{self.root}/{layout.TOPICS}")))

    def journals(self, topic: str) -> list[str]:
        """Names of a topic's journals: its channels', and ``delay@N`` of its delay lanes."""
        directory = f"{self.directory_of(topic)}/{layout.CHANNELS}"
        return sorted(map(layout.decoded, names_in(self.disk, directory)))

    def logs(self, topic: str) -> Iterator[LogView]:
        """A topic's logs in order, each as it is when its turn comes."""
        names = names_in(self.disk, self.directory_of(topic))
        for partition in sorted([int(name) for name in names if name.isdigit()]):
            directory = layout.partition_directory(self.root, topic, partition)
            lanes = {layout.parse_lane(name) for name in names_in(self.disk, directory)}
            for lane in sorted([lane for lane in lanes if lane is not None]):
                yield self.log(topic, partition, lane)

    def log(self, topic: str, partition: int, lane: int) -> LogView:
        """The log as it is now; one without segments if there is none."""
        directory = layout.partition_directory(self.root, topic, partition)
        prefix = f"{directory}/{layout.lane_name(lane)}"
        synced = self._synced_end(f"{prefix}.synced")
        while True:
            lines, error = self._manifest(f"{prefix}.manifest")
            names = names_in(self.disk, directory)
            there = {*names}
            missing = [line for line in lines if _name(lane, line) not in there]
            if not missing or self._manifest(f"{prefix}.manifest")[0] == lines:
                break  # else they were dropped, or replaced, while we looked
        sealed = [line for line in lines if line not in missing]
        tail = tail_of(names, lane, lines[-1].end if lines else 0)
        paths = [f"{directory}/{layout.segment_name(lane, *one)}" for one in tail]
        checkpoints = [self._checkpoint(path) for path in paths]
        segments = [self._sealed(f"{directory}/{_name(lane, line)}", line) for line in sealed]
        segments += [
            self._unsealed(path, base, checkpoint, synced)
            for path, (base, _), checkpoint in zip(paths, tail, checkpoints)
        ]
        kept = tuple([segment for segment in segments if segment is not None])
        return LogView(directory, topic, partition, lane, kept, tuple(missing), synced, error)

    def lists(self, log: LogView, line: Sealed) -> bool:
        """Whether the manifest lists that segment still."""
        return line in self._manifest(f"{log.prefix}.manifest")[0]

    # --- blocks

    def scan(
        self, log: LogView, segment: SegmentView, offset: int = 0, seq: int = 0
    ) -> Iterator[list[Placed] | Bad]:
        """What lies in a segment from ``offset`` on, a read at a time: whole blocks in order, none
        below ``seq``, and the bad places between them. A file that is gone holds nothing."""
        appended_at_ns = ANY_TIME
        with self._opened(segment.path) as file:
            while offset < segment.bytes:
                unreadable = self.disk.unreadable
                try:
                    buffer = self._ahead(file, offset, segment.bytes)
                except FileNotFoundError:
                    return
                blocks, why = _decoded(buffer)
                placed: list[Placed] = []
                at = offset
                for block in blocks:
                    if block.lane != log.lane:
                        why = "a block of another lane"
                    elif block.base < seq:
                        why = f"seq {block.base} comes again"
                    elif block.appended_at_ns < appended_at_ns:
                        why = "a block that is older than the one in front of it"
                    if why:
                        break
                    placed.append(Placed(at, block))
                    at += length_of(buffer, at - offset)
                    seq, appended_at_ns = block.end, block.appended_at_ns
                if placed:
                    yield placed
                offset = at
                if why:
                    if self.disk.unreadable > unreadable:
                        why = "the disk cannot read it"
                    end = self._next_whole(log, file, offset, segment.bytes, seq)
                    yield Bad(offset, end, why)
                    offset = end

    def blocks(
        self,
        log: LogView,
        seq: int,
        on_bad: Callable[[str, bool], None],
        on_bytes: Callable[[int], None],
    ) -> Iterator[tuple[SegmentView, Placed]]:
        """Blocks from the one that holds ``seq`` on. Bad places are told and gone around:
        ``on_bad(what, whether it had been synced)``. ``on_bytes`` hears how much was passed."""
        if log.manifest_error is not None:
            on_bad(str(log.manifest_error), True)
        parts = log.parts
        for number, part in enumerate(parts):
            if number + 1 < len(parts) and parts[number + 1].base <= seq:
                on_bytes(part.bytes)
                continue
            if isinstance(part, Sealed):
                seqs = f"seqs {part.base} to {part.end - 1}"
                on_bad(f"{log.path_of(part)} is missing: it held {seqs}", True)
                continue
            told = 0
            for found in self.scan(log, part, self._start(part, seq)):
                at = found.offset if isinstance(found, Bad) else found[0].offset
                on_bytes(at - told)
                told = at
                if isinstance(found, Bad):
                    what = f"{part.path} at offset {found.offset}: {found.why}; "
                    what += f"{found.end - found.offset} bytes were left out"
                    on_bad(what, found.offset < part.synced_bytes)
                else:
                    yield from [(part, placed) for placed in found if placed.block.end > seq]
            on_bytes(part.bytes - told)

    def end_of(self, log: LogView) -> int:
        """Seq behind the last whole block, as a broker that starts now would find it."""
        end = log.start
        for part in log.parts:
            if isinstance(part, Sealed):
                end = part.end
                continue
            if part.line is not None:
                end = part.line.end
                continue
            offset = 0
            if part.checkpoint is not None:
                offset, end = part.checkpoint.bytes, part.checkpoint.end
            for found in self.scan(log, part, offset):
                if isinstance(found, Bad):
                    return end
                end = found[-1].block.end
        return end

    # --- journals and state

    def journal_files(self, topic: str, channel: str) -> list[str]:
        """Paths of a channel's journal files, oldest first."""
        directory = layout.channel_directory(self.root, topic, channel)
        numbers = [layout.parse_journal(name) for name in names_in(self.disk, directory)]
        return [
            f"{directory}/{layout.journal_name(number)}"
            for number in sorted([number for number in numbers if number is not None])
        ]

    def batches(self, path: str) -> Iterator[tuple[int, Batch]]:
        """(offset, batch) of every whole batch of a journal file, also behind damage."""
        stored = read_file(self.disk, path) or b""
        for start, stop, _, _ in all_batches(stored):
            yield start, decode_batch(stored, start, stop)

    def recovered(self, topic: str, channel: str) -> Iterator[Batch]:
        """What a broker would start from: the newest snapshot, and every batch behind it. Raises
        CorruptionError at damage."""
        paths = self.journal_files(topic, channel)
        while paths:
            stored = read_file(self.disk, paths[-1]) or b""
            found, _ = whole_batches(paths[-1], stored)
            if found and (found[0][2] or len(paths) == 1):
                return (decode_batch(stored, start, stop) for start, stop, _ in found)
            paths.pop()  # begun, but its snapshot never became whole
        return iter(())

    def state(self) -> tuple[dict[str, bytes], CorruptionError | None]:
        """The values, and what is damaged; then they are those in front of the damage."""
        path = f"{self.root}/{layout.STATE}"
        stored = read_file(self.disk, path) or b""
        error: CorruptionError | None = None
        try:
            check_state(path, stored)
        except CorruptionError as damage:
            error = damage
        values: dict[str, bytes] = {}
        for key, value in decode_state(stored):
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        return values, error

    # --- inside

    def _not_ours(self) -> str:
        if not Path(self.root).exists():
            return "it does not exist"
        names = sorted(names_in(self.disk, self.root))
        inside = [name for name in names if Path(self.root, name, layout.FORMAT).is_file()]
        if inside:
            return f"did you mean {self.root}/{inside[0]}?"
        return "it has no file 'format'" if names else "it is empty"

    def _redone(self) -> tuple[dict[str, list[tuple[int, int]]], CorruptionError | None]:
        """Where in which file redo files hold bytes, as (start, end): the next start puts them in
        their place, whatever is there now; or why it will not."""
        try:
            places = kept(self.disk, self.root, redo_numbers(self.disk, self.root))
        except CorruptionError as error:
            return {}, error
        return {
            f"{self.root}/{name}": [(offset, offset + len(data)) for offset, data in pieces]
            for name, pieces in places.items()
        }, None

    @contextmanager
    def _opened(self, path: str) -> Iterator[File]:
        file = File(path, writable=False)
        try:
            yield file
        finally:
            self.files.forget(file)

    def _manifest(self, path: str) -> tuple[list[Sealed], CorruptionError | None]:
        stored = read_file(self.disk, path)
        try:
            return ([] if stored is None else decode_manifest(stored, path)), None
        except CorruptionError as error:
            return [], error

    def _checkpoint(self, segment: str) -> Covered | None:
        decoded = decode_index(read_file(self.disk, layout.index_name(segment)) or b"", 1)
        return decoded[1] if decoded is not None else None

    def _synced_end(self, path: str) -> SyncedEnd | None:
        """It is written in place, so it may be read half old, half new: then it changes."""
        stored: bytes | None = b""
        while (again := read_file(self.disk, path)) != stored:
            stored = again
            found = decode_synced_end(stored or b"")
            if found is not None:
                return found
        return None

    def _sealed(self, path: str, line: Sealed) -> SegmentView | None:
        try:
            size = self.disk.size_of(path)
        except FileNotFoundError:
            return None  # dropped while we looked
        return SegmentView(path, line.base, min(size, line.bytes), line.bytes, line)

    def _unsealed(
        self, path: str, base: int, checkpoint: Covered | None, synced: SyncedEnd | None
    ) -> SegmentView | None:
        try:
            size = self.disk.size_of(path)
        except FileNotFoundError:
            return None
        if checkpoint is not None and checkpoint.base != base:
            checkpoint = None
        synced_bytes = checkpoint.bytes if checkpoint is not None else 0
        if synced is not None and base < synced.base:
            synced_bytes = size
        elif synced is not None and base == synced.base:
            synced_bytes = max(synced_bytes, synced.bytes)
        return SegmentView(path, base, size, min(synced_bytes, size), None, checkpoint)

    def _start(self, segment: SegmentView, seq: int) -> int:
        """A block's offset at or before the one that holds the seq."""
        if seq <= segment.base:
            return 0
        decoded = decode_index(read_file(self.disk, layout.index_name(segment.path)) or b"", 1)
        return decoded[0].offset_of(seq) if decoded is not None else 0

    def _ahead(self, file: File, offset: int, size: int) -> bytes:
        """What lies there, and at least the first block of it."""
        buffer = self.files.pread(file, min(READ_BYTES, size - offset), offset)
        length = length_of(buffer)
        if len(buffer) < length <= size - offset:
            columns_bytes, frames_bytes = HEADER.unpack_from(buffer)[9:11]
            if HEADER_BYTES + columns_bytes + frames_bytes == length:  # else it is damaged
                buffer = self.files.pread(file, length, offset)
        return buffer

    def _next_whole(self, log: LogView, file: File, offset: int, size: int, seq: int) -> int:
        """Where the next whole block of this log starts; ``size`` if there is none. What a message
        carries may look like a block: it must be of this lane, and go on behind ``seq``."""
        for whole in whole_blocks(self.files, file, offset, size):
            fields = HEADER.unpack(self.files.pread(file, HEADER_BYTES, whole.offset))
            if whole.offset > offset:
                if fields[6] == log.lane and whole.synced_end <= whole.base >= seq:
                    return whole.offset
            elif fields[3] != VERSION or fields[4] & ~KNOWN_FLAGS:
                raise ConfigError(
                    f"{file.path} at offset {offset}: this block was written by a newer Penstock; "
                    "use that version. Nothing was changed"
                )
        return size


def _decoded(buffer: bytes) -> tuple[list[Block], str]:
    """Blocks from the buffer's start on, or why there is none."""
    try:
        return decode_run(buffer, 0, len(buffer))[0], ""
    except CorruptionError as error:
        return [], str(error)


def _base_of(part: SegmentView | Sealed) -> int:
    return part.base


def _name(lane: int, line: Sealed) -> str:
    return layout.segment_name(lane, line.base, line.generation)
