"""Opening a log again: which segments it has, where it ends, and what of its tail was lost.

The theory. Bytes are *known to be synced* when one of four witnesses says so: the manifest (every
segment in it is whole), the checkpoint beside a segment, the note of the synced end, and the synced
end that each block carries from the moment it was written. The *known synced end* is the highest of
the four. Below it everything must be there: a block that does not check, or that is missing, is
corruption - the log is not opened, nothing is changed, the error says where. Above it, the process
or the power may have gone at any moment, pages may have landed in any order, so the first block
that does not check is a *torn tail*: it and all behind it, later segments included, were never
durable, and are cut and reported.

The same holds between segments. Seqs may be missing there because a reservation was left behind;
but where the note, or the first block behind, knows of a synced end amidst them, there was one
segment more, or more of the one in front.

Blocks behind the tear may be whole all the same (pages land out of order), and the synced end they
carry is a witness too: that is how a flipped bit in the middle of a log is told from a torn tail
even if every other witness is gone. So before anything is cut, the rest is searched for whole
blocks.

What the checkpoint covers is not read here (that is what makes a restart quick): reading checks it.

What is whole but above the known synced end may still be only in the page cache, and if a sync
failed before, the cache may hold it as clean though it never reached the disk. It is written once
more, the same bytes to the same place, so that the next sync does what it says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple
from zlib import crc32

from penstock.errors import CorruptionError
from penstock.protocol.block import BRIEF, CHECKED_FROM, HEADER_BYTES, KNOWN_FLAGS, MAGIC, VERSION
from penstock.storage.file.disk import Disk, names_in, read_file
from penstock.storage.file.files import File, Files
from penstock.storage.file.index import Index, decode_index
from penstock.storage.file.layout import NEW, index_name, lane_name, parse_segment
from penstock.storage.file.segment import (
    Sealed,
    Segment,
    SyncedEnd,
    Tip,
    decode_manifest,
    decode_synced_end,
    sealed_segment,
)

logger = logging.getLogger(__name__)

SCAN_BYTES = 8 << 20


class Recovered(NamedTuple):
    """A log as it was found. The first ``listed`` of its segments are the manifest's."""

    segments: list[Segment]
    listed: int
    synced_end: int
    cut_bytes: int
    covered: bool  # nothing lay behind the last checkpoint: so it was when it was closed


class Scan(NamedTuple):
    """What checking a stretch of a segment found: whole blocks up to ``tip``, and what they say."""

    tip: Tip
    synced_end: int


class Whole(NamedTuple):
    """A block that checks, found by looking for one."""

    offset: int
    base: int
    synced_end: int


def recover(files: Files, directory: str, lane: int, index_step_bytes: int) -> Recovered:
    disk = files.disk
    names = names_in(disk, directory)
    if not names:
        return Recovered([], 0, 0, 0, covered=True)  # a new topic is opened on the event loop
    prefix = f"{directory}/{lane_name(lane)}"
    lines = _manifest(files, f"{prefix}.manifest")
    note = decode_synced_end(read_file(disk, f"{prefix}.synced") or b"")
    segments = [_checked(files, directory, lane, line) for line in lines]
    end = lines[-1].end if lines else 0
    synced_end = max(end, note.end if note else 0)
    appended_at_ns = lines[-1].last_ns if lines else 0
    tail = [
        Segment(directory, lane, base, generation, sealed=False)
        for base, generation in tail_of(names, lane, end)
    ]
    keep = {segment.name for segment in segments + tail}

    covered = True
    torn: Segment | None = None
    torn_size = 0
    for segment in tail:
        size = files.size(segment.file)
        if end < segment.base and (lines or segment is not tail[0]):
            lost = hole_witness(end, segment.base, note, _first_block(files, segment, size))
            if lost:
                found = segments + tail[: tail.index(segment)]
                raise _missing(directory, lane, found, end, lost)
        start, index = _checkpoint(files, segment, size, end, appended_at_ns, index_step_bytes)
        scan = scan_blocks(files, segment.file, start, size, index)
        covered = covered and size == start.tip.bytes and segment is tail[-1]
        segment.tip = scan.tip
        segment.index = index
        segment.first_ns = index.times[0] if index.times else scan.tip.appended_at_ns
        appended_at_ns = scan.tip.appended_at_ns
        synced_end = max(synced_end, scan.synced_end)
        end = scan.tip.end if scan.tip.bytes else end
        if scan.tip.bytes < size:
            torn, torn_size = segment, size
            break
    cut_bytes = 0
    if torn is not None:
        behind = tail[tail.index(torn) + 1 :]
        synced_end = max(synced_end, _witness(files, torn, torn_size, behind))
        if synced_end <= end:
            cut_bytes = _cut(files, directory, torn, torn_size, behind)
            del tail[len(tail) - len(behind) :]
    if synced_end > end:
        found = segments + tail[: tail.index(torn) + 1 if torn else None]
        raise _missing(directory, lane, found, end, synced_end)
    _remove_leftovers(disk, directory, lane, names, keep)
    tail = _without_empty(files, tail)
    for segment in tail:
        _write_again(files, segment, note, synced_end)
    return Recovered(
        segments + tail, len(segments), synced_end, cut_bytes, covered and not cut_bytes
    )


