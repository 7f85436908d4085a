"""Group commit: at the end of each loop turn what was published becomes durable and is handed out.

One turn, in order: state that must not be forgotten, then one write per lane that has something
pending (with ``synced``, one fdatasync behind it, off the loop), then answers, then the channels
that can hand something out. While a lane's commit is under way its publishes collect for the next
one, so the slower the disk, the larger the groups. When many lanes have a little to sync, they are
given to the engine together: a thousand topics must not become a queue of fsyncs.

``written`` lanes write on the loop where the engine only touches the page cache, and are synced in
the background every ``sync_messages_max`` messages or ``sync_interval_ms``. A failed log answers
with its error and holds nobody else up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.lanes import Lane, Turn
from penstock.clock import Clock
from penstock.errors import DiskFull, OperatingError
from penstock.failpoint import hit
from penstock.protocol.block import Block
from penstock.runtime.histogram import Histogram
from penstock.runtime.pool import Pool
from penstock.runtime.state import StateSaver
from penstock.storage.port import Engine, Log

log = logging.getLogger("penstock.committer")

ALONE_MAX = 1  # small commits under way with a sync of their own; more of them go together
TOGETHER_BYTES_MAX = 64 << 10  # a larger commit has always one of its own: it is worth it


class Writer:
    """A lane and the log it is written to."""

    __slots__ = (
        "busy",
        "lane",
        "log",
        "moved",
        "shrinking",
        "synced_each",
        "syncing",
        "unsynced",
        "unsynced_since_ns",
        "waiting",
    )

    def __init__(self, lane: Lane, log: Log, synced_each: bool) -> None:
        self.lane = lane
        self.log = log
        self.synced_each = synced_each
        self.busy = False
        self.syncing = False
        self.shrinking = False  # housekeeping frees old segments
        self.unsynced = 0
        self.unsynced_since_ns = 0
        self.moved = False  # among what is not synced are messages from the delay lane
        self.waiting: list[Callable[[], None]] = []  # who waits until nothing is under way


class Commit(NamedTuple):
    """Blocks of one turn on their way to a log."""

    writer: Writer
    blocks: Sequence[Block]
    turn: Turn
    size: int
    formed_at_ns: int


class Committer:
    """Carries out the effects that a turn left behind."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        pool: Pool,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        sync_messages_max: int,
    ) -> None:
        self.broker = broker
        self.engine = engine
        self.pool = pool
        self.clock = clock
        self.call_soon = call_soon
        self.sync_messages_max = sync_messages_max
        self.writers: dict[Lane, Writer] = {}
        self.behind: dict[Writer, None] = {}  # with something unsynced, the longest first
        self.scheduled = False
        self.after_turn: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self.on_failure: Callable[[Lane, OperatingError], None] = _nothing
        self.state = StateSaver(broker, engine, pool, self.wake)
        self.unwritten: list[Commit] = []  # to be written and synced off the loop
        self.alone_count = 0  # of commits under way by themselves
        self.together = False  # a group of commits is under way
        self.latency = Histogram()  # from forming a commit's blocks to their durability
        self.failed_count = 0  # commits that were not kept
        self.sync_count = 0  # a group's is one

    # -- the turn

    def wake(self) -> None:
        """Something happened: run a turn when this round of I/O is through."""
        if not self.scheduled:
            self.scheduled = True
            self.call_soon(self.turn)

    def turn(self) -> None:
        self.scheduled = False
        broker = self.broker
        if broker.dirty_lanes:
            dirty, broker.dirty_lanes = broker.dirty_lanes, []
            now_ns = self.clock.now_ns()
            for lane in dirty:
                self._commit(lane, now_ns)
        if self.unwritten:
            self._dispatch()
        self.state.save()
        if broker.dirty_channels:
            self._pump()
        self.after_turn()

    def _pump(self) -> None:
        broker = self.broker
        dirty, broker.dirty_channels = broker.dirty_channels, []
        now_ns = self.clock.now_ns()
        monotonic_ns = self.clock.monotonic_ns()
        for channel in dirty:
            channel.pump(now_ns, monotonic_ns)
        if broker.dirty_channels:
            self.wake()

    # -- blocks

    def follow(self, lane: Lane, opened: Log, durability: str) -> Writer:
        writer = self.writers[lane] = Writer(lane, opened, durability == "synced")
        return writer

    def unfollow(self, lane: Lane) -> Log:
        """The lane is idle and goes; its log is whoever asks's to close."""
        writer = self.writers.pop(lane)
        self.behind.pop(writer, None)
        return writer.log

    def _commit(self, lane: Lane, now_ns: int) -> None:
        writer = self.writers.get(lane)
        if writer is None or writer.busy or not lane.pending:
            return  # gone; or its commit under way takes the rest when it ends, or has just done so
        try:
            blocks, turn, size = lane.form(now_ns)
        except OperatingError as error:
            self.failed_count += 1
            self.on_failure(lane, error)
            lane.refuse_pending(error)
            self.step_over(writer)
            self.on_room()
            return
        writer.busy = True
        commit = Commit(writer, blocks, turn, size, self.clock.monotonic_ns())
        needed = max(lane.state_needed, self.broker.commit_state_needed)
        if needed > self.state.durable:
            # a topic, a tag or a reservation that these blocks need is not safe yet
            self.state.after(partial(self._write, commit), needed)
        else:
            self._write(commit, None)

    def _write(self, commit: Commit, error: Exception | None) -> None:
        writer = commit.writer
        if error is not None:
            self._written(commit, error)
            return
        for block in commit.blocks:
            writer.log.append(block)
        if writer.synced_each or not self.engine.writes_inline:
            self.unwritten.append(commit)
        elif self._write_here(commit):
            self._written(commit, None)

    def _write_here(self, commit: Commit) -> bool:
        """On the loop, into the page cache; False when it failed and is over."""
        try:
            commit.writer.log.write()
        except OperatingError as failure:
            self._written(commit, failure)
            return False
        return True

    def _dispatch(self) -> None:
        """Start on what waits for a disk thread: what is large or by itself has a sync of its own,
        the others go together, and while such a group is under way the next one collects."""
        commits, self.unwritten = self.unwritten, []
        small: list[Commit] = []
        for commit in commits:
            if commit.size > TOGETHER_BYTES_MAX or not commit.writer.synced_each:
                self._write_alone(commit)
            else:
                small.append(commit)
        if self.alone_count + len(small) <= ALONE_MAX:
            for commit in small:
                self._write_alone(commit)
        elif self.together:
            self.unwritten = small
        else:
            self._write_together(small)

    def _write_alone(self, commit: Commit) -> None:
        opened, synced_each = commit.writer.log, commit.writer.synced_each
        self.alone_count += 1
        self.sync_count += synced_each

        def job() -> int:
            opened.write()
            hit("commit.written")
            synced = opened.sync() if synced_each else 0
            hit("commit.durable")
            return synced

        def then(synced_end: int | None, failure: Exception | None) -> None:
            self.alone_count -= 1
            if synced_end:
                commit.writer.lane.synced_end = synced_end
            self._written(commit, failure)
            self.wake()

        self.pool.submit(job, then)

    def _write_together(self, commits: Sequence[Commit]) -> None:
        if self.engine.writes_inline:
            # a thread that writes to many files fights with the loop for each of them
            commits = [commit for commit in commits if self._write_here(commit)]
        if not commits:
            return
        logs = [commit.writer.log for commit in commits]
        self.together = True
        self.sync_count += 1

        def job() -> Sequence[int | OperatingError]:
            outcomes = self.engine.commit(logs)
            hit("commit.durable")
            return outcomes

        def then(
            outcomes: Sequence[int | OperatingError] | None, failure: Exception | None
        ) -> None:
            self.together = False
            if failure is not None:
                raise failure  # our bug: end loudly
            for commit, outcome in zip(commits, outcomes or (), strict=True):
                if isinstance(outcome, int):
                    commit.writer.lane.synced_end = outcome
                    self._written(commit, None)
                else:
                    self._written(commit, outcome)
            self.wake()

        self.pool.submit(job, then)

    def _written(self, commit: Commit, failure: Exception | None) -> None:
        writer, blocks, turn, size, formed_at_ns = commit
        lane = writer.lane
        writer.busy = False
        error: OperatingError | None = None
        if failure is None:
            lane.committed(blocks, size)
            self.latency.note(self.clock.monotonic_ns() - formed_at_ns)
            if not writer.synced_each:
                self._count_unsynced(writer, blocks)
        else:
            self.failed_count += 1
            error = _as_operating(lane, failure)
            lane.failed(blocks, size, error, lasting=not isinstance(error, DiskFull))
            self.on_failure(lane, error)
        hit("commit.answer")
        turn.end(error)
        if lane.pending:
            if lane.refusal is not None:
                lane.refuse_pending(lane.refusal)
            else:
                self.broker.dirty_lanes.append(lane)
                self.wake()
        self.step_over(writer)
        self.on_room()

    def is_idle(self, lane: Lane) -> bool:
        """Whether nothing of the lane is pending or under way."""
        writer = self.writers[lane]
        return not (writer.busy or writer.syncing or writer.shrinking or lane.pending)

    def when_idle(self, lane: Lane, then: Callable[[], None]) -> None:
        """Call once the lane is idle."""
        if self.is_idle(lane):
            then()
        else:
            self.writers[lane].waiting.append(then)

    def step_over(self, writer: Writer) -> None:
        """Something of the lane that was under way is over: was it the last?"""
        if writer.waiting and self.is_idle(writer.lane):
            waiting, writer.waiting = writer.waiting, []
            for then in waiting:
                then()

    # -- written lanes are synced behind the answers

    def _count_unsynced(self, writer: Writer, blocks: Sequence[Block]) -> None:
        if not writer.unsynced:
            writer.unsynced_since_ns = self.clock.monotonic_ns()
            self.behind[writer] = None
        for block in blocks:
            writer.unsynced += block.count
            if block.mark is not None:
                writer.moved = True
        if writer.unsynced >= self.sync_messages_max and not writer.syncing:
            self.sync_behind(writer)

    def sync_behind(self, writer: Writer) -> None:
        """Sync what is written by now, without anybody waiting for it."""
        writer.syncing = True
        self.sync_count += 1
        writer.unsynced = 0
        writer.moved = False
        self.behind.pop(writer, None)

        def then(synced_end: int | None, failure: Exception | None) -> None:
            writer.syncing = False
            lane = writer.lane
            if failure is not None:
                lane.refusal = _as_operating(lane, failure)
                self.on_failure(lane, lane.refusal)
            elif synced_end:
                lane.synced_end = synced_end
            self.step_over(writer)

        self.pool.submit(writer.log.sync, then)

    def sync_overdue(self, interval_ns: int, moved_interval_ns: int) -> None:
        """Called now and then: sync written lanes whose oldest unsynced message has waited that
        long. With what was moved it is sooner: should a power cut take it, it would be moved once
        more, and come again to channels that have finished it."""
        now_ns = self.clock.monotonic_ns()
        overdue: list[Writer] = []
        for writer in self.behind:
            waited_ns = now_ns - writer.unsynced_since_ns
            if waited_ns < moved_interval_ns:
                break
            if not writer.syncing and (writer.moved or waited_ns >= interval_ns):
                overdue.append(writer)
        for writer in overdue:
            self.sync_behind(writer)


def _as_operating(lane: Lane, failure: Exception) -> OperatingError:
    if isinstance(failure, OperatingError):
        return failure
    if isinstance(failure, OSError):
        return OperatingError(
            f"{lane.topic}: {failure.strerror or failure}; nothing of it was kept"
        )
    raise failure  # our bug: end loudly


def _nothing(*_: object) -> None:
    """Nobody listens."""
