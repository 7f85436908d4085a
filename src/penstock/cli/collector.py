"""Python's garbage collector, kept from holding up the event loop.

A full collection looks at every object there is. With blocks and leases in memory that takes 50 to
150 ms, in which nobody is served, and it finds next to nothing: what is dropped here is freed by
its reference count. So four times a second everything alive is moved out of the collector's sight
(``gc.freeze`` joins two lists, whatever their length), and only what is younger is looked at. What
is out of sight is freed as ever when nobody refers to it; cycles among it wait for the full
collection that is made once an hour all the same.
"""

from __future__ import annotations

import asyncio
import gc

FREEZE_EVERY_S = 0.25
COLLECT_EVERY_S = 3600.0


class Collector:
    """Of the process that a server runs in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._collect_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on."""
        self._tick()

    def _tick(self) -> None:
        now = self._loop.time()
        if now >= self._collect_at:
            self._collect_at = now + COLLECT_EVERY_S
            gc.unfreeze()
            gc.collect()
        gc.freeze()
        self._timer = self._loop.call_later(FREEZE_EVERY_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gc.unfreeze()
