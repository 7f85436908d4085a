"""/metrics: counts and gauges for Prometheus, read from the core when it asks.

Made in slices, as /stats is. Nothing is counted for it on a message's way, and no topic is opened.
A topic that was closed for being idle shows what waits in it; one that nobody has used since the
start is not known and not shown.

Each topic and each channel is a label set, and a monitoring system pays for every one that it has
ever seen. So they have names up to a cap, first come, first served; the rest is told of as one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock import __version__
from penstock.broker.channel import Channel
from penstock.broker.statistics import NOTHING_WAITS, Depths, deferred_count
from penstock.broker.topic import Topic
from penstock.doors.http.exposition import (
    ACCEPTS,
    CACHE_BYTES,
    CACHE_HITS,
    CACHE_MISSES,
    CHANNEL_COUNTERS,
    CHANNEL_GAUGES,
    COMMIT,
    COMMITS_FAILED,
    CONNECTIONS,
    CONTENT_TYPE,
    CPU,
    INFO,
    LAG,
    PROBLEMS,
    RESIDENT,
    STARTED,
    SUMMED,
    SYNCS,
    TOPIC_COUNTERS,
    TOPIC_GAUGES,
    TOPICS,
    UNCOMMITTED,
    Metric,
    Page,
)
from penstock.doors.http.request import Request
from penstock.doors.http.stats import Slices, memory

if TYPE_CHECKING:
    from penstock.doors.http.door import HttpDoor

OTHERS = "(others)"  # no topic and no channel can have that name


def metrics(request: Request) -> None:
    door = request.door
    Slices(door.host.loop, door.metrics.pieces(), partial(_answer, request)).go_on()


def _answer(request: Request, slices: list[bytes]) -> None:
    request.answer(b"".join(slices), CONTENT_TYPE, headers="")


class Metrics:
    """Who has a name, and what the others came to."""

    def __init__(self, door: HttpDoor, label_sets_max: int) -> None:
        self.door = door
        self.host = door.host
        self.names = Names(label_sets_max)
        self.topic_totals = Totals(len(TOPIC_COUNTERS))
        self.channel_totals = Totals(len(CHANNEL_COUNTERS))

    def pieces(self) -> Iterator[str]:
        """The page; what comes empty is a moment at which others may have their turn."""
        broker = self.host.broker
        page = Page()
        topics = Others(TOPIC_GAUGES)
        channels = Others(CHANNEL_GAUGES)
        yield from self._forget_gone()
        told: set[str] = set()
        for name in [*broker.topics]:
            topic = broker.topics.get(name)
            if topic is None:
                continue  # gone meanwhile
            told.add(name)
            self._topic(page, topic, topics)
            yield ""
            for channel in [*topic.channels.values()]:
                self._channel(page, topic, channel, channels)
                yield ""
        closed = self.host.topics.depths
        for name in [*closed]:
            depths = closed.get(name, NOTHING_WAITS)
            waits = depths is not NOTHING_WAITS or (name, "") in self.names.named
            if waits and name not in told:
                self._closed(page, name, depths, topics, channels)
            yield ""
        if topics.count:
            labels = f'{{topic="{OTHERS}"}}'
            page.tell_all(TOPIC_GAUGES, topics.sums, labels)
            page.tell_all(TOPIC_COUNTERS, self.topic_totals.sums, labels)
        if channels.count:
            labels = f'{{topic="{OTHERS}",channel="{OTHERS}"}}'
            page.tell_all(CHANNEL_GAUGES, channels.sums, labels)
            page.tell_all(CHANNEL_COUNTERS, self.channel_totals.sums, labels)
        page.tell(SUMMED, topics.count, '{kind="topic"}')
        page.tell(SUMMED, channels.count, '{kind="channel"}')
        self._broker(page)
        yield from page.texts()

    def _forget_gone(self) -> Iterator[str]:
        """A name is free again when its topic or channel was deleted."""
        broker = self.host.broker
        for name in [*self.names.named]:
            topic_name, channel = name
            topic = broker.topics.get(topic_name)
            gone = (
                topic_name not in broker.known
                if topic is None
                else (channel != "" and channel not in topic.channels)
            )
            if gone:
                self.names.named.discard(name)
            yield ""

    def _topic(self, page: Page, topic: Topic, others: Others) -> None:
        writers = self.host.committer.writers
        opened = [writers[lane].log for lane in topic.lanes() if lane in writers]
        gauges = (
            topic.depth(),
            sum([len(partition.schedule) for partition in topic.partitions]),
            sum([log.bounds().bytes for log in opened]),
            int(topic.paused is not None),
        )
        counters = (topic.message_count, topic.message_bytes, topic.dropped_count)
        if self.names.has(topic.name):
            labels = f'{{topic="{topic.name}"}}'
            page.tell_all(TOPIC_GAUGES, gauges, labels)
            page.tell_all(TOPIC_COUNTERS, counters, labels)
        else:
            others.add(gauges)
            self.topic_totals.add(topic, counters)

    def _channel(self, page: Page, topic: Topic, channel: Channel, others: Others) -> None:
        gauges = (
            channel.depth(),
            channel.in_flight_count(),
            deferred_count(topic, channel),
            len(channel.subscribers),
            int(channel.paused),
        )
        counters = (
            channel.message_count,
            channel.finish_count,
            channel.requeue_count,
            channel.timeout_count,
            channel.dropped_count,
        )
        if self.names.has(topic.name, channel.name):
            labels = f'{{topic="{topic.name}",channel="{channel.name}"}}'
            page.tell_all(CHANNEL_GAUGES, gauges, labels)
            page.tell_all(CHANNEL_COUNTERS, counters, labels)
        else:
            others.add(gauges)
            self.channel_totals.add(channel, counters)

    def _closed(
        self, page: Page, name: str, depths: Depths, topics: Others, channels: Others
    ) -> None:
        """What waits there. (A channel that has nothing is not among those.)"""
        if self.names.has(name):
            page.tell(TOPIC_GAUGES[0], depths.topic, f'{{topic="{name}"}}')
        else:
            topics.add((depths.topic,))
        for channel, (depth, sleeping) in depths.channels.items():
            if self.names.has(name, channel):
                labels = f'{{topic="{name}",channel="{channel}"}}'
                page.tell(CHANNEL_GAUGES[0], depth, labels)
                page.tell(CHANNEL_GAUGES[2], sleeping, labels)
            else:
                channels.add((depth, 0, sleeping))

    def _broker(self, page: Page) -> None:
        door, host = self.door, self.host
        broker, committer, cache = host.broker, host.committer, host.broker.cache
        closed = len(broker.known) - len(broker.known.keys() & broker.topics.keys())
        page.tell(INFO, 1, f'{{version="{__version__}"}}')
        page.tell(STARTED, door.started_at_ns / 1_000_000_000)
        page.tell(CPU, time.process_time())
        page.tell(RESIDENT, memory()["heap_in_use_bytes"])
        page.tell(PROBLEMS, len(host.problems))
        page.tell(ACCEPTS, int(broker.refusal is None))
        page.tell(CONNECTIONS, sum([len([*all_of()]) for all_of in host.clients]), '{door="nsq"}')
        page.tell(CONNECTIONS, len(door.connections), '{door="http"}')
        page.tell(TOPICS, len(broker.topics), '{state="open"}')
        page.tell(TOPICS, closed, '{state="closed"}')
        page.tell(UNCOMMITTED, broker.uncommitted_bytes)
        page.tell_histogram(COMMIT, committer.latency)
        page.tell(COMMITS_FAILED, committer.failed_count)
        page.tell(SYNCS, committer.sync_count)
        page.tell(CACHE_BYTES, cache.bytes)
        page.tell(CACHE_HITS, cache.hits)
        page.tell(CACHE_MISSES, cache.misses)
        page.tell_histogram(LAG, host.loop_lag)


class Names:
    """Topics, and topics with a channel, that have label sets of their own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.named: set[tuple[str, str]] = set()

    def has(self, topic: str, channel: str = "") -> bool:
        name = (topic, channel)
        if name not in self.named:
            if len(self.named) >= self.most:
                return False
            self.named.add(name)
        return True


class Others:
    """Gauges of what has no name, summed in one look."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.sums = [0] * len(metrics)
        self.count = 0

    def add(self, values: Sequence[int]) -> None:
        """The last ones may be missing."""
        self.count += 1
        for index, value in enumerate(values):
            self.sums[index] += value


class Totals:
    """Counters of what has no name. A sum of counters would fall when one of them goes or begins
    anew, and be taken for a restart of all: what was there at the last look is remembered, and
    what came since is added."""

    def __init__(self, count: int) -> None:
        self.sums = [0] * count
        self.seen: WeakKeyDictionary[Topic | Channel, Sequence[int]] = WeakKeyDictionary()

    def add(self, one: Topic | Channel, values: Sequence[int]) -> None:
        before = self.seen.get(one) or (0,) * len(values)
        self.seen[one] = values
        for index, value in enumerate(values):
            self.sums[index] += value - before[index]