def scan_blocks(files: Files, file: File, start: Scan, size: int, index: Index) -> Scan:
    """Check every block from ``start`` on, noting them in ``index``, up to the first that is not
    whole."""
    (at, end, appended_at_ns, blocks), synced_end = start
    unpack = BRIEF.unpack_from
    window = SCAN_BYTES
    whole = True
    while whole and size - at >= HEADER_BYTES:
        wanted = min(window, size - at)
        buffer = files.pread(file, wanted, at)
        have = len(buffer)
        if have < wanted:
            size = at + have
        view = memoryview(buffer)
        offset = 0
        window = SCAN_BYTES
        while have - offset >= HEADER_BYTES:
            magic, crc, length, version, flags, base, appended, synced, block_end = unpack(
                buffer, offset
            )
            whole = magic == MAGIC and HEADER_BYTES <= length <= size - at - offset
            if whole and length > have - offset:
                window = max(SCAN_BYTES, length)
                break
            whole = (
                whole
                and crc32(view[offset + CHECKED_FROM : offset + length]) == crc
                and end <= base < block_end
                and appended >= appended_at_ns
            )
            if not whole:
                break
            if version != VERSION or flags & ~KNOWN_FLAGS:
                raise CorruptionError(
                    f"{file.path} at offset {at + offset}: the block at seq {base} has format "
                    f"{version}/{flags:#x}, written by a newer Penstock. Nothing was changed; "
                    "open it with that version"
                )
            index.note(base, at + offset, appended)
            end = block_end
            appended_at_ns = appended
            if synced > synced_end:
                synced_end = synced
            blocks += 1
            offset += length
        at += offset
    return Scan(Tip(at, end, appended_at_ns, blocks), synced_end)


def whole_blocks(files: Files, file: File, at: int, size: int) -> Iterator[Whole]:
    """Every whole block anywhere from ``at`` on, whatever lies between them."""
    window = SCAN_BYTES
    while size - at >= HEADER_BYTES:
        buffer = files.pread(file, min(window, size - at), at)
        if len(buffer) < HEADER_BYTES:
            break
        view = memoryview(buffer)
        window = SCAN_BYTES
        offset = 0
        while True:
            offset = buffer.find(MAGIC, offset)
            if offset < 0:
                offset = len(buffer) - len(MAGIC) + 1
                break
            if len(buffer) - offset < HEADER_BYTES:
                break
            _, crc, length, _, _, base, _, synced, _ = BRIEF.unpack_from(buffer, offset)
            if not HEADER_BYTES <= length <= size - at - offset:
                offset += 1
            elif length > len(buffer) - offset:
                window = max(SCAN_BYTES, length)
                break
            elif crc32(view[offset + CHECKED_FROM : offset + length]) != crc:
                offset += 1
            else:
                yield Whole(at + offset, base, synced)
                offset += length
        at += offset


def hole_witness(end: int, base: int, *witnesses: SyncedEnd | Whole | None) -> int:
    """A synced end amidst a hole between segments: a block ended there, so the hole is none. 0 if
    nobody says so; then a reservation made it."""
    ends = [
        one.end if isinstance(one, SyncedEnd) else one.synced_end
        for one in witnesses
        if one is not None
    ]
    return max([0, *[synced_end for synced_end in ends if end < synced_end <= base]])


def tail_of(names: list[str], lane: int, end: int) -> list[tuple[int, int]]:
    """(base, generation) of the segments behind the manifest's."""
    found: dict[int, int] = {}
    for name in names:
        parsed = parse_segment(name)
        if parsed is not None and parsed[0] == lane and parsed[1] >= end:
            _, base, generation = parsed
            # without a manifest's line for it, a newer generation was never switched in
            found[base] = min(generation, found.get(base, generation))
    return sorted(found.items())


def _manifest(files: Files, path: str) -> list[Sealed]:
    stored = read_file(files.disk, path)
    return [] if stored is None else decode_manifest(stored, path)


def _checked(files: Files, directory: str, lane: int, line: Sealed) -> Segment:
    segment = sealed_segment(directory, lane, line)
    path = segment.file.path
    try:
        size = files.disk.size_of(path)
    except FileNotFoundError as error:
        raise CorruptionError(
            f"{path} is missing: it held seqs {line.base} to {line.end - 1}. Nothing was changed; "
            "put the file back, or restore the log from a backup"
        ) from error
    if size < line.bytes:
        raise CorruptionError(
            f"{path} has {size} bytes of {line.bytes}: it held seqs {line.base} to {line.end - 1}. "
            "Nothing was changed; restore the file from a backup"
        )
    return segment


