"""A channel as a dict: one entry a message that is not done, and what may become of it.

This is what the real channel is compared with; it knows no lanes, leases, ranges or blocks.
``replayed`` is the same for a journal: record by record, seq by seq.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.broker.channel import NOT_IN_FLIGHT, NOT_OWNER
from penstock.protocol.journal import (
    CURSOR,
    DELIVERED,
    EMPTIED,
    REQUEUED,
    SLEPT,
    TIMED_OUT,
    Batch,
)

Key = tuple[int, int]
"""A log and a seq."""


@dataclass
class Fresh:
    """Never handed out. ``doomed``: emptied before anyone saw it, so it will be passed over."""

    doomed: bool = False


@dataclass
class Held:
    who: str
    attempts: int
    handed_at: int
    deadline: int


@dataclass
class Again:
    attempts: int


@dataclass
class Asleep:
    wake: int
    attempts: int


class Model:
    """One channel. Whatever is not in ``state`` is done."""

    def __init__(self, max_timeout: int) -> None:
        self.max_timeout = max_timeout
        self.state: dict[Key, Fresh | Held | Again | Asleep] = {}

    def delivered(
        self, who: str, key: Key, attempts: int, at: int, timeout: int, *, sampled: bool
    ) -> None:
        """``sampled``: some consumer takes a share only, so what came before may be passed over."""
        now = self.state[key]  # a KeyError here: it was done, and came again
        assert not isinstance(now, Held | Asleep), (key, now)
        assert attempts == (now.attempts + 1 if isinstance(now, Again) else 1)
        if isinstance(now, Fresh) and not sampled:
            fresh = [
                other
                for other, state in self.state.items()
                if other[0] == key[0] and state == Fresh()
            ]
            assert key == min(fresh), "out of order, or early"
        self.state[key] = Held(who, attempts, at, at + timeout)

    def passed(self, log: int, cursor: int, sampled_out: int) -> None:
        """The cursor is here now: what is still fresh below was doomed or not in the sample."""
        below = [
            key
            for key, state in self.state.items()
            if key[0] == log and key[1] < cursor and isinstance(state, Fresh)
        ]
        lost = [key for key in below if self.state[key] == Fresh()]
        assert len(lost) <= sampled_out, lost
        for key in below:
            del self.state[key]

    def settle(self, who: str, key: Key) -> str | None:
        """Why the consumer can't settle this, or None."""
        now = self.state.get(key)
        if not isinstance(now, Held):
            return NOT_IN_FLIGHT
        return None if now.who == who else NOT_OWNER

    def requeue(self, key: Key, wake: int | None) -> None:
        held = self.state[key]
        assert isinstance(held, Held)
        self.state[key] = Again(held.attempts) if wake is None else Asleep(wake, held.attempts)

    def touch(self, key: Key, at: int, timeout: int) -> None:
        held = self.state[key]
        assert isinstance(held, Held)
        held.deadline = min(at + timeout, held.handed_at + self.max_timeout)

    def leave(self, who: str) -> None:
        for key in self.held_by(who):
            self.requeue(key, None)

    def ring(self, wall: int, monotonic: int) -> None:
        for key, now in self.state.items():
            if (isinstance(now, Held) and now.deadline <= monotonic) or (
                isinstance(now, Asleep) and now.wake <= wall
            ):
                self.state[key] = Again(now.attempts)

    def empty(self, ends: Mapping[int, int]) -> None:
        """Nothing below these is left, whatever it was."""
        self.state = {key: now for key, now in self.state.items() if key[1] >= ends[key[0]]}

    def held_by(self, who: str) -> list[Key]:
        return [key for key, now in self.state.items() if isinstance(now, Held) and now.who == who]

    def ready(self, limits: Mapping[int, int]) -> list[Key]:
        """What a consumer with credit should have got."""
        return [
            key
            for key, now in self.state.items()
            if isinstance(now, Again) or (now == Fresh() and key[1] < limits[key[0]])
        ]


Replayed = tuple[dict[Key, Again | Asleep], dict[int, int], dict[int, int]]
"""Outstanding messages, cursors, and empty marks."""


def replayed(batches: Iterable[Batch], starts: Mapping[int, int]) -> Replayed:
    """What a journal says. A snapshot stands for all that came before it."""
    state: dict[Key, Again | Asleep] = {}
    cursor = {**starts}
    marks: dict[int, int] = {}
    for batch in batches:
        if batch.snapshot:
            state.clear()
            marks.clear()
            cursor.update(starts)
        for kind, log, low, high, attempts, _, value in batch.records:
            if kind == EMPTIED and value:
                marks[log] = low
                continue
            if kind == CURSOR:
                cursor[log] = low
                continue
            if kind == EMPTIED:
                low, high = 0, max(low, cursor[log])
            for key in [key for key in state if key[0] == log and low <= key[1] < high]:
                del state[key]
            cursor[log] = max(cursor[log], high)
            for seq in range(low, high) if kind in (DELIVERED, REQUEUED, TIMED_OUT, SLEPT) else ():
                state[log, seq] = Asleep(value, attempts) if kind == SLEPT else Again(attempts)
    return state, cursor, marks
