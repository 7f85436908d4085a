"""The broker's core hosted on an event loop, with storage under it. Doors talk to this.

A door asks for a topic (``topic``), publishes to it or subscribes to its channels, and calls
``wake`` so that a turn runs when this round of I/O is through. A topic that an earlier run left is
opened off the loop first: then the door gets None and is called back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.lanes import Turn
from penstock.broker.statistics import Client
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import OperatingError
from penstock.runtime.committer import Committer
from penstock.runtime.histogram import Histogram
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.journals import Journals
from penstock.runtime.pool import Pool
from penstock.runtime.reader import Reader
from penstock.runtime.timers import Timers
from penstock.runtime.topics import Topics
from penstock.runtime.trouble import Trouble
from penstock.storage.port import Engine

log = logging.getLogger("penstock.host")

TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What the host must know of the settings."""

    broker: BrokerOptions
    sync_interval_ms: int = 2_000
    sync_messages_max: int = 2_500
    journal_write_interval_ms: int = 50
    journal_sync_interval_ms: int = 500
    uncommitted_bytes_max: int = 64 << 20
    idle_unload_ms: int = 300_000
    retain_ms: int = 24 * 3_600_000
    memory_history: bool = False  # keep what is finished of topics in memory, too
    verify: bool = False


class Host:
    """Core, committer, reader, journals and timers, wired."""

    def __init__(
        self,
        options: HostOptions,
        engine: Engine,
        pool: Pool,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        seed: int | None = None,
    ) -> None:
        self.options = options
        self.engine = engine
        self.pool = pool
        self.clock = clock
        self.loop = loop
        self.broker = broker = Broker(options.broker, seed)
        self.committer = Committer(
            broker, engine, pool, clock, loop.call_soon, options.sync_messages_max
        )
        self.wake = self.committer.wake
        self.journals = Journals(
            broker,
            pool,
            clock,
            loop.call_later,
            self.wake,
            options.journal_write_interval_ms,
            options.journal_sync_interval_ms,
        )
        self.timers = Timers(broker, clock, loop.call_later, self.wake)
        self.trouble = Trouble(broker, engine)
        self.problems = self.trouble.problems
        self.reader = Reader(
            broker, pool, clock, self.committer.writers, self.trouble.lane_damaged, self.wake
        )
        self.topics = Topics(
            broker,
            engine,
            pool,
            clock,
            self.committer,
            self.journals,
            self.trouble,
            options.idle_unload_ms * 1_000_000,
        )
        self.topic = self.topics.topic
        self.is_leaving = self.topics.is_leaving
        self.removals = self.topics.removals
        self.housekeeping = Housekeeping(
            broker,
            self.committer,
            self.journals,
            pool,
            clock,
            options.retain_ms * 1_000_000,
            options.memory_history,
            self.topics.unload_if_idle,
        )
        self.committer.after_turn = self._after_turn
        self.committer.on_room = self._room
        self.committer.on_failure = self.trouble.lane_failed
        self.committer.state.on_saved = self.trouble.state_saved
        self.journals.on_failure = self.trouble.journal_failed
        self.held_back: list[Callable[[], None]] = []
        self.clients: list[Callable[[], Iterable[Client]]] = []  # of each door that has some
        self.chore_busy = False
        self.tick_handle: asyncio.TimerHandle | None = None
        self.tick_due_ns = 0
        self.loop_lag = Histogram()  # how late the ticks came

    def start(self) -> None:
        """Take up what is stored; only topics in which something may be due are opened now."""
        items: dict[str, bytes] = {}
        for key, value in self.engine.state.items(""):
            if key.startswith("seq/"):
                self.topics.reserved[int(key[4:])] = int(value)
            else:
                items[key] = value
        self.broker.restore(items)
        self.removals.finish_earlier(self.engine)
        self._tick()
        self.topics.open_due()

    # -- by hand: the turns end when it is safe to say that it is done

    def pause_topic(self, topic: Topic) -> Turn:
        topic.pause()
        return self.state_turn()

    def unpause_topic(self, topic: Topic) -> Turn:
        topic.unpause()
        return self.state_turn()

    def empty_topic(self, topic: Topic) -> Turn:
        topic.empty()
        return self.state_turn()

    def pause_channel(self, topic: Topic, name: str, *, paused: bool) -> Turn:
        topic.pause_channel(name, paused)
        return self.state_turn()

    def empty_channel(self, topic: Topic, name: str) -> Turn:
        topic.empty_channel(name, self.clock.now_ns())
        self.wake()
        return self.journals.turn(topic.channels[name])

    def delete_topic(self, name: str) -> Turn:
        """With all it had. It must be loaded."""
        self.topics.delete(name)
        return self.state_turn()

    def delete_channel(self, topic: Topic, name: str) -> Turn:
        topic.delete_channel(name, self.clock.now_ns())
        return self.state_turn()

    def state_turn(self, version: int | None = None) -> Turn:
        return self.committer.state.turn(version)

    # -- back-pressure

    @property
    def crowded(self) -> bool:
        return self.broker.uncommitted_bytes > self.options.uncommitted_bytes_max

    def _room(self) -> None:
        held = self.held_back
        if held and self.broker.uncommitted_bytes < self.options.uncommitted_bytes_max // 2:
            self.held_back = []
            for resume in held:
                resume()

    # -- time

    def _after_turn(self) -> None:
        broker = self.broker
        if broker.wants or broker.delay_wants:
            self.reader.fetch()
        if broker.dirty_journals or broker.dirty_delays or self.journals.unsynced:
            self.journals.arm()
        self.timers.arm()
        if self.options.verify:
            for topic in broker.topics.values():
                for channel in topic.channels.values():
                    channel.verify()

    def _tick(self) -> None:
        self.tick_handle = self.loop.call_later(TICK_S, self._tick)
        self._note_lag()
        options = self.options
        self.committer.sync_overdue(
            options.sync_interval_ms * 1_000_000,
            min(options.sync_interval_ms, options.journal_sync_interval_ms) * 1_000_000,
        )
        self.housekeeping.tick()
        chore = None if self.chore_busy else self.engine.chore()
        if chore is not None:
            self.chore_busy = True
            self.pool.submit(chore, self._chore_done)
        self.removals.try_again()
        self.committer.state.try_again()
        self.trouble.look_at_disk()

    def _note_lag(self) -> None:
        """A tick that comes late waited for the loop: so did everything else."""
        now_ns = self.clock.monotonic_ns()
        if self.tick_due_ns:
            self.loop_lag.note(max(now_ns - self.tick_due_ns, 0))
        self.tick_due_ns = now_ns + int(TICK_S * 1_000_000_000)

    def _chore_done(self, _: None, failure: Exception | None) -> None:
        self.chore_busy = False
        if failure is not None:
            raise failure

    # -- the end

    async def stop(self) -> None:
        """Commit what is pending, write the journals, and close everything cleanly."""
        if self.tick_handle is not None:
            self.tick_handle.cancel()
        self.timers.stop()
        self.committer.turn()
        for lane in [*self.committer.writers]:
            if lane not in self.committer.writers:
                continue  # its topic was deleted, and that waited for the lanes before it
            idle = asyncio.Event()
            self.committer.when_idle(lane, idle.set)
            await idle.wait()
            self.broker.return_unused(lane)
            # a move that is still reading comes too late: the next run begins it anew
            lane.refusal = lane.refusal or OperatingError("the broker is stopping")
        while (
            self.topics.loading
            or self.journals.busy
            or self.removals.under_way
            or self.reader.under_way
            or self.committer.state.busy
            or self.broker.state_changes
            or self.chore_busy
        ):
            self.committer.turn()
            await asyncio.sleep(0.001)
        await self._close_all()
        await self.loop.run_in_executor(None, self.engine.close)

    async def _close_all(self) -> None:
        """Each has something to sync: as many at once as there are disk threads."""
        self.journals.collect()
        closes = [journal.close for journal in self.journals.open.values()]
        closes += [writer.log.close for writer in self.committer.writers.values()]
        left = len(closes)
        all_closed = asyncio.Event()

        def closed(_: None, failure: Exception | None) -> None:
            nonlocal left
            left -= 1
            if not left:
                all_closed.set()
            if isinstance(failure, OperatingError):  # the others can be closed all the same
                log.warning("could not be closed cleanly: %s", failure)
            elif failure is not None:
                raise failure

        for close in closes:
            self.pool.submit(close, closed)
        if closes:
            await all_closed.wait()