def _checkpoint(
    files: Files,
    segment: Segment,
    size: int,
    end: int,
    appended_at_ns: int,
    index_step_bytes: int,
) -> tuple[Scan, Index]:
    """Where checking has to begin: behind the segment's checkpoint if it has one."""
    stored = read_file(files.disk, index_name(segment.file.path))
    decoded = decode_index(stored, index_step_bytes) if stored else None
    if decoded is None or decoded[1].base != segment.base:
        return Scan(Tip(0, max(end, segment.base), appended_at_ns, 0), 0), Index(index_step_bytes)
    index, covered = decoded
    if covered.bytes > size:
        raise CorruptionError(
            f"{segment.file.path} has {size} bytes, of which {covered.bytes} were synced up to seq "
            f"{covered.end}: its end is missing. Nothing was changed; restore the file from a "
            "backup"
        )
    segment.checkpoint_bytes = covered.bytes
    segment.checkpoint_blocks = covered.blocks
    tip = Tip(covered.bytes, covered.end, covered.appended_at_ns, covered.blocks)
    return Scan(tip, covered.synced_end), index


def _first_block(files: Files, segment: Segment, size: int) -> Whole | None:
    first = next(whole_blocks(files, segment.file, 0, size), None)
    return first if first is not None and not first.offset else None


def _witness(files: Files, torn: Segment, size: int, behind: list[Segment]) -> int:
    """What whole blocks behind the tear say about the synced end."""
    found = [whole_blocks(files, torn.file, torn.tip.bytes, size)]
    found += [whole_blocks(files, one.file, 0, files.size(one.file)) for one in behind]
    return max([whole.synced_end for whole in chain(*found)], default=0)


def _cut(files: Files, directory: str, torn: Segment, size: int, behind: list[Segment]) -> int:
    cut_bytes = size - torn.tip.bytes
    for segment in reversed(behind):
        cut_bytes += files.size(segment.file)
        files.forget(segment.file)
        files.disk.unlink(segment.file.path)
    if behind:
        # one that came back after a power cut would lie amidst what is written from here on
        files.disk.sync_dir(directory)
    files.truncate(torn.file, torn.tip.bytes)
    logger.warning(
        "%s: cut a torn tail of %d bytes from seq %d on; it was never synced, and nothing below it "
        "was touched",
        torn.file.path,
        cut_bytes,
        torn.tip.end,
    )
    return cut_bytes


def _missing(
    directory: str, lane: int, found: list[Segment], end: int, synced_end: int
) -> CorruptionError:
    where = f"{directory}/{lane_name(lane)}"
    if found:
        where = f"{found[-1].file.path} at offset {found[-1].tip.bytes}"
    return CorruptionError(
        f"{where}: what follows seq {end} is damaged or missing, although the log was synced up to "
        f"{synced_end}. The log is not opened and all its bytes are kept; `penstock check` shows "
        "the damage, a backup of that file repairs it"
    )


def _without_empty(files: Files, tail: list[Segment]) -> list[Segment]:
    """A segment file that was made but never held a whole block says nothing; it is made anew
    later."""
    kept = []
    for segment in tail:
        if segment.tip.bytes:
            kept.append(segment)
        else:
            files.forget(segment.file)
            files.disk.unlink(segment.file.path)
    return kept


def _write_again(files: Files, segment: Segment, note: SyncedEnd | None, synced_end: int) -> None:
    size, end, _, _ = segment.tip
    if end <= synced_end:
        segment.synced_bytes = size
        return
    at = segment.checkpoint_bytes
    if note is not None and note.base == segment.base and note.bytes <= size:
        at = max(at, note.bytes)
    segment.synced_bytes = at
    while at < size:
        piece = files.pread(segment.file, min(SCAN_BYTES, size - at), at)
        files.write(segment.file, [piece], at, "recovery.write")
        at += len(piece)


def _remove_leftovers(
    disk: Disk, directory: str, lane: int, names: list[str], keep: set[str]
) -> None:
    """Segments of this lane that were dropped or replaced, indexes without their segment, and files
    whose rename never came."""
    mine = (f"{lane_name(lane)}_", f"{lane_name(lane)}.")
    for name in names:
        if not name.startswith(mine):
            continue
        if (
            name.endswith(NEW)
            or (name.endswith(".seg") and name not in keep)
            or (name.endswith(".index") and f"{name.removesuffix('.index')}.seg" not in keep)
        ):
            disk.unlink(f"{directory}/{name}")
