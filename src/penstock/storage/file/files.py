"""Open files under one bound: the least recently used one is closed when another one has to be
opened.

A ``File`` is a name that may or may not have a handle just now; logs and journals keep Files, never
handles. A file with unsynced writes keeps its handle, because an error of write-back is only
reported for certain to a handle that was open then; only at twice the bound is one synced and
closed early.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from penstock.storage.file.disk import Disk, Mode, write_all


class File:
    """One file by name; ``users`` are the calls that hold its handle at this moment."""

    __slots__ = ("dirty", "failed", "forgotten", "handle", "path", "users", "writable")

    def __init__(self, path: str, *, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self.handle = -1
        self.users = 0
        self.dirty = False
        self.forgotten = False
        self.failed: OSError | None = None


class Files:
    """The open files of one engine; safe to call from any thread."""

    def __init__(self, disk: Disk, open_max: int) -> None:
        self.disk = disk
        self._open_max = max(open_max, 1)
        self._lock = Lock()
        self._clean: OrderedDict[File, None] = OrderedDict()
        self._dirty: OrderedDict[File, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clean) + len(self._dirty)

    def pread(self, file: File, length: int, offset: int) -> bytes:
        handle = self._acquire(file)
        try:
            return self.disk.pread(handle, length, offset)
        finally:
            self._release(file)

    def write(
        self, file: File, pieces: Sequence[bytes | memoryview], offset: int, point: str
    ) -> None:
        """Write all of it, creating the file if need be."""
        handle = self._acquire(file, dirty=True)
        try:
            write_all(self.disk, handle, pieces, offset, point)
        finally:
            self._release(file)

    def note(self, file: File, content: bytes, point: str) -> None:
        """Overwrite a small file in place; nobody relies on its being durable, so it is never
        dirty."""
        handle = self._acquire(file, create=True)
        try:
            write_all(self.disk, handle, [content], 0, point)
        finally:
            self._release(file)

    def truncate(self, file: File, length: int) -> None:
        handle = self._acquire(file, dirty=True)
        try:
            self.disk.truncate(handle, length)
        finally:
            self._release(file)

    def size(self, file: File) -> int:
        handle = self._acquire(file)
        try:
            return self.disk.size(handle)
        finally:
            self._release(file)

    def sync(self, file: File) -> None:
        """Make durable what was written before this call; raises what the device says, once and for
        all."""
        if file.failed is not None:
            raise file.failed
        handle = self._acquire(file, trim=False)
        try:
            with self._lock:
                # before the call: whatever is written while it runs marks the file again
                if file.dirty:
                    file.dirty = False
                    self._dirty.pop(file, None)
                    self._clean[file] = None
            self.disk.fdatasync(handle)
        except OSError as error:
            file.failed = error
            raise
        finally:
            self._release(file)

    def forget(self, file: File) -> None:
        """Nobody will ask for it again; a reader that still holds it closes it when done."""
        with self._lock:
            self._clean.pop(file, None)
            self._dirty.pop(file, None)
            file.forgotten = True
            if not file.users:
                self._shut(file)

    def close(self) -> None:
        for file in [*self._clean, *self._dirty]:
            self.forget(file)

    def _acquire(
        self, file: File, *, dirty: bool = False, create: bool = False, trim: bool = True
    ) -> int:
        with self._lock:
            if file.forgotten:
                raise FileNotFoundError(errno.ENOENT, "closed or deleted", file.path)
            if file.handle < 0:
                mode = Mode.WRITE if file.writable else Mode.READ
                if dirty or create:
                    mode = Mode.CREATE
                file.handle = self.disk.open(file.path, mode)
                self._clean[file] = None
            if dirty and not file.dirty:
                file.dirty = True
                del self._clean[file]
                self._dirty[file] = None
            else:
                (self._dirty if file.dirty else self._clean).move_to_end(file)
            file.users += 1
            handle = file.handle
            over = len(self) > self._open_max
        if over and trim:
            self._trim()
        return handle

    def _release(self, file: File) -> None:
        with self._lock:
            file.users -= 1
            if file.forgotten and not file.users:
                self._shut(file)

    def _trim(self) -> None:
        early: File | None = None
        with self._lock:
            while len(self) > self._open_max:
                file = next((one for one in self._clean if not one.users), None)
                if file is None:
                    break
                del self._clean[file]
                self._shut(file)
            if len(self) > 2 * self._open_max:
                early = next((one for one in self._dirty if not one.users), None)
        if early is None:
            return
        try:
            self.sync(early)
        except OSError:
            return  # kept in early.failed: its owner hears of it at its own next sync
        with self._lock:
            if not early.users and early in self._clean:
                del self._clean[early]
                self._shut(early)

    def _shut(self, file: File) -> None:
        if file.handle >= 0:
            self.disk.close(file.handle)
            file.handle = -1
