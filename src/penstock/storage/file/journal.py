"""A channel's journal on disk: files of batches, each file begun by a snapshot.

A snapshot batch goes to a new file, all else to the end of the newest. Nothing is renamed: a new
file counts once its first batch is whole, and until then the one before it is complete (``sync``
syncs the old file's end before the new one). So recovery takes the newest file that begins with a
whole snapshot and replays it; the older ones are history.

A batch that does not check is a torn tail, and is cut, unless a whole batch behind it says that
this place had been synced: then it is corruption, and nothing is touched.

When the disk is full the reserve is spent. Should that be used up as well, ``write`` raises
DiskFull and keeps the batches for its next call: what happened in a channel cannot be refused, only
noted later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Lock
from typing import NoReturn

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen, OperatingError
from penstock.protocol.journal import (
    BATCH,
    MAGIC,
    RECORD,
    Batch,
    decode_batch,
    encode_batch,
    find_batches,
    newest_record_at_ns,
)
from penstock.storage.file.dirs import Dirs
from penstock.storage.file.disk import FULL, names_in, read_file
from penstock.storage.file.files import File, Files
from penstock.storage.file.layout import journal_name, parse_journal
from penstock.storage.file.reserve import Reserve

logger = logging.getLogger(__name__)


class _Part:
    """One file of a journal."""

    __slots__ = ("bytes", "file", "number", "synced_bytes")

    def __init__(self, directory: str, number: int) -> None:
        self.number = number
        self.file = File(f"{directory}/{journal_name(number)}", writable=True)
        self.bytes = 0
        self.synced_bytes = 0


class FileJournal:
    """What happened in one channel."""

    def __init__(
        self,
        files: Files,
        dirs: Dirs,
        reserve: Reserve,
        directory: str,
        on_close: Callable[[FileJournal], None],
    ) -> None:
        self._files = files
        self._dirs = dirs
        self._reserve = reserve
        self._directory = directory
        self._on_close = on_close
        self._lock = Lock()  # the pending batches; held for moments
        self._io = Lock()  # whoever changes files
        self._pending: list[Batch] = []
        self._pending_bytes = 0  # since the last snapshot that waits, if one does
        self._snapshot_pending = False
        self._parts: list[_Part] | None = None  # oldest first; None until recovered
        self._snapshot_bytes = 0
        self._needless = 0
        self._noted_bytes = -1
        self._names_synced = False
        self._newest_ns: dict[int, int] = {}
        self._broken: LogFrozen | None = None
        self._closed = False

    @property
    def bytes_since_snapshot(self) -> int:
        if self._snapshot_pending:
            return self._pending_bytes
        written = (self._parts[-1].bytes if self._parts else 0) - self._snapshot_bytes
        return written + self._pending_bytes

    def append(self, batch: Batch) -> None:
        if self._broken is not None:
            return  # nothing is written any more
        with self._lock:
            self._pending.append(batch)
            self._count(batch)

    def _count(self, batch: Batch) -> None:
        if batch.snapshot:
            self._snapshot_pending, self._pending_bytes = True, 0
        else:
            self._pending_bytes += BATCH.size + RECORD.size * len(batch.records)

    def write(self) -> None:
        with self._io:
            self._write()

    def sync(self) -> None:
        with self._io:
            self._sync()

    def recover(self) -> Iterator[Batch]:
        with self._io:
            assert self._parts is None, "a journal is recovered once, before anything is written"
            try:
                self._parts, stored, batches = self._found()
            except OSError as error:
                raise OperatingError(
                    f"{self._directory}: the journal cannot be opened "
                    f"({error.strerror or error}). Nothing of it is lost; check the disk"
                ) from error
        return _decoded(stored, batches)

    def history(self) -> Iterator[Batch]:
        with self._io:
            parts = [(part.file.path, part.bytes) for part in self._opened()]
        for path, size in parts:
            stored = (read_file(self._files.disk, path) or b"")[:size]
            yield from _decoded(stored, [(start, end) for start, end, _, _ in find_batches(stored)])

    @property
    def has_history(self) -> bool:
        return self._parts is not None and len(self._parts) > 1

    def drop_before(self, at_ns: int, now_ns: int) -> None:
        with self._io:
            if self._closed:
                return  # it was deleted, or its topic closed, while this was on its way
            try:
                self._drop_before(at_ns, now_ns)
            except OSError as error:
                raise OperatingError(
                    f"{self._directory}: old history cannot be freed ({error.strerror or error}); "
                    "nothing else is affected. Check the disk"
                ) from error

    def _drop_before(self, at_ns: int, now_ns: int) -> None:
        parts = self._opened()
        # what recovery needs is the newest file, once its snapshot is durable
        while len(parts) > 1 and parts[-1].synced_bytes and self._oldest(parts, now_ns) < at_ns:
            gone = parts.pop(0)
            self._newest_ns.pop(gone.number, None)
            self._files.forget(gone.file)
            self._files.disk.unlink(gone.file.path)

    def close(self) -> None:
        with self._io:
            if self._closed:
                return
            try:
                if self._broken is None:
                    self._write()
                    self._sync()
                    self._note_end()
            finally:
                self._closed = True
                for part in self._parts or ():
                    self._files.forget(part.file)
                self._on_close(self)

    def abandon(self) -> None:
        """Its channel is being deleted: nothing more is written."""
        with self._io:
            self._closed = True
            for part in self._parts or ():
                self._files.forget(part.file)

    # --- writing
    # -----------------------------------------------------------------------------------

    def _write(self) -> None:
        with self._lock:
            taken = self._pending[:]
        if self._closed:
            return  # it was deleted while this write was on its way
        self._check_usable()
        if not taken:
            return
        parts = self._opened()
        done = 0
        try:
            while done < len(taken):
                begins = taken[done].snapshot or not parts
                count = 1
                while done + count < len(taken) and not taken[done + count].snapshot:
                    count += 1
                if begins:
                    self._begin_part(parts)
                self._write_to(parts[-1], taken[done : done + count])
                done += count
        except OSError as error:
            self._failed(parts, error)
        finally:
            with self._lock:
                del self._pending[: max(done, self._needless)]
                self._needless = 0
                self._snapshot_pending, self._pending_bytes = False, 0
                for batch in self._pending:
                    self._count(batch)

    def _begin_part(self, parts: list[_Part]) -> None:
        if not parts:
            self._reserve.spend(lambda: self._dirs.make(self._directory))
        self._names_synced = False
        failpoint.hit("journal.create")
        parts.append(_Part(self._directory, parts[-1].number + 1 if parts else 1))

    def _write_to(self, part: _Part, batches: list[Batch]) -> None:
        pieces = [encode_batch(batch, part.synced_bytes) for batch in batches]
        at = part.bytes
        self._reserve.spend(lambda: self._files.write(part.file, pieces, at, "journal.write"))
        failpoint.hit("journal.written")
        if not at:
            self._snapshot_bytes = len(pieces[0]) if batches[0].snapshot else 0
        part.bytes = at + sum(map(len, pieces))

    def _failed(self, parts: list[_Part], error: OSError) -> NoReturn:
        part = parts[-1] if parts else None
        try:
            if part is not None and not part.bytes:
                parts.pop()
                self._files.forget(part.file)
                try:
                    self._files.disk.unlink(part.file.path)
                except FileNotFoundError:
                    pass  # it failed before there was a file
            elif part is not None:
                self._files.truncate(part.file, part.bytes)
        except OSError as another:
            self._freeze(another)
        if error.errno not in FULL:
            self._freeze(error)
        with self._lock:
            # a snapshot that waits makes what waits before it mere history: memory stays bounded
            snapshots = [at for at, batch in enumerate(self._pending) if batch.snapshot]
            self._needless = max([0, *snapshots])
        raise DiskFull(
            f"{self._directory}: the disk is full and the reserve used up. What happened in this "
            "channel is kept in memory and written once there is room; free some space"
        ) from error

    def _sync(self) -> None:
        if self._closed:
            return
        self._check_usable()
        waiting = [part for part in self._parts or () if part.synced_bytes < part.bytes]
        if not waiting:
            return
        try:
            failpoint.hit("journal.sync")
            for part in waiting:
                self._files.sync(part.file)
                part.synced_bytes = part.bytes
            if not self._names_synced:
                self._dirs.sync(self._directory)
                self._names_synced = True
            failpoint.hit("journal.synced")
        except OSError as error:
            self._freeze(error)

    def _note_end(self) -> None:
        """An empty batch that says how far the file is synced: damage at its end is then seen."""
        part = self._parts[-1] if self._parts else None
        if part is None or not part.bytes or part.bytes == self._noted_bytes:
            return
        piece = encode_batch(Batch((), {}), part.synced_bytes)
        try:
            self._files.write(part.file, [piece], part.bytes, "journal.write")
        except OSError as error:
            if error.errno not in FULL:
                self._freeze(error)
            self._files.truncate(part.file, part.bytes)

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise LogFrozen(str(self._broken)) from self._broken

    def _freeze(self, error: OSError) -> NoReturn:
        self._broken = LogFrozen(
            f"{self._directory}: the disk failed ({error.strerror or error}). This channel's "
            "journal takes no more writes; what it holds is kept, and after a restart messages "
            "finished since may be delivered again. Check the disk, then restart the broker"
        )
        logger.error("%s", self._broken)
        with self._lock:
            self._pending.clear()
        raise self._broken from error

    # --- recovery
    # ----------------------------------------------------------------------------------

    def _opened(self) -> list[_Part]:
        if self._parts is None:
            self._parts, _, _ = self._found()
        return self._parts

    def _found(self) -> tuple[list[_Part], bytes, list[tuple[int, int]]]:
        """The files there are, and the whole batches of the one that recovery needs."""
        disk = self._files.disk
        found = [parse_journal(name) for name in names_in(disk, self._directory)]
        numbers = sorted([number for number in found if number is not None])
        parts = [_Part(self._directory, number) for number in numbers]
        while parts:
            part = parts[-1]
            stored = read_file(disk, part.file.path) or b""
            batches, synced_bytes = whole_batches(part.file.path, stored)
            end = batches[-1][1] if batches else 0
            if end < len(stored):
                logger.warning(
                    "%s: cut a torn tail of %d bytes; it was never synced",
                    part.file.path,
                    len(stored) - end,
                )
            if batches and (batches[0][2] or len(parts) == 1):
                if end < len(stored):
                    self._files.truncate(part.file, end)
                part.bytes = self._noted_bytes = end
                part.synced_bytes = min(synced_bytes, end)
                if part.synced_bytes < end:
                    # as a log's tail: after a sync that failed, the cache may hold what the disk
                    # does not
                    rest = memoryview(stored)[part.synced_bytes : end]
                    self._files.write(part.file, [rest], part.synced_bytes, "recovery.write")
                self._snapshot_bytes = batches[0][1] if batches[0][2] else 0
                for older in parts[:-1]:
                    older.bytes = older.synced_bytes = disk.size_of(older.file.path)
                return parts, stored, [(start, stop) for start, stop, _ in batches]
            # begun, but its snapshot never became whole: the file before it is complete
            disk.unlink(part.file.path)
            parts.pop()
        return [], b"", []

    def _oldest(self, parts: list[_Part], now_ns: int) -> int:
        """When the first file's last record was written; where that is later than now the clock was
        ahead, and the next file tells."""
        newest = map(self._newest, parts[:-1])
        return next((at_ns for at_ns in newest if at_ns <= now_ns), now_ns)

    def _newest(self, part: _Part) -> int:
        newest = self._newest_ns.get(part.number)
        if newest is None:
            stored = (read_file(self._files.disk, part.file.path) or b"")[: part.bytes]
            newest = max(
                [newest_record_at_ns(stored, start) for start, _, _, _ in find_batches(stored)],
                default=0,
            )
            self._newest_ns[part.number] = newest
        return newest


def _decoded(stored: bytes, batches: list[tuple[int, int]]) -> Iterator[Batch]:
    for start, end in batches:
        batch = decode_batch(stored, start, end)
        if batch.records or batch.names or batch.snapshot:  # else it only notes the end
            yield batch


def all_batches(stored: bytes) -> Iterator[tuple[int, int, bool, int]]:
    """(start, end, snapshot, synced_bytes) of every whole batch, also of those behind a tear."""
    at = 0
    while at >= 0:
        behind = at + 1
        for found in find_batches(stored, at):
            yield found
            behind = found[1]
        at = stored.find(MAGIC, behind)


def whole_batches(path: str, stored: bytes) -> tuple[list[tuple[int, int, bool]], int]:
    """(start, end, snapshot) of each whole batch in front of a torn tail, and the bytes known to be
    synced. Raises CorruptionError when a batch behind the tear says that it is no torn tail."""
    batches: list[tuple[int, int, bool]] = []
    synced_bytes = 0
    end = 0
    for start, stop, snapshot, synced in all_batches(stored):
        synced_bytes = max(synced_bytes, synced)
        if start == end:
            batches.append((start, stop, snapshot))
            end = stop
    if synced_bytes > end:
        raise CorruptionError(
            f"{path} is damaged at offset {end}: it was synced up to {synced_bytes}. All its "
            "bytes are kept; `penstock check` shows the damage. Restore it from a backup, or move "
            "the file away: the channel then starts from its older files, or from the log's "
            "beginning"
        )
    return batches, synced_bytes
