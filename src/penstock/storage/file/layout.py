"""Names of files and directories in a data directory, and nothing else about them.

Topic and channel names may be anything that NSQ allows, "." and ".." included, so what a file
system could misread is percent-encoded. Nothing in here touches a disk.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from penstock.protocol.block import DELAY_LANE

FORMAT = "format"
LOCK = "lock"
CLEAN = "clean"
STATE = "state"
RESERVE = "reserve"
TOPICS = "topics"
CHANNELS = "channels"
GONE = "gone"
NEW = ".new"

_SEGMENT = re.compile(r"(ready_(-?\d+)|delay)_(\d{20})(?:\.g(\d+))?\.seg")
_LANE = re.compile(r"(?:ready_(-?\d+)|delay)(?:_\d{20}(?:\.g\d+)?\.seg|\.manifest|\.synced)")
_REDO = re.compile(r"redo_(\d+)")
_JOURNAL = re.compile(r"journal_(\d+)")


def encoded(name: str) -> str:
    """A name that is safe as one part of a path."""
    safe = quote(name, safe="")
    return f"%2E{safe[1:]}" if safe.startswith(".") else safe


def decoded(part: str) -> str:
    return unquote(part)


def partition_directory(root: str, topic: str, partition: int) -> str:
    return f"{root}/{TOPICS}/{encoded(topic)}/{partition}"


def channel_directory(root: str, topic: str, channel: str) -> str:
    return f"{root}/{TOPICS}/{encoded(topic)}/{CHANNELS}/{encoded(channel)}"


def lane_name(lane: int) -> str:
    return "delay" if lane == DELAY_LANE else f"ready_{lane}"


def segment_name(lane: int, base: int, generation: int = 0) -> str:
    suffix = f".g{generation}" if generation else ""
    return f"{lane_name(lane)}_{base:020d}{suffix}.seg"


def index_name(segment: str) -> str:
    return segment.removesuffix(".seg") + ".index"


def parse_segment(name: str) -> tuple[int, int, int] | None:
    """(lane, base, generation) when it is a segment's name."""
    found = _SEGMENT.fullmatch(name)
    if found is None:
        return None
    return _lane(found[2]), int(found[3]), int(found[4] or 0)


def parse_lane(name: str) -> int | None:
    """The lane that a segment, a manifest or a note of the synced end belongs to."""
    found = _LANE.fullmatch(name)
    return None if found is None else _lane(found[1])


def redo_name(number: int) -> str:
    return f"redo_{number}"


def parse_redo(name: str) -> int | None:
    found = _REDO.fullmatch(name)
    return None if found is None else int(found[1])


def journal_name(number: int) -> str:
    return f"journal_{number}"


def parse_journal(name: str) -> int | None:
    found = _JOURNAL.fullmatch(name)
    return None if found is None else int(found[1])


def _lane(priority: str | None) -> int:
    return DELAY_LANE if priority is None else int(priority)
