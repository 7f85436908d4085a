"""Redo files: what many logs wrote in one turn, made durable by one fdatasync.

Each log is a file of its own, and with a thousand topics in use a turn writes to many of them:
an fdatasync for each would make a queue of them. So when many logs commit at once, each hands its
blocks to the page cache as always, and then the same bytes, with the name of their file and their
place in it, go to a *redo file*, which is synced for all of them. From then on they are durable: at
the next start, before any log is opened, what redo files hold is written to its place once more.

A redo file that is full, or has been in use for some seconds, is followed by a new one. The old
one goes when every log in it has been synced itself (`clear`, a chore of the engine). Records are
bytes for places, nothing else: a redo file knows no seqs, and logs do not know that it was read.

Whoever shortens, removes or renames a file that may have records calls ``forget`` first, or the
next start would bring its bytes back.

A record (little-endian)::

    4 magic "PSD1" | 4 CRC-32 of all that follows | 4 length of the whole record
    2 kind | 2 length of the path | 8 offset in that file
    8 bytes of this redo file known to be synced when the record was written
    the path below the root, UTF-8
    the bytes

KEEP has bytes for a place. FORGET has none: what stands before it, of that path or below it, does
not count any more. A record that is not whole ends a file, for it was never answered; unless one
behind it knows that it had been synced: then it is damage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from threading import Lock
from typing import NamedTuple, Protocol
from zlib import crc32

from penstock import failpoint
from penstock.errors import CorruptionError, OperatingError
from penstock.storage.file import layout
from penstock.storage.file.dirs import Dirs
from penstock.storage.file.disk import Disk, Mode, read_file, write_all
from penstock.storage.file.files import File, Files
from penstock.storage.file.reserve import Reserve

logger = logging.getLogger(__name__)

MAGIC = b"PSD1"
RECORD = Struct("<4sIIHHQQ")
CHECKED_FROM = 8
KEEP, FORGET = 1, 2

SECONDS_MAX = 5.0  # one is in use; so long may outside readers not hear of what is durable
FILES_MAX = 4  # while so many wait to be cleared, logs sync themselves


class Written(NamedTuple):
    """What a log handed to the page cache, and where."""

    path: str
    offset: int
    pieces: Sequence[bytes | memoryview]


class Vouched(Protocol):
    """A log that can be asked to make what it wrote durable itself."""

    def catch_up(self) -> None:
        """Raises OperatingError when that failed."""


class _RedoFile:
    """One file, what has records in it, and how far it is written."""

    __slots__ = ("begun_at", "bytes", "file", "logs", "paths")

    def __init__(self, root: str, number: int, now: float) -> None:
        self.begun_at = now
        self.file = File(f"{root}/{layout.redo_name(number)}", writable=True)
        self.bytes = 0
        self.logs: dict[Vouched, None] = {}
        self.paths: set[str] = set()


class Redo:
    """The redo files of one engine; safe to call from any thread."""

    def __init__(
        self,
        disk: Disk,
        files: Files,
        dirs: Dirs,
        reserve: Reserve,
        root: str,
        now: Callable[[], float],
        bytes_max: int,
    ) -> None:
        self._disk = disk
        self._files = files
        self._dirs = dirs
        self._root = root
        self._now = now
        self._bytes_max = bytes_max
        self._io = Lock()  # whoever writes to a redo file, or changes which there are
        self._current: _RedoFile | None = None
        self._full: list[_RedoFile] = []
        self._stuck = False  # a log could not be synced: its redo file stays until the next start
        self._number = self._apply(reserve)

    @property
    def has_room(self) -> bool:
        return len(self._full) < FILES_MAX

    def keep(self, logs: Sequence[Vouched], written: Sequence[Written]) -> None:
        """Make what the logs wrote durable. An OSError says that nothing of it is, so far; the
        file is used no more."""
        with self._io:
            current = self._opened()
            records = [
                piece
                for one in written
                for piece in self._record(current, KEEP, one.path, one.offset, one.pieces)
            ]
            # noted first: a write that fails may have reached the disk all the same
            current.logs.update(dict.fromkeys(logs))
            current.paths.update([one.path for one in written])
            self._append(current, records)
            if current.bytes >= self._bytes_max:
                self._retire(current)

    def forget(self, path: str) -> None:
        """Nothing of this file, or of files below this directory, counts any more; durable when
        this returns."""
        with self._io:
            self._forget(path)

    def restore(self, path: str) -> None:
        """Write what is kept for files below a directory to its place, now, and forget it."""
        with self._io:
            self._flush_to(path)
            self._forget(path)

    @property
    def wants_clearing(self) -> bool:
        current = self._current
        old = current is not None and self._now() - current.begun_at > SECONDS_MAX
        return (old or bool(self._full)) and not self._stuck

    def clear(self) -> None:
        """Sync the logs of the redo files there are, which then can go. Where that fails they are
        kept: the next start needs them, or is none the worse for them."""
        with self._io:
            if self._current is not None:
                self._retire(self._current)
        for file in [*self._full]:
            try:
                for log in [*file.logs]:
                    log.catch_up()
                failpoint.hit("redo.caught_up")
                with self._io:
                    self._remove(file)
                    self._full.remove(file)
            except (OperatingError, OSError) as error:
                logger.warning("%s is kept until the next start: %s", file.file.path, error)
                self._stuck = True
                return

    def close(self, *, needed: bool) -> None:
        """All logs are closed; ``needed``: not all of them well."""
        with self._io:
            files = [*self._full, *([self._current] if self._current is not None else [])]
            for file in files:
                if needed:
                    self._files.forget(file.file)
                else:
                    self._remove(file)

    # --- writing

    def _opened(self) -> _RedoFile:
        if self._current is None:
            self._number += 1
            self._current = _RedoFile(self._root, self._number, self._now())
        return self._current

    def _append(self, current: _RedoFile, records: Sequence[bytes | memoryview]) -> None:
        try:
            self._files.write(current.file, records, current.bytes, "redo.write")
            self._files.sync(current.file)
            if not current.bytes:
                self._disk.sync_dir(self._root)
            failpoint.hit("redo.kept")
        except OSError:
            self._retire(current)
            raise
        current.bytes += sum(map(len, records))

    def _forget(self, path: str) -> None:
        below = f"{path}/"
        files = [*self._full, *([self._current] if self._current is not None else [])]
        if not any(one == path or one.startswith(below) for file in files for one in file.paths):
            return
        current = self._opened()
        self._append(current, self._record(current, FORGET, path, 0, ()))
        for file in files:
            file.paths = {one for one in file.paths if one != path and not one.startswith(below)}

    def _retire(self, current: _RedoFile) -> None:
        self._full.append(current)
        self._current = None

    def _remove(self, file: _RedoFile) -> None:
        self._files.forget(file.file)
        try:
            self._disk.unlink(file.file.path)
        except FileNotFoundError:
            return  # its first write failed
        self._disk.sync_dir(self._root)

    def _record(
        self,
        current: _RedoFile,
        kind: int,
        path: str,
        offset: int,
        pieces: Sequence[bytes | memoryview],
    ) -> list[bytes | memoryview]:
        name = path.removeprefix(f"{self._root}/").encode()
        length = RECORD.size + len(name) + sum(map(len, pieces))
        head = RECORD.pack(MAGIC, 0, length, kind, len(name), offset, current.bytes) + name
        crc = crc32(memoryview(head)[CHECKED_FROM:])
        for piece in pieces:
            crc = crc32(piece, crc)
        return [MAGIC + crc.to_bytes(4, "little") + head[CHECKED_FROM:], *pieces]

    # --- reading

    def _apply(self, reserve: Reserve) -> int:
        """Before any log is opened: everything to its place, durable, and the redo files go. The
        highest number in use."""
        numbers = redo_numbers(self._disk, self._root)
        if not numbers:
            return 0
        places = kept(self._disk, self._root, numbers)
        reserve.spend(lambda: self._write_out(places))
        failpoint.hit("redo.applied")
        for number in numbers:
            # the oldest first, and for good: a newer one may say that what it has does not count
            self._disk.unlink(f"{self._root}/{layout.redo_name(number)}")
            self._disk.sync_dir(self._root)
        logger.info("%s: what redo files kept is in its place", self._root)
        return numbers[-1]

    def _flush_to(self, path: str) -> None:
        numbers = redo_numbers(self._disk, self._root)
        below = f"{path.removeprefix(f'{self._root}/')}/"
        found = kept(self._disk, self._root, numbers)
        self._write_out({one: places for one, places in found.items() if one.startswith(below)})

    def _write_out(self, places: dict[str, list[tuple[int, bytes]]]) -> None:
        for name, pieces in places.items():
            path = f"{self._root}/{name}"
            directory = path.rpartition("/")[0]
            self._dirs.make(directory)
            handle = self._disk.open(path, Mode.CREATE)
            try:
                for offset, data in pieces:
                    write_all(self._disk, handle, [data], offset, "redo.apply")
                self._disk.fdatasync(handle)
            finally:
                self._disk.close(handle)
            self._dirs.sync(directory)


def redo_numbers(disk: Disk, root: str) -> list[int]:
    """The redo files that are there, oldest first."""
    return sorted(
        [number for name in disk.listdir(root) if (number := layout.parse_redo(name)) is not None]
    )


def kept(disk: Disk, root: str, numbers: Sequence[int]) -> dict[str, list[tuple[int, bytes]]]:
    """What counts of these redo files: by path below the root, bytes and where they belong."""
    places: dict[str, list[tuple[int, bytes]]] = {}
    for number in numbers:
        path = f"{root}/{layout.redo_name(number)}"
        for kind, name, offset, data in records(path, read_file(disk, path) or b""):
            if kind == KEEP:
                places.setdefault(name, []).append((offset, data))
            else:
                below = f"{name}/"
                for gone in [one for one in places if one == name or one.startswith(below)]:
                    del places[gone]
    return places


def records(path: str, stored: bytes) -> Iterator[tuple[int, str, int, bytes]]:
    """Kind, path, offset and bytes of each, up to the first that is not whole. Raises
    CorruptionError when that one had been synced."""
    view = memoryview(stored)
    at = 0
    while (length := _whole_at(stored, view, at)) > 0:
        _, _, _, kind, name_bytes, offset, _ = RECORD.unpack_from(stored, at)
        if kind not in (KEEP, FORGET):
            raise CorruptionError(
                f"{path} at offset {at}: a record of kind {kind}, written by a newer Penstock. "
                "Nothing was changed; open the directory with that version"
            )
        name_end = at + RECORD.size + name_bytes
        end = at + length
        yield kind, stored[at + RECORD.size : name_end].decode(), offset, stored[name_end:end]
        at = end
    behind = stored.find(MAGIC, at + 1)
    while behind >= 0:
        if _whole_at(stored, view, behind) and RECORD.unpack_from(stored, behind)[6] > at:
            raise CorruptionError(
                f"{path} is damaged at offset {at}: publishes of several topics that were answered "
                "are kept there, and may be nowhere else. Nothing was changed; restore the file "
                "from a backup. Without one, move it away: each log is then opened as it is"
            )
        behind = stored.find(MAGIC, behind + 1)


def _whole_at(stored: bytes, view: memoryview, at: int) -> int:
    """The length of the record there; 0 when there is no whole one."""
    if len(stored) - at < RECORD.size:
        return 0
    magic, crc, length, _, name_bytes, _, _ = RECORD.unpack_from(stored, at)
    if magic != MAGIC or not RECORD.size + name_bytes <= length <= len(stored) - at:
        return 0
    return length if crc32(view[at + CHECKED_FROM : at + length]) == crc else 0
