"""A delay as programs give it, and as the wire has it."""

from __future__ import annotations

from datetime import timedelta

from penstock.sdk.errors import MessageInvalid

Delay = float | timedelta


def delay_ms(delay: Delay) -> int:
    """Whole milliseconds; what is above 0 stays above 0."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds < float("inf"):
        raise MessageInvalid(f"a delay is a number of seconds from 0, not {delay!r}")
    return max(1, round(seconds * 1000)) if seconds else 0
