"""The disk as the file engine sees it: a small protocol, and the real one.

Every call of the file engine to the operating system goes through a ``Disk``, so that a test can
put a simulated one under the real engine (power cuts, short writes, EIO, ENOSPC). Whoever writes
one has to keep to this:

- a handle is an int that ``open`` returned and ``close`` ends; several may be open on one file, and
  a file that was renamed or unlinked stays usable through its open handles
- calls come from several threads at once, also on one handle
- failures are ``OSError`` with an errno; ``FileNotFoundError``, ``FileExistsError`` and
  ``NotADirectoryError`` where POSIX says so, ``BlockingIOError`` from ``lock``
- what was written is visible to ``pread`` and ``size`` at once, through every handle
- it survives loss of power only after ``fdatasync`` of that file; the length counts as its data. A
  file's name, a rename or an unlink survives only after ``sync_dir`` of the directory that holds
  the name
- ``pwritev`` may write less than it was given; it never writes more, and returns how much
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from penstock import failpoint

PIECES_MAX = 1024  # IOV_MAX of Linux and macOS
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Mode(Enum):
    """How a file is opened."""

    READ = os.O_RDONLY
    WRITE = os.O_RDWR
    CREATE = os.O_RDWR | os.O_CREAT


class Disk(Protocol):
    """All that the file engine asks of an operating system."""

    def open(self, path: str, mode: Mode) -> int: ...

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def size_of(self, path: str) -> int:
        """Length of the file with that name, without opening it."""

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""

    def pwritev(self, handle: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        """Write at most PIECES_MAX pieces one behind the other; returns the bytes written."""

    def fdatasync(self, handle: int) -> None: ...

    def truncate(self, handle: int, length: int) -> None: ...

    def allocate(self, handle: int, length: int) -> None:
        """Give the file real space up to ``length``, or raise ENOSPC."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file of the new name."""

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> list[str]: ...

    def sync_dir(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int:
        """Space that this process may still use in the file system that holds ``path``."""

    def lock(self, path: str) -> int:
        """Open (or create) and lock for this process alone; BlockingIOError when someone has it.
        The lock ends with ``close`` of the handle, or with the process."""


class RealDisk:
    """The operating system's own."""

    def open(self, path: str, mode: Mode) -> int:
        return os.open(path, mode.value | os.O_CLOEXEC, 0o666)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        taken = os.pread(handle, length, offset)
        if len(taken) == length or not taken:
            return taken
        # regular files only fall short at their end or past 2 GiB; ask until it is the end
        parts = [taken]
        got = len(taken)
        while got < length:
            taken = os.pread(handle, length - got, offset + got)
            if not taken:
                break
            parts.append(taken)
            got += len(taken)
        return b"".join(parts)

    def pwritev(self, handle: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwritev(handle, pieces, offset)

    def fdatasync(self, handle: int) -> None:
        if sys.platform == "darwin":
            # fsync alone leaves the data in the drive's own cache there
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(handle)

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(handle, length)

    def allocate(self, handle: int, length: int) -> None:
        if sys.platform == "darwin":
            zeros = bytes(1 << 20)
            for offset in range(os.fstat(handle).st_size, length, len(zeros)):
                os.pwrite(handle, zeros[: length - offset], offset)
        else:
            os.posix_fallocate(handle, 0, length)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def sync_dir(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
        return handle


def write_all(
    disk: Disk, handle: int, pieces: Sequence[bytes | memoryview], offset: int, point: str
) -> None:
    """Write every byte, however short the single writes are; passes ``point`` before the first."""
    short = failpoint.hit(point)
    total = sum(map(len, pieces))
    if not short and len(pieces) <= PIECES_MAX:
        done = disk.pwritev(handle, pieces, offset)
        if done == total:
            return
    else:
        done = 0
    rest = [memoryview(piece) for piece in pieces]
    skip = done
    while done < total:
        while skip >= len(rest[0]):
            skip -= len(rest.pop(0))
        rest[0] = rest[0][skip:]
        batch: Sequence[bytes | memoryview] = rest[:PIECES_MAX]
        if short:
            batch, short = [rest[0][: max(len(rest[0]) // 2, 1)]], False
        skip = disk.pwritev(handle, batch, offset + done)
        if not skip:
            raise OSError(errno.EIO, "the disk takes no bytes and gives no reason")
        done += skip


def replace_file(
    disk: Disk, path: str, content: bytes, point: str, *, durable: bool = True
) -> None:
    """Put ``content`` at ``path`` so that after a crash the file is the old or the new, whole.

    The name itself survives loss of power once the caller has synced the directory. What is not
    ``durable`` may be damaged after loss of power: for files that tell by themselves.
    """
    fresh = f"{path}.new"
    handle = disk.open(fresh, Mode.CREATE)
    try:
        disk.truncate(handle, 0)
        write_all(disk, handle, [content], 0, f"{point}.write")
        if durable:
            disk.fdatasync(handle)
    except OSError:
        disk.unlink(fresh)  # on a full disk even this would be missed
        raise
    finally:
        disk.close(handle)
    failpoint.hit(f"{point}.rename")
    disk.rename(fresh, path)
    failpoint.hit(f"{point}.renamed")


def read_file(disk: Disk, path: str) -> bytes | None:
    """The whole file; None when there is none."""
    try:
        handle = disk.open(path, Mode.READ)
    except FileNotFoundError:
        return None
    try:
        return disk.pread(handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def names_in(disk: Disk, path: str) -> list[str]:
    """Names in a directory; none when there is no such directory."""
    try:
        return disk.listdir(path)
    except FileNotFoundError:
        return []


def remove_tree(disk: Disk, path: str) -> None:
    for name in disk.listdir(path):
        child = f"{path}/{name}"
        try:
            disk.listdir(child)
        except NotADirectoryError:
            disk.unlink(child)
        else:
            remove_tree(disk, child)
    disk.rmdir(path)
