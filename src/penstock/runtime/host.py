"""The broker's core hosted on an event loop, with storage under it. Doors talk to this.

A door asks for a topic (``topic``), publishes to it or subscribes to its channels, and calls
``wake`` so that a turn runs when this round of I/O is through. A topic that an earlier run left is
opened off the loop first: then the door gets None and is called back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import Channel
from penstock.broker.lanes import Lane, Turn
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import CorruptionError, OperatingError, PenstockError
from penstock.runtime.committer import Committer
from penstock.runtime.housekeeping import Housekeeping
from penstock.runtime.journals import Journals, Keeper, journal_name
from penstock.runtime.loading import Loaded, go_live, load, open_new
from penstock.runtime.pool import Pool
from penstock.runtime.reader import Reader
from penstock.runtime.removal import Removals
from penstock.runtime.timers import Timers
from penstock.runtime.trouble import Trouble
from penstock.storage.memory import MemoryEngine
from penstock.storage.port import Engine

log = logging.getLogger("penstock.host")

TICK_S = 0.25
OPENING_MAX = 4  # topics at once that the start opens by itself


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
        self.memory = MemoryEngine()
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
        self.housekeeping = Housekeeping(
            broker,
            self.committer,
            self.journals,
            pool,
            clock,
            options.retain_ms * 1_000_000,
            options.memory_history,
            self._unload_if_idle,
        )
        self.committer.after_turn = self._after_turn
        self.committer.on_room = self._room
        self.committer.on_failure = self.trouble.lane_failed
        self.committer.state.on_saved = self.trouble.state_saved
        self.journals.on_failure = self.trouble.journal_failed
        self.removals = Removals(broker, self.committer, pool)
        broker.on_topic_made = self._topic_made
        broker.on_delay_made = self._delay_made
        broker.on_channel_made = self._channel_made
        broker.on_channel_dropped = self._channel_dropped
        self.loading: dict[str, list[Callable[[Topic | None, PenstockError | None], None]]] = {}
        self.held_back: list[Callable[[], None]] = []
        self.reserved: dict[int, int] = {}
        self.to_open: Iterator[str] = iter(())
        self.damaged: dict[str, CorruptionError] = {}  # topics that stay closed in this run
        self.chore_busy = False
        self.tick_handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take up what is stored; only topics in which something may be due are opened now."""
        items: dict[str, bytes] = {}
        for key, value in self.engine.state.items(""):
            if key.startswith("seq/"):
                self.reserved[int(key[4:])] = int(value)
            else:
                items[key] = value
        self.broker.restore(items)
        self.removals.finish_earlier(self.engine)
        self._tick()
        # what sleeps in a delay lane may be due, what is old may have to go: open it now
        self.to_open = iter(
            [
                name
                for name, document in self.broker.known.items()
                if b'/delay"' in document or b'"history":true' in document
            ]
        )
        for _ in range(OPENING_MAX):
            self._open_next(None, None)

    def _open_next(self, topic: Topic | None, error: PenstockError | None) -> None:
        """One was opened, or could not be (that is on record already): the next one. They must not
        queue up before the first publishes."""
        for name in self.to_open:
            if name in self.broker.known and self.topic(name, self._open_next) is None:
                return

    # -- topics

    def topic(
        self, name: str, then: Callable[[Topic | None, PenstockError | None], None]
    ) -> Topic | None:
        """The topic, made if nobody has used it; or None now, and ``then`` is called when it is
        open."""
        topic = self.broker.topics.get(name)
        if topic is not None:
            return topic
        waiting = self.loading.get(name)
        if waiting is not None:
            waiting.append(then)
            return None
        if self.removals.wait(name, partial(self._ask_again, name, then)):
            return None
        damage = self.damaged.get(name)
        if damage is not None:
            then(None, damage)
            return None
        if name not in self.broker.known:
            try:
                topic = self.broker.make_topic(name, self.clock.now_ns())
            except PenstockError as error:
                then(None, error)
                return None
            return topic
        self.loading[name] = [then]
        topic = self.broker.topic_from(name)
        engine = self._engine_of(topic)
        self.pool.submit(partial(load, topic, engine, self.reserved), partial(self._loaded, name))
        return None

    def _engine_of(self, topic: Topic) -> Engine:
        return self.memory if topic.durability == "memory" else self.engine

    def _topic_made(self, topic: Topic) -> None:
        self._take_up(open_new(topic, self._engine_of(topic), topic.lanes(), ()))

    def _delay_made(self, partition: Partition, lane: Lane) -> None:
        topic = self.broker.topics[partition.topic]
        self._take_up(open_new(topic, self._engine_of(topic), [lane], [partition]))

    def _take_up(self, loaded: Loaded) -> None:
        """From here on its lanes are committed, and its journals written."""
        for lane, opened in loaded.logs.items():
            self.committer.follow(lane, opened, loaded.topic.durability)
        self.journals.open.update(loaded.journals)

    def _loaded(self, name: str, loaded: Loaded | None, failure: Exception | None) -> None:
        waiting = self.loading.pop(name)
        error: PenstockError | None = None
        topic: Topic | None = None
        if loaded is not None:
            topic = loaded.topic
            self.broker.topics[name] = topic
            self.trouble.over(name)
            self._take_up(loaded)
            if loaded.cut_bytes:
                log.warning("%s: a torn tail of %d bytes was cut", name, loaded.cut_bytes)
            go_live(loaded)
        elif isinstance(failure, PenstockError):
            error = failure
            self.trouble.topic_closed(name, failure)
            if isinstance(failure, CorruptionError):
                self.damaged[name] = failure
        elif isinstance(failure, OSError):
            error = OperatingError(f"topic {name} cannot be opened: {failure}", retry=True)
            log.error("%s", error)
        elif failure is not None:
            raise failure
        for then in waiting:
            then(topic, error)
        self.wake()

    def _ask_again(
        self, name: str, then: Callable[[Topic | None, PenstockError | None], None]
    ) -> None:
        topic = self.topic(name, then)
        if topic is not None:
            then(topic, None)

    def delete_topic(self, name: str) -> Turn:
        """With all it had. It must be loaded."""
        topic = self.broker.topics[name]
        keepers: list[Keeper] = [*topic.channels.values(), *topic.partitions]
        self.broker.delete_topic(name, self.clock.now_ns())
        for keeper in keepers:
            self.journals.take(keeper)
        for lane in topic.lanes():
            if lane.refusal is not None:
                lane.refuse_pending(lane.refusal)
        self.trouble.over(name)
        self.removals.begin(name)
        self._when_idle(topic, partial(self._remove, topic))
        return self.state_turn()

    def _remove(self, topic: Topic) -> None:
        logs = [self.committer.unfollow(lane) for lane in topic.lanes()]
        engine = self._engine_of(topic)

        def job() -> None:
            for opened in logs:
                try:
                    opened.close()
                except OperatingError:
                    pass  # what could not be written is not wanted any more
            logs.clear()
            engine.drop_topic(topic.name)

        self.removals.remove(topic.name, job)

    def _when_idle(self, topic: Topic, then: Callable[[], None]) -> None:
        """Call when no lane of the topic has anything pending or under way."""
        for lane in topic.lanes():
            if not self.committer.is_idle(lane):
                self.committer.when_idle(lane, partial(self._when_idle, topic, then))
                return
        then()

    def _open_again(self, name: str) -> None:
        """A name is free again: whoever asked for it meanwhile gets its topic."""
        for then in self.loading.pop(name):
            self._ask_again(name, then)

    def unload(self, topic: Topic) -> None:
        """Close a topic that nobody uses; its next use opens it again."""
        del self.broker.topics[topic.name]
        topic.gone = True
        self.loading[topic.name] = []
        keepers: list[Keeper] = [*topic.channels.values(), *topic.partitions]
        journals = [journal for one in keepers if (journal := self.journals.take(one)) is not None]
        lanes = topic.lanes()
        logs = [self.committer.unfollow(lane) for lane in lanes]
        for lane in lanes:
            self.broker.cache.forget(lane.shelf)
            if lane.reserved_end:
                self.broker.return_unused(lane)
                self.reserved[lane.log] = lane.reserved_end

        def job() -> None:
            for opened in logs:
                opened.close()
            for journal in journals:
                journal.close()

        self.pool.submit(job, partial(self._unloaded, topic.name))

    def _unloaded(self, name: str, _: None, failure: Exception | None) -> None:
        if isinstance(failure, OperatingError):
            log.error("topic %s could not be closed cleanly: %s", name, failure)
        elif failure is not None:
            raise failure
        self._open_again(name)

    def _unload_if_idle(self, topic: Topic) -> bool:
        idle_ns = topic.idle_for(self.clock.monotonic_ns())
        idle = (
            topic.durability != "memory"  # closing would lose what it holds
            and idle_ns >= self.options.idle_unload_ms * 1_000_000
            and all(self.committer.is_idle(lane) for lane in topic.lanes())
            and self._is_kept(topic)
            and not any(one.journal_dirty for one in topic.channels.values())
            and not self.journals.busy
        )
        if idle:
            self.unload(topic)
        return idle

    def _is_kept(self, topic: Topic) -> bool:
        """Whether the stored state knows all that the topic's lanes and channels need of it."""
        durable = self.committer.state.durable
        return all(one.state_needed <= durable for one in topic.lanes()) and all(
            one.state_needed <= durable for one in topic.channels.values()
        )

    # -- channels

    def _channel_made(self, channel: Channel) -> None:
        if not channel.ephemeral:
            topic = self.broker.topics[channel.topic]
            self._take_up(open_new(topic, self._engine_of(topic), (), [channel]))

    def _channel_dropped(self, channel: Channel) -> None:
        topic = self.broker.topics[channel.topic]
        self.journals.take(channel)
        self.trouble.over(f"{channel.topic}/{channel.name}")
        if channel.ephemeral:
            return
        if topic.ephemeral:
            self.memory.drop_channel(channel.topic, journal_name(channel))
            return
        name = f"{channel.topic}/{channel.name}"
        self.removals.begin(name)
        drop = self._engine_of(topic).drop_channel
        self.removals.remove(name, partial(drop, channel.topic, journal_name(channel)))

    def is_leaving(self, topic: str, channel: str, then: Callable[[], None]) -> bool:
        """Whether a deleted channel of that name still has files; then ``then`` is called when it
        has none, and the name can be used."""
        return self.removals.wait(f"{topic}/{channel}", then)

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
            self.loading
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
