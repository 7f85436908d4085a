"""Cold reads: blocks that a channel wants and that are not in memory, fetched off the loop.

The core says which seq of which lane is wanted; each is read once however many want it, in chunks
of about a megabyte of whole blocks, small neighbours gathered into one. What comes back goes to
the cache, and whoever asked is called again at once, before anything can push it out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.lanes import Lane
from penstock.broker.partition import Partition
from penstock.clock import Clock
from penstock.errors import CorruptionError, OperatingError
from penstock.protocol.block import Block, gather
from penstock.runtime.committer import Writer
from penstock.runtime.pool import Pool
from penstock.storage.port import Log

log = logging.getLogger("penstock.reader")

READ_BYTES_MAX = 1 << 20
MOVE_BYTES_MAX = 64 << 10  # what sleeps equally long lies close together, else it is one block
AGAIN_NS = 1_000_000_000  # after a read that the disk refused


class Reader:
    """Fetches what the core wants."""

    def __init__(
        self,
        broker: Broker,
        pool: Pool,
        clock: Clock,
        writers: dict[Lane, Writer],
        on_damage: Callable[[Lane, CorruptionError], None],
        wake: Callable[[], None],
    ) -> None:
        self.wake = wake
        self.broker = broker
        self.pool = pool
        self.clock = clock
        self.writers = writers
        self.on_damage = on_damage
        self.under_way: dict[tuple[Lane, int], list[Channel | Partition]] = {}
        self.failing: set[Lane] = set()

    def fetch(self) -> None:
        """Start on everything the turn left wanted."""
        broker = self.broker
        if broker.wants:
            wants, broker.wants = broker.wants, []
            for channel, lane, seq in wants:
                self._want(channel, lane, seq, READ_BYTES_MAX)
        if broker.delay_wants:
            delay_wants, broker.delay_wants = broker.delay_wants, []
            for partition, lane, seq in delay_wants:
                self._want(partition, lane, seq, MOVE_BYTES_MAX)

    def _want(self, who: Channel | Partition, lane: Lane, seq: int, bytes_max: int) -> None:
        key = (lane, seq)
        waiting = self.under_way.get(key)
        if waiting is not None:
            if who not in waiting:
                waiting.append(who)
            return
        writer = self.writers.get(lane)
        if writer is None:
            return
        self.under_way[key] = [who]
        end = lane.durable_end
        self.pool.submit(
            partial(_read, writer.log, seq, bytes_max, end), partial(self._arrived, key, end)
        )

    def _arrived(
        self,
        key: tuple[Lane, int],
        end: int,
        blocks: list[Block] | None,
        failure: Exception | None,
    ) -> None:
        lane, seq = key
        waiting = self.under_way.pop(key)
        if lane not in self.writers:
            return  # closed or deleted meanwhile
        if isinstance(failure, CorruptionError):
            self.on_damage(lane, failure)
            return
        if isinstance(failure, OperatingError):
            if lane not in self.failing:
                log.error("%s/%s cannot be read: %s", lane.topic, lane.key, failure)
                self.failing.add(lane)
            self.broker.alarm(self.clock.monotonic_ns() + AGAIN_NS, _Again(waiting))
            self.wake()
            return
        if failure is not None:
            raise failure
        self.failing.discard(lane)
        first = blocks[0].base if blocks else end
        for block in reversed(blocks or ()):  # the cache keeps what came last: what is wanted
            self.broker.cache.add(lane.shelf, block)
        if first > seq:
            lane.note_hole(seq, first)
        now_ns, monotonic_ns = self.clock.now_ns(), self.clock.monotonic_ns()
        for who in waiting:
            if isinstance(who, Partition):
                who.go_on()
            else:
                who.pump(now_ns, monotonic_ns)
        self.wake()


class _Again:
    """Whoever waits for a read that failed asks anew."""

    def __init__(self, waiting: list[Channel | Partition]) -> None:
        self.waiting = waiting

    def on_alarm(self, now_ns: int, monotonic_ns: int) -> None:
        for who in self.waiting:
            if isinstance(who, Partition):
                who.go_on()
            else:
                who.mark_dirty()


def _read(opened: Log, seq: int, bytes_max: int, end: int) -> list[Block]:
    """Only what was durable when it was asked for: a block above may yet fail."""
    return gather([block for block in opened.read(seq, bytes_max) if block.end <= end])
