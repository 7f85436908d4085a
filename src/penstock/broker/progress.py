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
    def end(self) -> int:
        """Where the cursor must stop: the durable end, or the topic's pause mark, or a jump."""
        end = self.lane.durable_end
        if self.limit is not None and self.limit < end:
            end = self.limit
        if self.jumps and self.jumps[0][0] < end:
            end = self.jumps[0][0]
        return end

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
