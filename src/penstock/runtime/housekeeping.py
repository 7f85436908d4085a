"""Housekeeping: what is over goes. Finished messages past their time, old journals, idle topics.

A few topics are looked at in each tick of the host, so a round takes as long as there are topics
and no turn is held up. Of a log only whole segments go, and only below a *floor* that is safe: what
was seen once, and by now stands in synced journals, so that no crash brings back a cursor whose
messages are gone. History stays ``retain_ns`` after it was appended; what was only ever in memory
has none and goes at once. A log whose append times are in the future (the clock was ahead once, and
they never decrease) says nothing about age any more: there it counts what this run has seen.

A topic whose logs have segments that will go stays open until they are gone, and says so in its
document, so that the next run opens it too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.lanes import Lane
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import OperatingError
from penstock.protocol.block import DELAY_LANE
from penstock.runtime.committer import Committer, Writer
from penstock.runtime.journals import Journals, Keeper
from penstock.runtime.pool import Pool
from penstock.storage.port import Journal

log = logging.getLogger("penstock.housekeeping")

LOOK_AT = 100  # topics in one tick
LOOK_AGAIN_NS = 10_000_000_000  # at the same log
AGES = 8  # times seen of a log, within the time that history is kept


class Floor(NamedTuple):
    """A lane's floor as it was seen once. It is safe when the journals are synced up to then, and
    the state as it was (a channel may have been deleted); for a delay lane, the ready lanes that
    its messages moved to as well."""

    seen_at_ns: int
    state_version: int
    seq: int
    needs: Sequence[tuple[Lane, int]]


class Seen(NamedTuple):
    """A log's end at some time."""

    at_ns: int
    end: int


class Housekeeping:
    """Goes round the loaded topics, again and again."""

    def __init__(
        self,
        broker: Broker,
        committer: Committer,
        journals: Journals,
        pool: Pool,
        clock: Clock,
        retain_ns: int,
        memory_history: bool,
        unload_if_idle: Callable[[Topic], bool],
    ) -> None:
        self.broker = broker
        self.committer = committer
        self.journals = journals
        self.pool = pool
        self.clock = clock
        self.retain_ns = retain_ns
        self.memory_history = memory_history
        self.unload_if_idle = unload_if_idle
        self.round: list[str] = []
        self.floors: dict[Lane, Floor] = {}  # of lanes that can shrink or have jumps
        self.seen: dict[Lane, list[Seen]] = {}  # of logs whose append times are in the future
        self.failing: set[str] = set()

    def tick(self) -> None:
        """Look at the next few topics."""
        if not self.round:
            self.round = [*self.broker.topics]
            writers = self.committer.writers
            self.floors = {lane: seen for lane, seen in self.floors.items() if lane in writers}
            self.seen = {lane: seen for lane, seen in self.seen.items() if lane in writers}
        for name in self.round[-LOOK_AT:]:
            topic = self.broker.topics.get(name)
            if topic is not None and not self.unload_if_idle(topic):
                self._look(topic)
        del self.round[-LOOK_AT:]

    def _look(self, topic: Topic) -> None:
        now_ns = self.clock.now_ns()
        for partition in topic.partitions:
            if partition.note_mark(now_ns):
                self.committer.wake()
        lanes = topic.lanes()
        writers = [self.committer.writers[lane] for lane in lanes]
        if any(writer.shrinking for writer in writers):
            return
        monotonic_ns = self.clock.monotonic_ns()
        history = False
        below: list[tuple[Writer, int, int]] = []
        for writer in writers:
            bounds = writer.log.bounds()
            shrinks = bounds.droppable_end > bounds.start and writer.lane.refusal is None
            if not shrinks and writer.lane.key not in topic.jumps:
                continue
            floor = self._safe_floor(topic, writer.lane, monotonic_ns)
            topic.forget_jumps(writer.lane, floor)
            if not shrinks:
                continue
            history = history or writer.lane.stored
            aged_end = self._aged_end(writer.lane, now_ns, monotonic_ns)
            if floor > bounds.start:
                below.append((writer, floor, aged_end))
        if history != topic.history:
            topic.note_history(history)
        if self.broker.state_changes:
            self.committer.wake()
        keepers: Sequence[Keeper] = (*topic.channels.values(), *topic.partitions)
        journals = [
            journal
            for keeper in keepers
            if (journal := self.journals.open.get(keeper)) is not None and journal.has_history
        ]
        if below or journals:
            for writer in writers:
                writer.shrinking = True
            self.pool.submit(
                partial(_shrink, below, journals, now_ns, self.retain_ns),
                partial(self._shrunk, topic, writers),
            )

    def _safe_floor(self, topic: Topic, lane: Lane, monotonic_ns: int) -> int:
        """A floor that a crash cannot fall behind; 0 when none is known yet."""
        if not lane.stored:
            return 0 if self.memory_history else topic.floor_of(lane)
        floor = self.floors.get(lane)
        if floor is not None and (
            monotonic_ns - floor.seen_at_ns < LOOK_AGAIN_NS
            or not self.journals.cover(floor.seen_at_ns)
            or self.committer.state.durable < floor.state_version
            or any(ready.synced_end < end for ready, end in floor.needs)
        ):
            return 0
        needs: Sequence[tuple[Lane, int]] = ()
        if lane.lane == DELAY_LANE:
            ready = topic.partitions[lane.partition].ready
            needs = [(other, other.durable_end) for other in ready.values()]
        self.floors[lane] = Floor(
            monotonic_ns, self.broker.state_version, topic.floor_of(lane), needs
        )
        return floor.seq if floor is not None else 0

    def _aged_end(self, lane: Lane, now_ns: int, monotonic_ns: int) -> int:
        """Of a log whose append times are in the future: what lies below was there ``retain_ns``
        ago, as this run has seen."""
        if lane.appended_at_ns <= now_ns:
            self.seen.pop(lane, None)
            return 0
        seen = self.seen.setdefault(lane, [])
        if not seen or monotonic_ns - seen[-1].at_ns >= self.retain_ns // AGES:
            seen.append(Seen(monotonic_ns, lane.durable_end))
        while len(seen) > 1 and monotonic_ns - seen[1].at_ns >= self.retain_ns:
            del seen[0]
        return seen[0].end if monotonic_ns - seen[0].at_ns >= self.retain_ns else 0

    def _shrunk(
        self,
        topic: Topic,
        writers: Sequence[Writer],
        starts: list[tuple[Lane, int]] | None,
        failure: Exception | None,
    ) -> None:
        for lane, start in starts or ():
            lane.forget_below(start)
        for writer in writers:
            writer.shrinking = False
            self.committer.step_over(writer)
        if failure is None:
            self.failing.discard(topic.name)
        elif not isinstance(failure, OperatingError):
            raise failure
        elif topic.name not in self.failing:
            self.failing.add(topic.name)
            log.error("%s: old messages cannot be freed: %s", topic.name, failure)


def _shrink(
    below: Sequence[tuple[Writer, int, int]],
    journals: Sequence[Journal],
    now_ns: int,
    retain_ns: int,
) -> list[tuple[Lane, int]]:
    """On a disk thread; returns the lanes' new starts."""
    until_ns = now_ns - retain_ns
    starts: list[tuple[Lane, int]] = []
    for writer, floor, aged_end in below:
        seq = floor
        if writer.lane.stored:
            seq = min(floor, max(writer.log.seek_time(until_ns), aged_end))
        starts.append((writer.lane, writer.log.drop_below(seq)))
    for journal in journals:
        journal.drop_before(until_ns, now_ns)
    return starts
