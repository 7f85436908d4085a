"""How the command line writes bodies, times, seqs and counts."""

import base64
from datetime import UTC, datetime


def body_fields(body: bytes) -> dict[str, str]:
    """`body`, or `body_base64` where it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def shown_time(at_ns: int) -> str:
    """In UTC, to the microsecond."""
    try:
        at = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ns} ns"  # further away than calendars go
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ns % 1_000_000_000 // 1000:06}Z"


def seqs(low: int, end: int) -> str:
    """The seqs from `low` up to and without `end`."""
    if end <= low:
        return f"no seqs below {end}" if end else "no seqs"
    return f"seq {low}" if end == low + 1 else f"seqs {low} to {end - 1}"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
