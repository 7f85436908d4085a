"""The due-time index of a partition's delay lane: which messages sleep until when.

Entries are (wake, seq), stamped at publish. The *horizon* is the highest wake whose move has
begun; a new entry is always stamped above it, so a move only ever takes entries above the
watermark of the move before, and what is not durable yet is never passed by. The index lives in
memory here and is rebuilt from the delay log; it knows nothing of ready lanes or files.

Invariants: horizon only grows; every sleeping wake > horizon or is part of the one move under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

MOVE_MESSAGES_MAX = 2000  # one step of a move: well under 2 ms


class Schedule:
    """Sleeping messages of one partition."""

    __slots__ = ("committing", "entries", "horizon", "moving", "unsafe")

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.horizon = 0
        self.moving: list[tuple[int, int]] = []
        self.unsafe = 0  # smallest wake collecting for the next commit turn, 0 when none
        self.committing = 0  # smallest wake in the commit turn under way

    def __len__(self) -> int:
        return len(self.entries) + len(self.moving)

    def lowest_seq(self) -> int:
        """The lowest seq that sleeps or is on its way; beyond all seqs when there is none."""
        return min([seq for _, seq in (*self.entries, *self.moving)], default=1 << 63)

    def stamp(self, due_ns: int) -> int:
        """The wake of a message that is being published."""
        return due_ns if due_ns > self.horizon else self.horizon + 1

    def published(self, wakes: Sequence[int]) -> None:
        """Stamped, on its way to the log: nothing at or past these may move yet."""
        lowest = min(wakes)
        self.unsafe = min(self.unsafe, lowest) if self.unsafe else lowest

    def forming(self) -> None:
        """What was published so far is in the commit turn that begins now."""
        self.committing, self.unsafe = self.unsafe, 0

    def durable(self, base: int, wakes: Iterable[int]) -> None:
        for seq, wake in enumerate(wakes, base):
            heappush(self.entries, (wake, seq))

    def commit_over(self) -> None:
        """The commit turn is over, well or badly."""
        self.committing = 0

    def restore(self, entries: Iterable[tuple[int, int]], horizon: int) -> None:
        self.entries = [*entries]
        heapify(self.entries)
        self.horizon = horizon

    def begin_move(self, now_ns: int) -> Sequence[tuple[int, int]]:
        """The next due entries in (wake, seq) order; one move at a time. Raises the horizon."""
        if self.moving:
            return ()
        ceiling = self._ceiling()
        limit = min(now_ns, ceiling - 1) if ceiling else now_ns
        entries = self.entries
        while entries and entries[0][0] <= limit and len(self.moving) < MOVE_MESSAGES_MAX:
            self.moving.append(heappop(entries))
        if self.moving:
            self.horizon = max(self.horizon, self.moving[-1][0])
        return self.moving

    def end_move(self, done: int) -> None:
        """The first ``done`` entries of the move are durable in their ready lane; the others go
        back."""
        back = self.moving[done:]
        self.moving = []
        for entry in back:
            heappush(self.entries, entry)

    def next_wake(self) -> int:
        """When the next entry is due; 0 when nothing sleeps, or when the next one waits for a
        commit turn (at whose end this is asked again)."""
        ceiling = self._ceiling()
        if not self.entries or (ceiling and self.entries[0][0] >= ceiling):
            return 0
        return self.entries[0][0]

    def _ceiling(self) -> int:
        """What sleeps until then or longer waits for a commit turn; 0 when none is to come."""
        return min([one for one in (self.unsafe, self.committing) if one], default=0)
