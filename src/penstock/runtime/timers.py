"""One timer for the whole broker: whoever of the core asked to be called next decides when it
rings.

Leases count monotonic time, sleepers wall time. A wall clock may step, so while somebody sleeps
the timer looks at the clock at least once a second.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop
from typing import Protocol

from penstock.broker.broker import Broker
from penstock.broker.channel import Alarmed
from penstock.clock import Clock

LOOK_AGAIN_NS = 1_000_000_000


class Handle(Protocol):
    def cancel(self) -> None: ...


class Timers:
    """Rings for leases that run out, sleepers that wake, and due messages that move."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Handle],
        wake: Callable[[], None],
    ) -> None:
        self.broker = broker
        self.clock = clock
        self.call_later = call_later
        self.wake = wake
        self.handle: Handle | None = None
        self.rings_at_ns = 0
        self.stopped = False

    def arm(self) -> None:
        """At each turn's end: ring in time for whoever is next."""
        broker = self.broker
        if (not broker.alarms and not broker.wakes) or self.stopped:
            return
        monotonic_ns = 0
        at_ns = 0
        if broker.alarms:
            at_ns = broker.alarms[0][0]
            if self.rings_at_ns and self.rings_at_ns <= at_ns and not broker.wakes:
                return
        if broker.wakes:
            monotonic_ns = self.clock.monotonic_ns()
            ahead_ns = broker.wakes[0][0] - self.clock.now_ns()
            wake_at_ns = monotonic_ns + max(0, min(ahead_ns, LOOK_AGAIN_NS))
            at_ns = min(at_ns, wake_at_ns) if at_ns else wake_at_ns
        if self.rings_at_ns and self.rings_at_ns <= at_ns:
            return
        if self.handle is not None:
            self.handle.cancel()
        self.rings_at_ns = at_ns
        delay_ns = max(0, at_ns - (monotonic_ns or self.clock.monotonic_ns()))
        self.handle = self.call_later(delay_ns / 1e9, self.ring)

    def ring(self) -> None:
        self.handle = None
        self.rings_at_ns = 0
        broker = self.broker
        now_ns, monotonic_ns = self.clock.now_ns(), self.clock.monotonic_ns()
        # first all of them, each once: who has more to do than fits into a turn asks again at once
        due: dict[Alarmed, None] = {}
        while broker.alarms and broker.alarms[0][0] <= monotonic_ns:
            due[heappop(broker.alarms)[2]] = None
        while broker.wakes and broker.wakes[0][0] <= now_ns:
            due[heappop(broker.wakes)[2]] = None
        for target in due:
            target.on_alarm(now_ns, monotonic_ns)
        self.wake()

    def is_due(self) -> bool:
        broker = self.broker
        return bool(
            (broker.alarms and broker.alarms[0][0] <= self.clock.monotonic_ns())
            or (broker.wakes and broker.wakes[0][0] <= self.clock.now_ns())
        )

    def stop(self) -> None:
        """What comes due from here on is the next run's."""
        self.stopped = True
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
