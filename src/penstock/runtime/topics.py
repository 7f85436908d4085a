"""Which topics are open: made when they are new, else opened off the loop, closed when nobody uses
them, gone when they are deleted. Their channels come and go here as well.

Whoever asks for a topic that is on its way in or out waits for it (``loading``, and the names that
removals hold). A topic that is damaged stays closed in this run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.broker.broker import Broker
from penstock.broker.channel import Channel
from penstock.broker.lanes import Lane
from penstock.broker.partition import Partition
from penstock.broker.statistics import Depths, depths_of
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import CorruptionError, OperatingError, PenstockError
from penstock.runtime.committer import Committer
from penstock.runtime.journals import Journals, Keeper, journal_name
from penstock.runtime.loading import Loaded, go_live, load, open_new
from penstock.runtime.pool import Pool
from penstock.runtime.removal import Removals
from penstock.runtime.trouble import Trouble
from penstock.storage.memory import MemoryEngine
from penstock.storage.port import Engine

log = logging.getLogger("penstock.topics")

OPENING_MAX = 4  # topics at once that the start opens by itself

Then = Callable[[Topic | None, PenstockError | None], None]
FindChannels = Callable[[str, Callable[[Sequence[str]], None]], bool]


class Topics:
    """The topics of one host, with the engines that keep them."""

    def __init__(
        self,
        broker: Broker,
        engine: Engine,
        pool: Pool,
        clock: Clock,
        committer: Committer,
        journals: Journals,
        trouble: Trouble,
        idle_unload_ns: int,
    ) -> None:
        self.broker = broker
        self.engine = engine
        self.memory = MemoryEngine()
        self.pool = pool
        self.clock = clock
        self.committer = committer
        self.journals = journals
        self.trouble = trouble
        self.idle_unload_ns = idle_unload_ns
        self.removals = Removals(broker, committer, pool)
        self.loading: dict[str, list[Then]] = {}
        self.reserved: dict[int, int] = {}  # ends of the seq reservations of logs that are closed
        self.damaged: dict[str, CorruptionError] = {}  # they stay closed in this run
        self.to_open: Iterator[str] = iter(())
        # asks elsewhere which channels a new topic has; False if there is nobody to ask
        self.find_channels: FindChannels = _nobody_to_ask
        self.depths: dict[str, Depths] = {}  # of those that were closed since the start
        broker.on_topic_made = self._topic_made
        broker.on_delay_made = self._delay_made
        broker.on_channel_made = self._channel_made
        broker.on_channel_dropped = self._channel_dropped

    def open_due(self) -> None:
        """At the start: what sleeps in a delay lane may be due, what is old may have to go."""
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

    def topic(self, name: str, then: Then) -> Topic | None:
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
            if self.find_channels(name, partial(self._make_as_elsewhere, name)):
                self.loading[name] = [then]
                return None
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

    def _make_as_elsewhere(self, name: str, channels: Sequence[str]) -> None:
        """A topic that waited for what others know of it. What is published to it needs its
        channels to be safe, or a crash would leave it with fewer."""
        waiting = self.loading.pop(name)
        now_ns = self.clock.now_ns()
        error: PenstockError | None = None
        topic: Topic | None = None
        try:
            topic = self.broker.make_topic(name, now_ns)
            for channel in channels:
                topic.channel(channel, now_ns)
        except PenstockError as failure:
            log.warning("topic %s cannot be made as it is elsewhere: %s", name, failure)
            error = failure if topic is None else None
        if topic is not None:
            self.broker.keep(topic, topic.lanes())
        for then in waiting:
            then(topic, error)
        self.committer.wake()

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
            self.depths.pop(name, None)
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
        self.committer.wake()

    def _ask_again(self, name: str, then: Then) -> None:
        topic = self.topic(name, then)
        if topic is not None:
            then(topic, None)

    def delete(self, name: str) -> None:
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
        self.depths[topic.name] = depths_of(topic)
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

    def unload_if_idle(self, topic: Topic) -> bool:
        idle_ns = topic.idle_for(self.clock.monotonic_ns())
        idle = (
            topic.durability != "memory"  # closing would lose what it holds
            and idle_ns >= self.idle_unload_ns
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


def _nobody_to_ask(topic: str, then: Callable[[Sequence[str]], None]) -> bool:
    return False
