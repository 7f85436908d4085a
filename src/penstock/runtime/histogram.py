"""How long something took, counted in fixed buckets: for whoever asks how it usually is.

A note costs a search in a dozen numbers: it is for what happens once in a batch or rarer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

MS_NS = 1_000_000
# from a write into the page cache to a disk that is stuck
BOUNDS_NS = [
    *(100_000, 250_000, 500_000),
    *(each * MS_NS for each in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)),
]


class Histogram:
    """Counts by bucket, the last of them without a bound; and the sum of all."""

    __slots__ = ("bounds_ns", "counts", "sum_ns")

    def __init__(self, bounds_ns: Sequence[int] = BOUNDS_NS) -> None:
        self.bounds_ns = bounds_ns
        self.counts = [0] * (len(bounds_ns) + 1)
        self.sum_ns = 0

    def note(self, ns: int) -> None:
        self.counts[bisect_left(self.bounds_ns, ns)] += 1
        self.sum_ns += ns
