"""How long to wait before the next attempt: doubling, bounded, with jitter.

Pure: the caller sleeps. The jitter takes up to half of each wait away, so that clients that lost
the same broker at the same moment do not return to it at the same moment.
"""

from __future__ import annotations

from random import Random


class Backoff:
    """Waits that double from ``first`` to ``longest`` until ``reset``."""

    __slots__ = ("first", "longest", "_attempt", "_random")

    def __init__(self, first: float, longest: float, random: Random | None = None) -> None:
        self.first = first
        self.longest = longest
        self._attempt = 0
        self._random = random or Random()

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        self._attempt += 1
        return self._random.uniform(0.5, 1.0) * delay(self.first, self.longest, self._attempt)

    def reset(self) -> None:
        """The last attempt led to something: begin anew."""
        self._attempt = 0


def delay(first: float, longest: float, attempt: int) -> float:
    """The wait after the attempt of that number (from 1), without jitter."""
    # 2 ** 60 seconds is past any bound; without the cap a large number would overflow the float.
    return float(min(longest, first * 2.0 ** min(max(attempt, 1) - 1, 60)))
