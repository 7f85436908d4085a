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
from penstock.broker.lanes import Turn
from penstock.broker.partition import Partition
from penstock.broker.restore import snapshot
from penstock.clock import Clock
from penstock.errors import OperatingError
from penstock.failpoint import hit
from penstock.protocol.journal import RECORD
from penstock.runtime.pool import Pool
from penstock.runtime.timers import Handle
from penstock.storage.port import Journal

log = logging.getLogger("penstock.journals")

SNAPSHOT_BYTES = 8 << 20
Keeper = Channel | Partition
"""Who has a journal: a channel, or a partition for its delay lane."""
Failures = dict[Journal, OperatingError]


class Journals:
    """The open journals and the two intervals."""

    def __init__(
        self,
        broker: Broker,
        pool: Pool,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], Handle],
        wake: Callable[[], None],
        write_interval_ms: int,
        sync_interval_ms: int,
    ) -> None:
        self.broker = broker
        self.pool = pool
        self.clock = clock
        self.call_later = call_later
        self.wake = wake
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
        self.waiting: list[tuple[Journal | None, Turn]] = []
        self.on_failure: Callable[[Keeper, OperatingError], None] = _nothing

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

    def turn(self, keeper: Keeper) -> Turn:
        """A turn that ends when all that has happened to the keeper so far is synced."""
        turn = Turn()
        self.waiting.append((self.open.get(keeper), turn))
        if not self.busy:
            self.flush()
        return turn

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
        if broker.dirty_channels:
            self.wake()  # some were held up
        return written

    def flush(self) -> None:
        """Write off the loop; sync too when that is due."""
        written = [*dict.fromkeys([*self.unwritten, *self.collect()])]
        self.unwritten.clear()
        for journal in written:
            self.unsynced[journal] = None
        waiting, self.waiting = self.waiting, []
        monotonic_ns = self.clock.monotonic_ns()
        synced: list[Journal] = []
        overdue = monotonic_ns - self.synced_at_ns >= self.sync_interval_ns
        if self.unsynced and (waiting or overdue):
            self.synced_at_ns = monotonic_ns
            synced = [*self.unsynced]
            self.unsynced.clear()
        if not written and not synced:
            _end(waiting, {})
            self.arm()
            return
        self.busy = True

        def then(failures: Failures | None, failure: Exception | None) -> None:
            self.busy = False
            if failures is None:
                assert failure is not None
                raise failure  # our bug: end loudly
            self._note(failures)
            if synced and not failures:
                self.covered_at_ns = monotonic_ns
            _end(waiting, failures)
            if self.waiting:
                self.flush()
            else:
                self.arm()

        self.pool.submit(partial(_write, written, synced), then)

    def _note(self, failures: Failures) -> None:
        failure = next(iter(failures.values()), None)
        if failure is not None and self.failure is None:
            log.error("%s; deliveries go on, finished messages may come again", failure)
        self.failure = failure
        for keeper, journal in self.open.items() if failures else ():
            error = failures.get(journal)
            if error is not None:
                self.on_failure(keeper, error)
                if error.retry:
                    self.unwritten[journal] = None

    def take(self, keeper: Keeper) -> Journal | None:
        """The keeper goes: its journal is whoever asks's to close, or to drop unwritten."""
        journal = self.open.pop(keeper, None)
        if journal is not None:
            self.unsynced.pop(journal, None)
            self.unwritten.pop(journal, None)
        return journal


def _end(waiting: Iterable[tuple[Journal | None, Turn]], failures: Failures) -> None:
    for journal, turn in waiting:
        turn.end(failures.get(journal) if journal is not None else None)


def _write(written: Sequence[Journal], synced: Sequence[Journal]) -> Failures:
    """On a disk thread; returns what failed. One journal's failure holds no other up."""
    failures: Failures = {}
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


def _nothing(keeper: Keeper, error: OperatingError) -> None:
    """Nobody listens."""
