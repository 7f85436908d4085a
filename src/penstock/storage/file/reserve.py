"""Space kept back on the disk, so that consumers can go on finishing when it is full.

One file of real (allocated) blocks. When a journal or the state finds no room, part of it is given
up and the write is tried again; publishes are refused until the file is whole again. Its first
bytes say how large it was asked to be and how large it was made, because a small disk gives at most
a quarter::

    4 magic "PSR1" | 4 CRC-32 of what follows | 8 bytes asked for | 8 bytes made
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from threading import Lock
from zlib import crc32

from penstock.storage.file.disk import FULL, Disk, Mode, write_all

logger = logging.getLogger(__name__)

MAGIC = b"PSR1"
HEAD = Struct("<4sIQQ")
STEP_BYTES = 16 << 20  # given up, and taken back, at most so much at a time
ASK_SECONDS = 1.0
ROOM_BYTES = 1 << 20


class Reserve:
    """The reserve file of one engine, and whether publishes are accepted."""

    def __init__(
        self, disk: Disk, root: str, path: str, asked: int, now: Callable[[], float]
    ) -> None:
        self._disk = disk
        self._root = root
        self._now = now
        self._lock = Lock()
        self._handle = disk.open(path, Mode.CREATE)
        self._held = disk.size(self._handle)
        self._target = self._first_target(asked)
        self._refusing = False
        self._asked_at = 0.0
        if self._held > self._target:
            disk.truncate(self._handle, self._target)
            self._held = self._target
        self._grow(self._target)
        self._refusing = self._held < self._target
        if self._refusing:
            logger.warning("%s: no room for the reserve of %d bytes", path, self._target)

    @property
    def whole(self) -> bool:
        return self._held >= self._target

    def accepts_publishes(self) -> bool:
        """True while the reserve is whole and the last full disk has clearly passed."""
        if not self._refusing:
            return True
        now = self._now()
        if now - self._asked_at < ASK_SECONDS:
            return False
        with self._lock:
            self._asked_at = now
            self._grow(self._held + STEP_BYTES)
            room = max(self._target // 4, ROOM_BYTES)
            if self.whole and self._disk.free_bytes(self._root) >= room:
                self._refusing = False
                logger.info("%s has room again: publishes are accepted", self._root)
        return not self._refusing

    def refuse(self) -> None:
        """A log found the disk full."""
        if not self._refusing:
            logger.warning("%s is full: publishes are refused, consumers go on", self._root)
        self._asked_at = self._now()
        self._refusing = True

    def spend(self, attempt: Callable[[], None]) -> None:
        """Do ``attempt``, giving up reserved space as long as the disk is too full for it. It may
        run several times, so it must do the same each time."""
        while True:
            try:
                return attempt()
            except OSError as error:
                if error.errno not in FULL or not self._give_up():
                    raise

    def close(self) -> None:
        self._disk.close(self._handle)

    def _give_up(self) -> bool:
        self.refuse()
        with self._lock:
            if self._held <= HEAD.size:
                return False
            step = min(STEP_BYTES, max(self._target // 8, 4096))
            self._held = max(self._held - step, HEAD.size)
            self._disk.truncate(self._handle, self._held)
        return True

    def _grow(self, size: int) -> None:
        size = min(size, self._target)
        if size <= self._held:
            return
        try:
            self._disk.allocate(self._handle, size)
        except OSError as error:
            if error.errno not in FULL:
                raise
            # an allocation that failed may have taken what there was: nobody else could use it
            self._disk.truncate(self._handle, self._held)
        else:
            self._held = size

    def _first_target(self, asked: int) -> int:
        if not asked:
            return 0
        stored = self._disk.pread(self._handle, HEAD.size, 0)
        if len(stored) == HEAD.size:
            magic, crc, asked_then, made_then = HEAD.unpack(stored)
            if magic == MAGIC and crc32(stored[8:]) == crc and asked_then == asked:
                return int(made_then)
        target = min(asked, (self._disk.free_bytes(self._root) + self._held) // 4)
        body = HEAD.pack(MAGIC, 0, asked, target)[8:]
        head = b"%b%b%b" % (MAGIC, crc32(body).to_bytes(4, "little"), body)
        try:
            write_all(self._disk, self._handle, [head], 0, "reserve.write")
        except OSError as error:
            if error.errno not in FULL:
                raise
            return 0
        self._held = max(self._held, HEAD.size)
        return max(target, HEAD.size)
