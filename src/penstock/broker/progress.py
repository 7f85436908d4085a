"""Where a channel stands in one lane: the cursor, and everything below it that is not done."""

from __future__ import annotations

from penstock.broker.lanes import Lane
from penstock.broker.lease import LeaseTable


class Progress:
    """Where a channel stands in one lane."""

    __slots__ = ("cursor", "jumps", "lane", "leases", "limit", "order", "retry", "sleeping")

    def __init__(self, lane: Lane, cursor: int, order: int) -> None:
        self.lane = lane
        self.order = order  # decides between equal wake times
        self.cursor = cursor
        self.limit: int | None = None
        self.jumps: list[tuple[int, int]] = []  # emptied from the topic while it was paused
        self.leases = LeaseTable()
        self.retry: dict[int, int] = {}
        self.sleeping: dict[int, tuple[int, int]] = {}

    @property
    def bound(self) -> int:
        """What the cursor never passes: the durable end, or the topic's pause mark."""
        end = self.lane.durable_end
        return end if self.limit is None or self.limit > end else self.limit

    @property
    def end(self) -> int:
        """Where the cursor stops next: there, or before what it has to jump over."""
        end = self.bound
        return self.jumps[0][0] if self.jumps and self.jumps[0][0] < end else end

    def fresh_count(self) -> int:
        """How many messages there are that nobody got yet, and that may be handed out."""
        at, bound = self.cursor, self.bound
        if at >= bound:
            return 0
        count = 0
        for low, high in self.jumps:
            if at < low < bound:
                count += self.lane.messages_between(at, low)
            at = max(at, high)
        return count + self.lane.messages_between(at, bound) if at < bound else count

    def jump(self) -> int:
        """Pass over what was emptied while the topic was paused; returns where from, -1 for
        nowhere."""
        start = -1
        while self.jumps and self.cursor >= self.jumps[0][0]:
            start = self.cursor if start < 0 else start
            self.cursor = max(self.cursor, self.jumps.pop(0)[1])
        return start

    @property
    def floor(self) -> int:
        lowest = self.leases.lows[0] if self.leases.lows else self.cursor
        if self.retry:
            lowest = min(lowest, min(self.retry))
        if self.sleeping:
            lowest = min(lowest, min(self.sleeping))
        return lowest
