"""Directories that are made on the way to a first write, and made durable with the first sync.

A name is durable when the directory that holds it has been synced. A directory that is found to
exist may have been made just before a crash, or by another log a moment ago, so existing counts for
nothing: each one on a path is synced once in the life of an engine.
"""

from __future__ import annotations

from threading import Lock

from penstock.storage.file.disk import Disk


class Dirs:
    """The directories below the root of one engine; safe to call from any thread."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._lock = Lock()
        self._durable: set[str] = set()

    def make(self, path: str) -> None:
        for part in self._chain(path):
            try:
                self._disk.mkdir(part)
            except FileExistsError:
                pass  # the usual case; what makes it durable is below

    def sync(self, path: str) -> None:
        """Make durable what ``path`` holds now, and the way to it."""
        for part in self._chain(path):
            if part not in self._durable:
                self._disk.sync_dir(part.rpartition("/")[0])
                with self._lock:
                    self._durable.add(part)
        self._disk.sync_dir(path)

    def forget(self, path: str) -> None:
        """It has been deleted, and may be made again."""
        with self._lock:
            self._durable = {
                one for one in self._durable if one != path and not one.startswith(f"{path}/")
            }

    def _chain(self, path: str) -> list[str]:
        parts = path.removeprefix(f"{self._root}/").split("/")
        return [f"{self._root}/{'/'.join(parts[: n + 1])}" for n in range(len(parts))]
