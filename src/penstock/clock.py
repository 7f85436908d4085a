"""Time as the broker sees it: the wall clock for what people and other machines see (publish
timestamps, due times), the monotonic clock for what must not jump (leases, heartbeats). Both in
nanoseconds.

The core never reads a clock; it is handed the time. Tests and simulations hand it theirs.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)
