"""A clock for tests of what expires."""

from __future__ import annotations


class HandClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.at_ns = 5_000_000_000

    def now_ns(self) -> int:
        raise AssertionError("the wall clock may jump")

    def monotonic_ns(self) -> int:
        return self.at_ns
