"""The rules for topic and channel names, the same as nsqd's.

A name is 1 to 64 characters of letters, digits, `.`, `_` and `-`, and may end in `#ephemeral`,
which counts towards the 64. `.` and `..` are legal names: who makes a path of one must encode it.
Pure functions without a cache: a door that sees a name a million times remembers the answer itself.
"""

import re

from penstock.limits import NAME_CHARS_MAX

EPHEMERAL_SUFFIX = "#ephemeral"
NAME_RULE = (
    f"1 to {NAME_CHARS_MAX} letters, digits, '.', '_' or '-', and '{EPHEMERAL_SUFFIX}' may follow"
)

# fullmatch, never `$`: a dollar sign would let a trailing newline through.
_match_text = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch
_match_bytes = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?").fullmatch


def is_valid_name(name: str) -> bool:
    """Whether nsqd would take this as a topic's or a channel's name."""
    return len(name) <= NAME_CHARS_MAX and _match_text(name) is not None


def is_valid_name_bytes(name: bytes) -> bool:
    """The same for a name as it came over the wire, before it is decoded."""
    return len(name) <= NAME_CHARS_MAX and _match_bytes(name) is not None


def is_ephemeral(name: str) -> bool:
    """Ephemeral topics and channels live in memory and go with their last user."""
    return name.endswith(EPHEMERAL_SUFFIX)
