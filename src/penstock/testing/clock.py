"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import time


class FakeClock:
    """The broker's wall and monotonic clock, in your hand. Starts at the real time."""

    def __init__(self, start_ns: int | None = None) -> None:
        self._now_ns = time.time_ns() if start_ns is None else start_ns
        self._monotonic_ns = 1

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Both clocks go on. (A broker on it must be told: use its ``advance``.)"""
        step_ns = round(seconds * 1e9)
        if step_ns < 0:
            raise ValueError("time goes forward; `step` moves the wall clock alone")
        self._now_ns += step_ns
        self._monotonic_ns += step_ns

    def step(self, seconds: float) -> None:
        """Only the wall clock jumps, forward or back, as when somebody sets it."""
        self._now_ns += round(seconds * 1e9)
