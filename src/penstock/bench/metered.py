"""Runs the `penstock` command with its disk syncs counted, and slowed to those of a given disk.

`python -m penstock.bench.metered SYNCS_FILE FDATASYNC_US ARGUMENT…`: the number of fsync and
fdatasync calls stands in SYNCS_FILE (8 bytes, little-endian), and each takes at least FDATASYNC_US,
so that a figure can be had for "a disk that syncs in 1 ms" on a faster one. (A disk can't be made
faster.) The broker is not told; the wrapper costs less than 1 µs a sync.
"""

from __future__ import annotations

import mmap
import os
import runpy
import sys
import time
from itertools import count
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

SYNCS = Struct("<Q")


class Sync(Protocol):
    """os.fsync and os.fdatasync."""

    def __call__(self, fd: FileDescriptorLike) -> None: ...


def read_syncs(meter: Path) -> int:
    """How many syncs a metered broker has made so far."""
    value: int = SYNCS.unpack(meter.read_bytes())[0]
    return value


def new_meter(meter: Path) -> None:
    """A meter file at 0."""
    meter.write_bytes(SYNCS.pack(0))


def _metered(sync: Sync, shown: mmap.mmap, numbers: count[int], least_ns: int) -> Sync:
    def metered(fd: FileDescriptorLike) -> None:
        started_at_ns = time.monotonic_ns()
        sync(fd)
        left_ns = started_at_ns + least_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        # Threads may store out of order, by one; what is read is read when the broker is at rest.
        SYNCS.pack_into(shown, 0, next(numbers))

    return metered


def _main() -> None:
    meter, least_us, *arguments = sys.argv[1:]
    with Path(meter).open("r+b") as file:
        shown = mmap.mmap(file.fileno(), SYNCS.size)
    numbers = count(SYNCS.unpack_from(shown)[0] + 1)
    least_ns = int(least_us) * 1000
    os.fsync = _metered(os.fsync, shown, numbers, least_ns)
    os.fdatasync = _metered(os.fdatasync, shown, numbers, least_ns)
    sys.argv = ["penstock", *arguments]
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
