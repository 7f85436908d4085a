"""What is counted of topics, channels and clients, as values: for whoever shows it.

Off a message's way: read from the core when somebody asks, at a cost that does not grow with what
is stored. Doors make text of it; nothing here knows a format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.protocol.block import NUMBER_BITS

if TYPE_CHECKING:
    from penstock.broker.channel import Channel
    from penstock.broker.partition import Partition
    from penstock.broker.topic import Topic

SCANNED_MAX = 1_000  # sleepers that are looked at one by one


class ClientStatistics(NamedTuple):
    """A connected client. ``state`` is nsqd's number; ``published`` counts by topic."""

    client_id: str
    hostname: str
    user_agent: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connected_at_ns: int
    sample_rate: int
    deflate: bool
    snappy: bool
    identity: str | None  # None: not authenticated
    identity_url: str
    published: Mapping[str, int]
    tls_version: str  # empty: no TLS
    tls_cipher: str


class Client(Protocol):
    """Who can tell about itself. ``published`` counts by topic, as in what it tells."""

    published: dict[str, int]

    def statistics(self) -> ClientStatistics: ...


class ChannelStatistics(NamedTuple):
    """A channel. ``message_count`` is what it was handed, in this run."""

    name: str
    depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    paused: bool


class TopicStatistics(NamedTuple):
    """A topic; counts are of what was published since it was opened."""

    name: str
    depth: int
    message_count: int
    message_bytes: int
    paused: bool
    stored: bool  # not only in memory


class Depths(NamedTuple):
    """What a topic had waiting when it was closed; a channel that is not named had nothing."""

    topic: int
    channels: Mapping[str, tuple[int, int]]  # ready, deferred


NOTHING_WAITS = Depths(0, {})


def topic_statistics(topic: Topic) -> TopicStatistics:
    return TopicStatistics(
        topic.name,
        topic.depth(),
        topic.message_count,
        topic.message_bytes,
        topic.paused is not None,
        topic.durability != "memory",
    )


def channel_statistics(topic: Topic, channel: Channel) -> ChannelStatistics:
    return ChannelStatistics(
        channel.name,
        channel.depth(),
        channel.in_flight_count(),
        deferred_count(topic, channel),
        channel.message_count,
        channel.requeue_count,
        channel.timeout_count,
        len(channel.subscribers),
        channel.paused,
    )


def deferred_count(topic: Topic, channel: Channel) -> int:
    """Its own sleepers, and its share of the delay lanes: what came above its empty marks. Of a
    long delay lane that it emptied, at most as many as came since."""
    count = channel.sleeping_count()
    for partition in topic.partitions:
        if partition.delay is not None and len(partition.schedule):
            count += _delayed_count(partition, channel)
    return count


def _delayed_count(partition: Partition, channel: Channel) -> int:
    lane, schedule = partition.delay, partition.schedule
    assert lane is not None
    low = lane.start
    for epoch, tag in enumerate(lane.tags):
        mark = channel.empty_marks.get(tag)
        if mark is not None:
            low = max(low, (epoch << NUMBER_BITS) + mark)
    if low <= lane.start:
        return len(schedule)
    if len(schedule) <= SCANNED_MAX:
        return sum([seq >= low for _, seq in (*schedule.entries, *schedule.moving)])
    return min(len(schedule), lane.messages_between(low, lane.durable_end))


def depths_of(topic: Topic) -> Depths:
    """For a topic that is being closed: nothing changes there until it is opened again."""
    waiting = {
        name: (channel.depth(), deferred_count(topic, channel))
        for name, channel in topic.channels.items()
    }
    channels = {name: counts for name, counts in waiting.items() if any(counts)}
    depth = topic.depth()
    return Depths(depth, channels) if depth or channels else NOTHING_WAITS
