"""A disk that can do whatever a real one can, for the real file engine (its `Disk` Protocol).

What programs see and what is on the platter are two things (`platter`). A `Mount` is one process's
view: it dies with the process (`Killed` comes out of every call from then on), and takes its
handles and locks along.

What can be made to happen:

    kill            the process dies before or after any one call; what it wrote stays
    power cut       the platter stays, with a seeded choice of the pages, lengths and names that
                    were on their way: torn tails, holes of zeros, files without a name, old names
                    back
    errors          EIO or ENOSPC from any call on files that match; after a failed fdatasync the
                    pages count as clean although some never landed (what Linux does)
    a full disk     writes past the capacity are cut short, then refused
    short writes    `pwritev` takes less than it was given
    flipped bits    in what is on the platter

It knows no Penstock beyond the Protocol, and no time: whoever drives it is called back before each
call (`before`) and may let time pass, or other threads run, there.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random

from penstock.storage.file.disk import Mode
from tests.sim.platter import Change, Directory, Inode

ENDLESS = 1 << 40
READ_ONLY = {"write": errno.EBADF, "allocate": errno.EBADF, "truncate": errno.EINVAL}


class Killed(BaseException):
    """The simulated process is no more; nothing it does has any effect."""


class Fault:
    """Calls that fail: the first ``count`` of those whose kind and path match."""

    __slots__ = ("code", "count", "kinds", "path")

    def __init__(self, kinds: Sequence[str], path: str, code: int, count: int = 1 << 30) -> None:
        self.kinds = frozenset(kinds)
        self.path = re.compile(path)
        self.code = code
        self.count = count

    def strikes(self, kind: str, path: str) -> bool:
        if self.count and kind in self.kinds and self.path.search(path):
            self.count -= 1
            return True
        return False


class SimDisk:
    """The machine's disk; it outlives processes and power."""

    def __init__(self, rng: Random, capacity: int = ENDLESS) -> None:
        self.rng = rng
        self.capacity = capacity
        self.used = 0
        self.root = Directory()
        self.faults: list[Fault] = []
        self.short_write_share = 0.0
        self.write_back_share = 0.0
        self.calls = 0
        self.honest = True  # False: fdatasync and sync_dir promise and do nothing
        self.mounted: Mount | None = None

    def mount(self, before: Callable[[str, str], None]) -> Mount:
        assert self.mounted is None or self.mounted.dead, "one process at a time"
        self.mounted = Mount(self, before)
        return self.mounted

    # --- what the world does to it ---------------------------------------------------------------

    def power_cut(self) -> None:
        """What is on the platter is all there is from now on."""
        images: dict[int, Inode] = {}
        share = self.rng.choice((0.0, 0.5, 1.0))
        self.root = self._landed(self.root, share, images)
        self.used = sum([len(inode.live) for _, inode in self.files()])

    def _landed(self, directory: Directory, share: float, images: dict[int, Inode]) -> Directory:
        names = dict(directory.durable)
        stuck: set[str] = set()  # a change lands only if all before it on the same names did
        for change, bindings in directory.pending:
            if stuck.isdisjoint(bindings) and change.decide(self.rng, share):
                for name, node in bindings.items():
                    if node is None:
                        names.pop(name, None)
                    else:
                        names[name] = node
            else:
                stuck.update(bindings)
        made = Directory()
        for name, node in names.items():
            if isinstance(node, Directory):
                made.names[name] = self._landed(node, share, images)
            else:
                image = images.get(id(node))
                if image is None:
                    image = images[id(node)] = node.after_power_cut(self.rng)
                image.links += 1
                made.names[name] = image
        made.durable = dict(made.names)
        return made

    def mend(self) -> None:
        """Every bit that was flipped is as before."""
        for _, inode in self.files():
            inode.mend()

    @property
    def flipped(self) -> bool:
        return any(inode.flips for _, inode in self.files())

    def files(self, path: str = "") -> Iterator[tuple[str, Inode]]:
        """Every file there is, with its path, sorted."""
        found: list[tuple[str, Inode]] = []
        seen: set[int] = set()

        def walk(directory: Directory, at: str) -> None:
            for name, node in sorted(directory.names.items(), key=lambda item: item[0]):
                if isinstance(node, Directory):
                    walk(node, f"{at}/{name}")
                elif id(node) not in seen:
                    seen.add(id(node))
                    found.append((f"{at}/{name}", node))

        walk(self.root, "")
        return iter([item for item in found if item[0].startswith(path)])

    def find(self, path: str) -> Inode | Directory | None:
        node: Inode | Directory = self.root
        for part in path.strip("/").split("/"):
            if not part:
                continue
            if not isinstance(node, Directory) or part not in node.names:
                return None
            node = node.names[part]
        return node

    # --- room

    def grow(self, inode: Inode, length: int) -> int:
        """Take the space for a file of that length; the length that there is room for."""
        more = length - len(inode.live)
        if more <= 0:
            return length
        more = max(min(more, self.capacity - self.used), 0)
        self.used += more
        return len(inode.live) + more

    def shrink(self, inode: Inode, length: int) -> None:
        if length < len(inode.live):
            self.used -= len(inode.live) - length

    def forget(self, inode: Inode) -> None:
        if not inode.links and not inode.opened:
            self.used -= len(inode.live)


