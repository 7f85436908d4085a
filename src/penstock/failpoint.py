"""Failpoints: named places in the code where a test makes the world break.

``PENSTOCK_FAILPOINT="log.written:37=kill"`` ends the process with SIGKILL at the 37th time that
place is passed. Without a count it is the first time; several are separated by commas. What can
happen::

    kill      the process ends as by kill -9
    eio       the disk reports an I/O error
    enospc    the disk is full
    short     a write stops half way (places whose name ends in "write" only)
    stall:10  the thread sleeps for that many seconds

From its hit on, ``eio`` and ``enospc`` stay when the count ends in "+" (``log.write:3+=enospc``).
When the variable is not set, passing a place costs one call and one comparison. Tests iterate over
``PLACES``; a place that is not in it does not exist.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from threading import Lock

from penstock.errors import ConfigError

VARIABLE = "PENSTOCK_FAILPOINT"

PLACES = {
    "log.create": "before a segment file is made",
    "log.write": "before blocks go to a segment",
    "log.written": "after blocks went to a segment",
    "log.sync": "before fdatasync of a segment",
    "log.synced": "after fdatasync of a segment, before anyone hears of it",
    "log.sealed": "after a full segment's last fdatasync, before the manifest names it",
    "log.drop": "after the manifest forgot segments, before their files go",
    "recovery.write": "before an unsynced tail is written once more",
    "synced_end.write": "before the synced end is noted for outside readers",
    "synced_end.written": "after the synced end was noted for outside readers",
    "redo.write": "before what many logs wrote goes to a redo file",
    "redo.kept": "after a redo file was synced, before any of its logs hears of it",
    "redo.apply": "before what a redo file kept is written to its place",
    "redo.applied": "after all of it is in its place, before redo files go",
    "redo.caught_up": "after the logs of a redo file are synced, before it goes",
    "manifest.write": "before a new manifest is written beside the old one",
    "manifest.rename": "before the new manifest replaces the old one",
    "manifest.renamed": "after the new manifest replaced the old one",
    "checkpoint.write": "before a checkpoint is written beside the old one",
    "checkpoint.rename": "before a checkpoint replaces the old one",
    "checkpoint.renamed": "after a checkpoint replaced the old one",
    "journal.create": "before a journal file is made",
    "journal.write": "before batches go to a journal",
    "journal.written": "after batches went to a journal",
    "journal.sync": "before fdatasync of a journal",
    "journal.synced": "after fdatasync of a journal",
    "journals.written": "after the journals of a turn were written, before any is synced",
    "commit.written": "after a commit's blocks were written, before they are synced",
    "commit.durable": "after a commit's blocks are durable, before the loop hears of it",
    "commit.answer": "before the publishers of a commit are answered",
    "removal.drop": "before the files of a deleted topic or channel go",
    "state.write": "before records go to the state file",
    "state.written": "after records went to the state file",
    "state.sync": "before fdatasync of the state file",
    "state.synced": "after fdatasync of the state file",
    "state.compact.write": "before a compacted state file is written",
    "state.compact.rename": "before the compacted state file replaces the old one",
    "state.compact.renamed": "after the compacted state file replaced the old one",
    "clean.write": "before it is noted which logs were closed well",
    "lock.write": "before the lock says who holds it",
    "reserve.write": "before the reserve file is described",
    "format.write": "before the format of a new data directory is noted",
    "format.rename": "before the noted format gets its name",
    "format.renamed": "after the noted format got its name",
}


class _Trap:
    """What happens at one place, and when."""

    __slots__ = ("action", "at", "seconds", "seen", "stays")

    def __init__(self, at: int, stays: bool, action: str, seconds: float) -> None:
        self.at = at
        self.stays = stays
        self.action = action
        self.seconds = seconds
        self.seen = 0


_traps: dict[str, _Trap] = {}
_lock = Lock()


def hit(place: str) -> bool:
    """Pass a place; True asks the caller to write only half (the action ``short``)."""
    return bool(_traps) and _passed(place)


def arm(text: str) -> None:
    """Set traps as the environment variable would; an empty text removes all."""
    traps = dict(_parsed(part) for part in text.split(",") if part.strip())
    _traps.clear()
    _traps.update(traps)


def _parsed(text: str) -> tuple[str, _Trap]:
    place, _, what = text.strip().partition("=")
    place, _, count = place.partition(":")
    action, _, seconds = what.partition(":")
    stays = count.endswith("+")
    try:
        trap = _Trap(int(count.rstrip("+") or 1), stays, action, float(seconds or 0))
    except ValueError as error:
        raise ConfigError(f"{VARIABLE}: '{text}' is not PLACE[:COUNT[+]]=ACTION") from error
    if place not in PLACES:
        raise ConfigError(f"{VARIABLE}: no place '{place}'; there are {', '.join(PLACES)}")
    if action not in {"kill", "eio", "enospc", "short", "stall"}:
        raise ConfigError(
            f"{VARIABLE}: no action '{action}'; use kill, eio, enospc, short, stall:S"
        )
    return place, trap


def _passed(place: str) -> bool:
    assert place in PLACES, place
    trap = _traps.get(place)
    if trap is None:
        return False
    with _lock:
        trap.seen += 1
        due = trap.seen == trap.at or (trap.stays and trap.seen > trap.at)
    if not due:
        return False
    if trap.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trap.action == "eio":
        raise OSError(errno.EIO, f"failpoint {place}")
    elif trap.action == "enospc":
        raise OSError(errno.ENOSPC, f"failpoint {place}")
    elif trap.action == "stall":
        time.sleep(trap.seconds)
    return trap.action == "short"


arm(os.environ.get(VARIABLE, ""))
