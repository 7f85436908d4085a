"""Durations and sizes as people write them, to numbers and back.

`1m30s` and `250ms` are Go's notation, which nsqd's users know; `64MiB` is a size. Settings, flags
and nsqd's command line all read through here. Nothing here knows a setting.
"""

import re
from fractions import Fraction

_DURATION_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1_000,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 1_000_000,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 1_000_000_000,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tb": 1_000_000_000_000,
    "tib": 1 << 40,
}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_DURATION_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")

DURATION_HINT = "write 250ms, 60s or 1m30s"
SIZE_HINT = "write 1048576, 512KiB or 64MiB"


def parse_duration_ms(text: str) -> int:
    """Whole milliseconds, rounded up so that what is positive never becomes 0.

    ValueError, with a hint, if it is none.
    """
    text = text.strip()
    if text == "0":
        return 0
    total_ns = Fraction(0)
    at = 0
    while match := _DURATION_PART.match(text, at):
        total_ns += Fraction(match[1].rstrip(".")) * _DURATION_UNITS_NS[match[2]]
        at = match.end()
    if at == 0 or at != len(text):
        raise ValueError(f"'{text}' is not a duration ({DURATION_HINT})")
    return -int(-total_ns // 1_000_000)


def show_duration(ms: int) -> str:
    """The shortest exact notation: 90_000 is `1m30s`, 250 is `250ms`."""
    if ms == 0:
        return "0s"
    shown = ""
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, ms = divmod(ms, size_ms)
        if count:
            shown += f"{count}{unit}"
    return shown


def parse_size(text: str) -> int:
    """Bytes; a bare number is bytes, K/M/G/T and KiB… are powers of 1024.

    ValueError, with a hint, if it is none.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"'{text}' is not a size ({SIZE_HINT})")
    size = Fraction(match[1].rstrip(".")) * factor
    if size.denominator != 1:
        raise ValueError(f"'{text}' is not a whole number of bytes")
    return int(size)


def show_size(size_bytes: int) -> str:
    """The largest power of 1024 that divides it: 67108864 is `64MiB`, 1500 is `1500`."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
