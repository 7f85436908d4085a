"""Leases: ranges of one lane handed to one subscriber with one deadline, and the table of them.

A lease covers seqs [low, high); what a consumer has finished inside the range is in ``holes``.
What is given back inside it cuts it in two, for it will be leased again. Consumers mostly finish in
order, so mostly a lease only moves its ``low`` and has no holes: finishing 200 messages is one
comparison. The table keeps the leases of one lane apart and sorted.

Invariants (``LeaseTable.verify``):
    ranges do not overlap and are sorted; low < high
    holes lie strictly inside: the first low of the table is the lowest seq in flight
    left == high - low - len(holes) > 0
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol


class Holder(Protocol):
    """Whom a lease belongs to: a subscriber of the channel."""

    number: int


NO_HOLES: frozenset[int] = frozenset()  # shared: a set per lease would be most of its memory


class Lease:
    """Messages of one lane in flight to one subscriber under one deadline."""

    __slots__ = (
        "attempts",
        "deadline_ns",
        "foreign",
        "handed_at_ns",
        "high",
        "holder",
        "holes",
        "left",
        "low",
    )

    def __init__(
        self,
        low: int,
        high: int,
        holder: Holder | None,
        attempts: int,
        handed_at_ns: int,
        deadline_ns: int,
        foreign: bool = False,
    ) -> None:
        self.foreign = foreign  # its messages came with ids of another log: seqs don't name them
        self.low = low
        self.high = high
        self.left = high - low
        self.holder = holder
        self.attempts = attempts
        self.handed_at_ns = handed_at_ns
        self.deadline_ns = deadline_ns
        self.holes: set[int] | frozenset[int] = NO_HOLES

    def seqs(self) -> Iterator[int]:
        holes = self.holes
        return (seq for seq in range(self.low, self.high) if seq not in holes)

    def ranges(self) -> list[tuple[int, int]]:
        """What is outstanding, as ranges."""
        out: list[tuple[int, int]] = []
        at = self.low
        for hole in sorted(self.holes):
            if hole > at:
                out.append((at, hole))
            at = hole + 1
        if at < self.high:
            out.append((at, self.high))
        return out


class LeaseTable:
    """All leases of one channel in one lane, found by seq."""

    __slots__ = ("leases", "lows")

    def __init__(self) -> None:
        self.lows: list[int] = []
        self.leases: list[Lease] = []

    def add(self, lease: Lease) -> None:
        lows = self.lows
        if not lows or lease.low > lows[-1]:
            lows.append(lease.low)
            self.leases.append(lease)
        else:
            index = bisect_left(lows, lease.low)
            lows.insert(index, lease.low)
            self.leases.insert(index, lease)

    def find(self, seq: int) -> Lease | None:
        """The lease under which ``seq`` is outstanding."""
        index = bisect_right(self.lows, seq) - 1
        if index < 0:
            return None
        lease = self.leases[index]
        if seq >= lease.high or seq in lease.holes:
            return None
        return lease

    def remove(self, lease: Lease) -> None:
        index = bisect_left(self.lows, lease.low)
        del self.lows[index], self.leases[index]

    def take_range(self, low: int, high: int, holder: Holder) -> int:
        """End what of [low, high) is outstanding without a gap from ``low`` on for ``holder``,
        under ids that follow from seqs; returns where that stops (``low``: nothing)."""
        lows = self.lows
        leases = self.leases
        at = low
        index = bisect_right(lows, at) - 1
        while index >= 0 and at < high:
            lease = leases[index]
            if lease.holder is not holder or at >= lease.high or lease.foreign:
                break
            until = high if high < lease.high else lease.high
            if at == lease.low and not lease.holes:
                lease.left -= until - at
                if until == lease.high:
                    del lows[index], leases[index]
                else:
                    lows[index] = lease.low = until
                    index += 1
                at = until
            else:
                # how far first: ending a message also forgets the holes beside it
                start, holes = at, lease.holes
                while at < until and at not in holes:
                    at += 1
                for seq in range(start, at):
                    self._take(index, lease, seq)
                if at < until:
                    break
                if lease.left:
                    index += 1
            if index >= len(leases) or leases[index].low != at:
                break
        return at

    def take(self, lease: Lease, seq: int) -> None:
        """End one outstanding message of a lease."""
        self._take(bisect_left(self.lows, lease.low), lease, seq)

    def cut_out(self, lease: Lease, seq: int) -> Sequence[Lease]:
        """End one outstanding message that will be leased again while the rest of its lease goes
        on. A hole is not enough for that: ranges must not overlap. Returns the pieces that the
        lease was cut into, none when it only became shorter."""
        if seq == lease.low or seq == lease.high - 1:
            self.take(lease, seq)
            return ()
        ranges = lease.ranges()
        self.remove(lease)
        pieces: list[Lease] = []
        for side in (
            [(low, min(high, seq)) for low, high in ranges if low < seq],
            [(max(low, seq + 1), high) for low, high in ranges if high > seq + 1],
        ):
            low, high = side[0][0], side[-1][1]
            piece = Lease(
                low,
                high,
                lease.holder,
                lease.attempts,
                lease.handed_at_ns,
                lease.deadline_ns,
                lease.foreign,
            )
            holes = {hole for hole in lease.holes if low < hole < high}
            if holes:
                piece.holes = holes
                piece.left -= len(holes)
            self.add(piece)
            pieces.append(piece)
        lease.left = 0
        return pieces

    def _take(self, index: int, lease: Lease, seq: int) -> None:
        lease.left -= 1
        if not lease.left:
            del self.lows[index], self.leases[index]
            return
        holes = lease.holes
        if isinstance(holes, frozenset):
            holes = lease.holes = set()
        if seq == lease.low:
            seq += 1
            while seq in holes:
                holes.remove(seq)
                seq += 1
            self.lows[index] = lease.low = seq
        elif seq == lease.high - 1:
            while seq - 1 in holes:
                seq -= 1
                holes.remove(seq)
            lease.high = seq
        else:
            holes.add(seq)

    def verify(self) -> None:
        previous = 0
        assert self.lows == [lease.low for lease in self.leases]
        for lease in self.leases:
            assert previous <= lease.low < lease.high, lease
            assert all(lease.low < hole < lease.high - 1 for hole in lease.holes), lease
            assert lease.left == lease.high - lease.low - len(lease.holes) > 0, lease
            previous = lease.high
