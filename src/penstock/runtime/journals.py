"""Channels' journals on their way to storage: what happened is collected in the core and written
here.

Every ``write_interval`` all channels in which something happened are written in one job off the
loop, every ``sync_interval`` what was written is synced. So a finish older than the first survives
kill -9, one older than the second survives power loss; what is younger may only be delivered
again. When a journal has grown enough it gets a snapshot, from which the next restart begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.partition import Partition
from penstock.broker.restore import snapshot
from penstock.clock import Clock
from penstock.errors import OperatingError
from penstock.failpoint import hit
from penstock.protocol.journal import RECORD
from penstock.runtime.pool import Pool
from penstock.runtime.timers import Handle
from penstock.storage.port import Engine, Journal

log = logging.getLogger("penstock.journals")

SNAPSHOT_BYTES = 8 << 20
Keeper = Channel | Partition
"""Who has a journal: a channel, or a partition for its delay lane."""


class Journals:
    """The open journals and the two intervals."""

    def __init__(
        self,
        broker: Broker,
        pool: Pool,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Handle],
        write_interval_ms: int,
        sync_interval_ms: int,
    ) -> None:
        self.broker = broker
        self.pool = pool
        self.clock = clock
        self.call_later = call_later
        self.write_interval_s = write_interval_ms / 1000
        self.sync_interval_ns = sync_interval_ms * 1_000_000
        self.open: dict[Keeper, Journal] = {}
        self.unwritten: dict[Journal, None] = {}  # found no room; written again
        self.unsynced: dict[Journal, None] = {}
        self.synced_at_ns = 0
        self.covered_at_ns = -1
        self.armed: Handle | None = None
        self.busy = False
        self.failure: OperatingError | None = None

    def arm(self) -> None:
        """At each turn's end: if something happened, write it within the interval."""
        if self.armed is None and (
            self.broker.dirty_journals
            or self.broker.dirty_delays
            or self.unsynced
            or self.unwritten
        ):
            self.armed = self.call_later(self.write_interval_s, self._ring)

    def _ring(self) -> None:
        self.armed = None
        if not self.busy:
            self.flush()

    def cover(self, monotonic_ns: int) -> bool:
        """Whether everything that had happened by then is synced."""
        broker = self.broker
        at_rest = not (
            self.busy
            or self.unsynced
            or self.unwritten
            or broker.dirty_journals
            or broker.dirty_delays
        )
        return self.failure is None and (at_rest or self.covered_at_ns >= monotonic_ns)

    def collect(self) -> list[Journal]:
        """Hand what happened to the journals; returns those that have something to write."""
        broker = self.broker
        written: list[Journal] = []
        channels, broker.dirty_journals = broker.dirty_journals, []
        partitions, broker.dirty_delays = broker.dirty_delays, []
        keepers: Iterable[Keeper] = (*channels, *partitions)
        now_ns = self.clock.now_ns()
        for keeper in keepers:
            batch = keeper.take_records()
            journal = self.open.get(keeper)
            if journal is None:
                continue  # gone meanwhile
            journal.append(batch)
            if _snapshot_due(keeper, journal):
                journal.append(
                    snapshot(keeper, now_ns) if isinstance(keeper, Channel) else keeper.snapshot()
                )
            written.append(journal)
        return written

    def flush(self) -> None:
        """Write off the loop; sync too when that is due."""
        written = [*dict.fromkeys([*self.unwritten, *self.collect()])]
        self.unwritten.clear()
        for journal in written:
            self.unsynced[journal] = None
        monotonic_ns = self.clock.monotonic_ns()
        synced: list[Journal] = []
        if self.unsynced and monotonic_ns - self.synced_at_ns >= self.sync_interval_ns:
            self.synced_at_ns = monotonic_ns
            synced = [*self.unsynced]
            self.unsynced.clear()
        if not written and not synced:
            self.arm()
            return
        self.busy = True

        def then(failures: dict[Journal, OperatingError] | None, failure: Exception | None) -> None:
            self.busy = False
            if failures is None:
                assert failure is not None
                raise failure  # our bug: end loudly
            still_open = {*self.open.values()} if failures else set()
            for journal, error in failures.items():
                if error.retry and journal in still_open:
                    self.unwritten[journal] = None
            self._note(next(iter(failures.values()), None))
            if synced and not failures:
                self.covered_at_ns = monotonic_ns
            self.arm()

        self.pool.submit(partial(_write, written, synced), then)

    def _note(self, failure: OperatingError | None) -> None:
        if failure is not None and self.failure is None:
            log.error("%s; deliveries go on, finished messages may come again", failure)
        self.failure = failure

    def take(self, keeper: Keeper) -> Journal | None:
        """The keeper goes: its journal is whoever asks's to close, or to drop unwritten."""
        journal = self.open.pop(keeper, None)
        if journal is not None:
            self.unsynced.pop(journal, None)
            self.unwritten.pop(journal, None)
        return journal


def _write(written: Sequence[Journal], synced: Sequence[Journal]) -> dict[Journal, OperatingError]:
    """On a disk thread; returns what failed. One journal's failure holds no other up."""
    failures: dict[Journal, OperatingError] = {}
    for journal in written:
        try:
            journal.write()
        except OperatingError as error:
            failures[journal] = error
    hit("journals.written")
    for journal in synced:
        try:
            journal.sync()
        except OperatingError as error:
            failures.setdefault(journal, error)
    return failures


def _snapshot_due(keeper: Keeper, journal: Journal) -> bool:
    """When the journal has grown by as much as a snapshot takes, so that they don't add up."""
    grown = journal.bytes_since_snapshot
    if grown <= SNAPSHOT_BYTES or isinstance(keeper, Partition):
        return grown > SNAPSHOT_BYTES
    outstanding = sum([len(one.retry) + len(one.sleeping) for one in keeper.progress])
    return grown > RECORD.size * outstanding


def journal_name(keeper: Keeper) -> str:
    """The name a journal is kept under; '@' can't be in a channel's name."""
    if isinstance(keeper, Channel):
        return keeper.name
    return f"delay@{keeper.number}"


def open_new(engine: Engine, keeper: Keeper) -> Journal:
    """A journal nobody has written yet."""
    journal = engine.journal(keeper.topic, journal_name(keeper))
    for _ in journal.recover():
        raise AssertionError(f"{keeper!r} is new and has a journal")
    return journal
