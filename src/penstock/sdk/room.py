"""Back-pressure: publishers that wait until the broker has answered for enough of what is pending.

Room is given in the order of asking, all that there is at once: if each woke only the next, a
thousand publishers would take a thousand turns of the loop and a command each. What was promised to
a publisher that has not run since counts as taken, so at most one message more than the limit is
pending. Nobody here has a timer: the producer's check of deadlines calls ``expire``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Pending(Protocol):
    """What fills the room."""

    pending_bytes: int


class Place(NamedTuple):
    """One publisher in the queue."""

    size_bytes: int
    deadline: float
    offer: asyncio.Future[None]


class Room:
    """See the module. Who finds fewer than ``free_below`` bytes pending need not ask."""

    __slots__ = ("free_below", "_bytes_max", "_pending", "_queue", "_promised_bytes")

    def __init__(self, pending: Pending, bytes_max: int) -> None:
        self.free_below = 0  # until it opens, and while somebody is in front
        self._bytes_max = bytes_max
        self._pending = pending
        self._queue: deque[Place] = deque()
        self._promised_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def open(self) -> None:
        """The producer has started."""
        self.free_below = self._bytes_max

    def close(self, error: Callable[[], Exception]) -> None:
        """The producer takes no more: whoever waits is told."""
        self._bytes_max = 0
        self.expire(float("inf"), error)
        self.free_below = 0

    async def wait(self, size_bytes: int, deadline: float) -> None:
        """Returns when so many bytes may be added; the caller adds them before it awaits again."""
        self.give()
        if self._pending.pending_bytes < self.free_below:
            return
        place = Place(size_bytes, deadline, asyncio.get_running_loop().create_future())
        self._queue.append(place)
        self.free_below = 0
        try:
            await place.offer
        except asyncio.CancelledError:
            if not place.offer.cancelled() and place.offer.exception() is None:
                # It was this one's turn; somebody else takes it.
                self._promised_bytes -= size_bytes
                self.give()
            raise
        self._promised_bytes -= size_bytes
        self._reopen()

    def give(self) -> None:
        """As much as there is, to the first in the queue."""
        queue = self._queue
        taken = self._pending.pending_bytes + self._promised_bytes
        while queue and (taken < self._bytes_max or queue[0].offer.done()):
            place = queue.popleft()
            if not place.offer.done():
                taken += place.size_bytes
                self._promised_bytes += place.size_bytes
                place.offer.set_result(None)
        self._reopen()

    def expire(self, now: float, error: Callable[[], Exception]) -> None:
        """Who has waited too long is told; deadlines are in the order of asking."""
        queue = self._queue
        while queue and queue[0].deadline <= now:
            place = queue.popleft()
            if not place.offer.done():
                place.offer.set_exception(error())
        self._reopen()

    def _reopen(self) -> None:
        if not self._queue and not self._promised_bytes:
            self.free_below = self._bytes_max