class Mount:
    """The disk as one process sees it: the file engine's `Disk`."""

    def __init__(self, disk: SimDisk, before: Callable[[str, str], None]) -> None:
        self.disk = disk
        self.dead = False
        self.dies_at = 0  # the call, counted by `disk.calls`, that the process does not survive
        self.dies_before = False
        self._before = before
        self._handles: dict[int, tuple[str, Inode]] = {}
        self._read_only: set[int] = set()
        self._next = 3

    def die(self) -> None:
        """The process ends: its handles and locks are gone."""
        self.dead = True
        for handle in [*self._handles]:
            self._drop(handle)

    def _enter(self, kind: str, path: str) -> None:
        if self.dead:
            raise Killed
        self._before(kind, path)
        if self.dead:
            raise Killed
        disk = self.disk
        disk.calls += 1
        if self.dies_at and disk.calls >= self.dies_at and self.dies_before:
            self.die()
            raise Killed
        for fault in disk.faults:
            if fault.strikes(kind, path):
                raise OSError(fault.code, f"simulated {errno.errorcode[fault.code]}", path)

    def _file(self, kind: str, handle: int) -> tuple[str, Inode]:
        if self.dead:
            raise Killed
        if handle in self._handles:
            self._enter(kind, self._handles[handle][0].removeprefix("lock:"))
        if handle not in self._handles:
            raise OSError(errno.EBADF, f"handle {handle} is not open (any more)")
        if handle in self._read_only and kind in READ_ONLY:
            raise OSError(READ_ONLY[kind], f"handle {handle} is open for reading only")
        return self._handles[handle]

    def _leave(self) -> None:
        if self.dies_at and self.disk.calls >= self.dies_at:
            self.die()
            raise Killed

    def _drop(self, handle: int) -> None:
        path, inode = self._handles.pop(handle)
        inode.opened -= 1
        if path.startswith("lock:"):
            inode.locked = False
        self.disk.forget(inode)

    def _directory(self, path: str) -> Directory:
        node = self.disk.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if isinstance(node, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _split(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._directory(parent), name

    # --- the Protocol ----------------------------------------------------------------------------

    def open(self, path: str, mode: Mode) -> int:
        self._enter("open", path)
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if isinstance(inode, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if inode is None:
            if mode is not Mode.CREATE:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = Inode()
            inode.links = 1
            directory.change(Change(), {name: inode})
        handle = self._handle(path, inode)
        if mode is Mode.READ:
            self._read_only.add(handle)
        self._leave()
        return handle

    def _handle(self, path: str, inode: Inode) -> int:
        handle, self._next = self._next, self._next + 1
        self._handles[handle] = (path, inode)
        inode.opened += 1
        return handle

    def close(self, handle: int) -> None:
        self._file("close", handle)
        self._drop(handle)
        self._leave()

    def size(self, handle: int) -> int:
        _, inode = self._file("size", handle)
        return len(inode.live)

    def size_of(self, path: str) -> int:
        self._enter("size", path)
        inode = self.disk.find(path)
        if not isinstance(inode, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return len(inode.live)

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        _, inode = self._file("read", handle)
        return bytes(inode.live[offset : offset + length])

    def pwritev(self, handle: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        path, inode = self._file("write", handle)
        data = b"".join(pieces)
        disk = self.disk
        if len(data) > 1 and disk.short_write_share and disk.rng.random() < disk.short_write_share:
            data = data[: disk.rng.randrange(1, len(data))]
        room = disk.grow(inode, offset + len(data)) - offset
        if data and room <= 0:
            raise OSError(errno.ENOSPC, "simulated full disk", path)
        data = data[:room]
        inode.write(offset, data)
        if disk.write_back_share and disk.rng.random() < disk.write_back_share:
            inode.write_back(disk.rng, disk.rng.random())
        self._leave()
        return len(data)

    def fdatasync(self, handle: int) -> None:
        try:
            _, inode = self._file("sync", handle)
        except OSError:
            self._handles[handle][1].fail_sync(self.disk.rng)
            raise
        if self.disk.honest:
            inode.sync()
        self._leave()

    def truncate(self, handle: int, length: int) -> None:
        path, inode = self._file("truncate", handle)
        self.disk.shrink(inode, length)
        if self.disk.grow(inode, length) < length:
            raise OSError(errno.ENOSPC, "simulated full disk", path)
        inode.truncate(length)
        self._leave()

    def allocate(self, handle: int, length: int) -> None:
        path, inode = self._file("allocate", handle)
        if length > len(inode.live):
            room = self.disk.grow(inode, length)
            inode.truncate(room)
            if room < length:
                raise OSError(errno.ENOSPC, "simulated full disk", path)
        self._leave()

    def rename(self, old: str, new: str) -> None:
        self._enter("rename", new)
        source, old_name = self._split(old)
        target, new_name = self._split(new)
        node = source.names.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        replaced = target.names.get(new_name)
        if source is target:
            source.change(Change(), {old_name: None, new_name: node})
        else:
            change = Change(target)
            target.change(change, {new_name: node})
            source.change(change, {old_name: None})
        if isinstance(replaced, Inode):
            replaced.links -= 1
            self.disk.forget(replaced)
        self._leave()

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if isinstance(inode, Directory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        directory.change(Change(), {name: None})
        inode.links -= 1
        self.disk.forget(inode)
        self._leave()

    def mkdir(self, path: str) -> None:
        self._enter("mkdir", path)
        directory, name = self._split(path)
        if name in directory.names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        directory.change(Change(), {name: Directory()})
        self._leave()

    def rmdir(self, path: str) -> None:
        self._enter("rmdir", path)
        directory, name = self._split(path)
        node = self._directory(path)
        if node.names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        directory.change(Change(), {name: None})
        self._leave()

    def listdir(self, path: str) -> list[str]:
        self._enter("list", path)
        names = sorted(self._directory(path).names)
        self.disk.rng.shuffle(names)  # a real directory promises no order
        return names

    def sync_dir(self, path: str) -> None:
        self._enter("sync_dir", path)
        directory = self._directory(path)
        if self.disk.honest:
            directory.sync()
        self._leave()

    def free_bytes(self, path: str) -> int:
        self._enter("free", path)
        return max(self.disk.capacity - self.disk.used, 0)

    def lock(self, path: str) -> int:
        self._enter("lock", path)
        directory, name = self._split(path)
        inode = directory.names.get(name)
        if inode is None:
            inode = Inode()
            inode.links = 1
            directory.change(Change(), {name: inode})
        assert isinstance(inode, Inode)
        if inode.locked:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        inode.locked = True
        handle = self._handle(f"lock:{path}", inode)
        self._leave()
        return handle
