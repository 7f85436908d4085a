"""Small values by key in one append-only file: topics, channels, tags, reservations, marks.

All of it is in memory; the file is only read when it is opened. Each ``write`` appends one batch,
whole or not at all, so keys put together are stored together. When more than half of the file is
outdated it is compacted: the current values go to a new file, which replaces the old one by rename.

One batch (little-endian)::

    4  magic "PST1" | 4 CRC-32 of all that follows | 4 length of the entries
    8  bytes of this file known to be synced when this batch was written (as in a journal)
    entries: u16 length of the key, i32 length of the value (-1: deleted), key, value
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from struct import Struct
from threading import Lock
from typing import NoReturn
from zlib import crc32

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen
from penstock.storage.file.disk import FULL, Disk, Mode, replace_file, write_all
from penstock.storage.file.reserve import Reserve

logger = logging.getLogger(__name__)

MAGIC = b"PST1"
BATCH = Struct("<4sIIQ")
ENTRY = Struct("<Hi")
BATCH_BYTES = 1 << 20  # a compacted file is written in batches of about this size
GARBAGE_BYTES_MIN = 1 << 20  # below this a file is not worth compacting


class FileState:
    """The state file of one engine."""

    def __init__(self, disk: Disk, root: str, path: str, reserve: Reserve) -> None:
        self._disk = disk
        self._root = root
        self._path = path
        self._reserve = reserve
        self._lock = Lock()  # held for moments
        self._io = Lock()  # whoever changes the file
        self._broken: LogFrozen | None = None
        self._changed: dict[str, bytes | None] = {}
        self._values: dict[str, bytes] = {}
        self._bytes = self._synced_bytes = self._live_bytes = 0
        self._dirty = False
        self._handle = disk.open(path, Mode.CREATE)
        try:
            self._load()
        except BaseException:
            disk.close(self._handle)
            raise
        self._keys = sorted(self._values)

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        with self._lock:
            first = bisect_left(self._keys, prefix)
            found = self._keys[first : bisect_left(self._keys, f"{prefix}\U0010ffff", first)]
        return ((key, value) for key in found if (value := self._values.get(key)) is not None)

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            old = self._values.get(key)
            if old is None:
                insort(self._keys, key)
                self._live_bytes += ENTRY.size + len(key)
            self._live_bytes += len(value) - len(old or b"")
            self._values[key] = value
            self._changed[key] = value

    def delete(self, key: str) -> None:
        with self._lock:
            old = self._values.pop(key, None)
            if old is None:
                return
            del self._keys[bisect_left(self._keys, key)]
            self._live_bytes -= ENTRY.size + len(key) + len(old)
            self._changed[key] = None

    def write(self) -> None:
        with self._io:
            with self._lock:
                changed, self._changed = self._changed, {}
            self._check_usable()
            if changed:
                self._write(changed)

    def sync(self) -> None:
        with self._io:
            self._check_usable()
            if not self._dirty:
                return
            try:
                failpoint.hit("state.sync")
                self._disk.fdatasync(self._handle)
                failpoint.hit("state.synced")
                self._dirty = False
                self._synced_bytes = self._bytes
                if self._bytes - self._live_bytes > max(self._bytes // 2, GARBAGE_BYTES_MIN):
                    self._compact()
                self._note_end()
            except OSError as error:
                self._freeze(error)

    def close(self) -> None:
        try:
            if self._broken is None:
                self.write()
                self.sync()
        finally:
            self._disk.close(self._handle)

    # --- the file
    # ------------------------------------------------------------------------------------

    def _write(self, changed: dict[str, bytes | None]) -> None:
        piece = encode_state(changed.items(), self._synced_bytes)
        try:
            self._reserve.spend(
                lambda: write_all(self._disk, self._handle, [piece], self._bytes, "state.write")
            )
            failpoint.hit("state.written")
        except OSError as error:
            self._failed(changed, error)
        self._bytes += len(piece)
        self._dirty = True

    def _failed(self, changed: dict[str, bytes | None], error: OSError) -> NoReturn:
        try:
            self._disk.truncate(self._handle, self._bytes)
        except OSError as another:
            self._freeze(another)
        if error.errno not in FULL:
            self._freeze(error)
        with self._lock:
            self._changed = {**changed, **self._changed}
        raise DiskFull(
            f"{self._path}: the disk is full and the reserve used up. What changed is kept in "
            "memory and written once there is room; free some space"
        ) from error

    def _note_end(self) -> None:
        """An empty batch that says what is synced: damage at the file's end is told from a torn
        tail."""
        piece = encode_state((), self._synced_bytes)
        try:
            write_all(self._disk, self._handle, [piece], self._bytes, "state.write")
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._disk.truncate(self._handle, self._bytes)
        else:
            self._bytes += len(piece)

    def _compact(self) -> None:
        with self._lock:
            entries = [*self._values.items()]
        content = b"".join(_batches(entries))
        try:
            replace_file(self._disk, self._path, content, "state.compact")
        except OSError as error:
            if error.errno not in FULL:
                raise
            return  # the old file is whole; there will be room some day
        self._disk.sync_dir(self._root)
        self._disk.close(self._handle)
        self._handle = self._disk.open(self._path, Mode.WRITE)
        self._bytes = self._synced_bytes = len(content)

    def _load(self) -> None:
        stored = self._disk.pread(self._handle, self._disk.size(self._handle), 0)
        end, synced_bytes = check_state(self._path, stored)
        values = self._values
        for key, value in decode_state(stored):
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        if end < len(stored):
            logger.warning(
                "%s: cut a torn tail of %d bytes; it was never synced",
                self._path,
                len(stored) - end,
            )
            self._disk.truncate(self._handle, end)
        self._bytes = end
        self._synced_bytes = min(synced_bytes, end)
        self._dirty = self._synced_bytes < end
        if self._dirty:
            # as a log's tail: after a sync that failed, the cache may hold what the disk does not
            rest = memoryview(stored)[self._synced_bytes : end]
            write_all(self._disk, self._handle, [rest], self._synced_bytes, "recovery.write")
        self._live_bytes = sum(
            [ENTRY.size + len(key) + len(value) for key, value in values.items()]
        )
        if self._bytes - self._live_bytes > max(self._bytes // 2, GARBAGE_BYTES_MIN):
            self._compact()
            self._dirty = False

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise LogFrozen(str(self._broken)) from self._broken

    def _freeze(self, error: OSError) -> NoReturn:
        self._broken = LogFrozen(
            f"{self._path}: the disk failed ({error.strerror or error}). New topics and channels "
            "cannot be kept any more; all that was answered is safe. Check the disk, then restart "
            "the broker"
        )
        logger.error("%s", self._broken)
        raise self._broken from error


def encode_state(entries: Iterable[tuple[str, bytes | None]], synced_bytes: int = 0) -> bytes:
    parts: list[bytes] = []
    for key, value in entries:
        name = key.encode()
        parts += (ENTRY.pack(len(name), -1 if value is None else len(value)), name, value or b"")
    body = b"".join(parts)
    checked = BATCH.pack(MAGIC, 0, len(body), synced_bytes)[8:] + body
    return b"%b%b%b" % (MAGIC, crc32(checked).to_bytes(4, "little"), checked)


def check_state(path: str, stored: bytes) -> tuple[int, int]:
    """Where the whole batches end, and how many bytes are known to be synced. Raises
    CorruptionError when what does not check had been synced."""
    end = synced_bytes = 0
    for start, stop, synced in all_batches(stored):
        synced_bytes = max(synced_bytes, synced)
        if start == end:
            end = stop
    if synced_bytes > end:
        raise CorruptionError(
            f"{path} is damaged at offset {end}: it was synced up to {synced_bytes}. All its "
            "bytes are kept; restore it from a backup. Without it the broker does not know its "
            "topics and channels"
        )
    return end, synced_bytes


def decode_state(stored: bytes) -> Iterator[tuple[str, bytes | None]]:
    """What each entry of the whole batches says, oldest first."""
    for start, stop, _ in _whole_batches(stored):
        at = start + BATCH.size
        while at < stop:
            key_length, length = ENTRY.unpack_from(stored, at)
            at += ENTRY.size + key_length
            key = stored[at - key_length : at].decode()
            yield key, None if length < 0 else stored[at : at + length]
            at += max(length, 0)


def all_batches(stored: bytes) -> Iterator[tuple[int, int, int]]:
    """(start, end, synced_bytes) of every whole batch, also of those behind a tear."""
    at = 0
    while at >= 0:
        behind = at + 1
        for found in _whole_batches(stored, at):
            yield found
            behind = found[1]
        at = stored.find(MAGIC, behind)


def _whole_batches(stored: bytes, at: int = 0) -> Iterator[tuple[int, int, int]]:
    """(start, end, synced_bytes) of each whole batch from ``at`` on, up to the first that is not
    whole."""
    view = memoryview(stored)
    while len(stored) - at >= BATCH.size:
        magic, crc, length, synced_bytes = BATCH.unpack_from(stored, at)
        end = at + BATCH.size + length
        if magic != MAGIC or end > len(stored) or crc32(view[at + 8 : end]) != crc:
            return
        yield at, end, synced_bytes
        at = end


def _batches(entries: list[tuple[str, bytes]]) -> Iterator[bytes]:
    at = 0
    while at < len(entries):
        first, size = at, 0
        while at < len(entries) and size < BATCH_BYTES:
            size += ENTRY.size + len(entries[at][0]) + len(entries[at][1])
            at += 1
        yield encode_state(entries[first:at])
