"""A histogram of durations with logarithmic buckets, in the manner of HdrHistogram.

A value keeps its seven leading bits, so a percentile is at most 0.8 % too high, from nanoseconds to
hours, in a few hundred counters. Histograms of several workers add up exactly, which percentiles do
not. About 60 lines do not pay for a dependency with a C extension.
"""

from __future__ import annotations

from collections import Counter

_KEPT_BITS = 7
_SUB_BUCKETS = 1 << _KEPT_BITS


class Histogram:
    """Counts of nanoseconds."""

    __slots__ = ("_counts", "total", "max_ns")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total = 0
        self.max_ns = 0

    def record(self, duration_ns: int, count: int = 1) -> None:
        """``count`` events that took this long; a clock's step back counts as 0."""
        duration_ns = max(duration_ns, 0)
        shift = max(duration_ns.bit_length() - _KEPT_BITS - 1, 0)
        self._counts[shift * _SUB_BUCKETS + (duration_ns >> shift)] += count
        self.total += count
        self.max_ns = max(self.max_ns, duration_ns)

    def add(self, other: Histogram) -> None:
        """Take in another histogram's counts."""
        self._counts.update(other._counts)
        self.total += other.total
        self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_ns(self, percent: float) -> int:
        """The duration that ``percent`` of the events did not exceed; 0 if there were none."""
        wanted = self.total * percent / 100
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_highest_of(bucket), self.max_ns)
        return self.max_ns

    def in_ms(self, prefix: str) -> dict[str, float]:
        """The usual percentiles, as metrics in milliseconds."""
        shown = {
            f"{prefix}_p{name}_ms": round(self.percentile_ns(percent) / 1e6, 4)
            for name, percent in (("50", 50.0), ("90", 90.0), ("99", 99.0), ("99_9", 99.9))
        }
        return shown | {f"{prefix}_max_ms": round(self.max_ns / 1e6, 4)}


def _highest_of(bucket: int) -> int:
    # From the second row on a bucket's leading bit is set: the row is found from the quotient.
    shift = max(bucket // _SUB_BUCKETS - 1, 0)
    return ((bucket - shift * _SUB_BUCKETS + 1) << shift) - 1
