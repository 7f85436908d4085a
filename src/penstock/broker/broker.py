"""The broker's core: which topics there are, and the effects that wait to be carried out.

Everything a turn of the event loop changed is left in lists that the runtime empties at the turn's
end: lanes with something to commit, channels to pump, journals to write, blocks that are wanted,
alarms to set, and state to keep. ``state_version`` counts changes of state. A lane remembers the
last one that its blocks need (``state_needed``), which is made safe before they are written, so
that no answered message can hang on a topic, a tag or a reservation that a crash forgets.

State keys: ``topic/NAME`` the topic's document, ``tag`` the next log tag, ``commit`` the end of
the commit numbers given out, ``seq/TAG`` the end of a log's reserved seqs, ``gone/TOPIC`` and
``gone/TOPIC/CHANNEL`` what was deleted and may still have files.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappush
from typing import cast

from penstock.broker.cache import BlockCache
from penstock.broker.channel import Alarmed, Channel
from penstock.broker.lanes import RESERVATION, Lane, LaneOwner
from penstock.broker.partition import Partition
from penstock.broker.schedule import Schedule
from penstock.broker.topic import (
    Topic,
    TopicDocument,
    first_lane_keys,
    new_document,
    parse_lane_key,
)
from penstock.errors import OperatingError
from penstock.names import is_ephemeral
from penstock.protocol.block import TAG_MAX


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """How a topic is made when it is first used."""

    partitions: int = 1
    durability: str = "synced"


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What the core must know of the settings."""

    default_policy: TopicPolicy = TopicPolicy()
    policies: Mapping[str, TopicPolicy] = field(default_factory=dict)
    max_timeout_ns: int = 900_000_000_000
    ephemeral_backlog_max: int = 10_000
    cache_bytes_max: int = 32 << 20


class Broker:
    """All topics, and the effects of the turn under way."""

    def __init__(self, options: BrokerOptions, seed: int | None = None) -> None:
        self.options = options
        self.max_timeout_ns = options.max_timeout_ns
        self.ephemeral_backlog_max = options.ephemeral_backlog_max
        self.cache = BlockCache(options.cache_bytes_max)
        self.random = random.Random(seed)
        self.topics: dict[str, Topic] = {}
        self.known: dict[str, bytes] = {}  # documents of topics that are not loaded too
        self.gone: set[str] = set()  # deleted; their files may still have to go
        self.next_tag = 1
        self.commit = 0
        self.commit_reserved = 0
        self.commit_state_needed = 0  # as a lane's, by the blocks of all
        self.uncommitted_bytes = 0
        self.refusal: OperatingError | None = None
        self.state_version = 0
        self.state_changes: list[tuple[str, bytes | None]] = []
        self.dirty_lanes: list[Lane] = []
        self.dirty_channels: list[Channel] = []
        self.dirty_journals: list[Channel] = []
        self.dirty_delays: list[Partition] = []
        self.wants: list[tuple[Channel, Lane, int]] = []
        self.delay_wants: list[tuple[Partition, Lane, int]] = []
        self.alarms: list[tuple[int, int, Alarmed]] = []
        self.wakes: list[tuple[int, int, Alarmed]] = []
        self.alarm_count = 0
        # who makes something new hears first that it can be kept: these raise PenstockError if not
        self.on_topic_made: Callable[[Topic], None] = _nothing
        self.on_delay_made: Callable[[Partition, Lane], None] = _nothing
        self.on_channel_made: Callable[[Channel], None] = _nothing
        self.on_channel_dropped: Callable[[Channel], None] = _nothing
        # a topic (and no channel) or a channel of it came or went: look when this call is over
        self.on_named: Callable[[str, str], None] = _nothing

    # -- state

    def restore(self, items: Mapping[str, bytes]) -> None:
        """Take up what an earlier run kept."""
        for key, value in items.items():
            if key.startswith("topic/"):
                self.known[key[6:]] = value
            elif key.startswith("gone/"):
                self.gone.add(key[5:])
        self.next_tag = int(items.get("tag", b"1"))
        self.commit = self.commit_reserved = int(items.get("commit", b"0"))

    def put_state(self, key: str, value: bytes | None) -> None:
        self.state_changes.append((key, value))
        self.state_version += 1

    def keep(self, topic: Topic, needed_by: Iterable[Lane | Channel] = ()) -> None:
        if not topic.ephemeral:
            document = topic.document()
            self.known[topic.name] = document
            self.put_state(f"topic/{topic.name}", document)
        for one in needed_by:
            one.state_needed = self.state_version

    def take_tag(self) -> int:
        tag = self.next_tag
        if tag > TAG_MAX:
            raise OperatingError(
                "all 16,777,215 log tags are used: no further log can be made in this directory;"
                " what is stored is kept; move topics to a fresh one"
            )
        self.next_tag = tag + 1
        self.put_state("tag", b"%d" % self.next_tag)
        return tag

    def renew_tag(self, lane: Lane) -> None:
        lane.tags.append(self.take_tag())
        topic = self.topics[lane.topic]
        for channel in topic.channels.values():
            for progress in channel.progress:
                if progress.lane is lane:
                    channel.note_tags(progress)
        self.keep(topic, [lane])

    def reserve(self, lane: Lane) -> None:
        lane.reserved_end = lane.next_seq + RESERVATION
        self.put_state(f"seq/{lane.log}", b"%d" % lane.reserved_end)
        lane.state_needed = self.state_version

    def return_unused(self, lane: Lane) -> None:
        """What is left of a lane's reservation, when no more is published to it in this run. (The
        next one can't tell by the log's end alone: an earlier power cut may have taken what was
        behind it.)"""
        if lane.refusal is None and lane.reserved_end > lane.next_seq:
            lane.reserved_end = lane.next_seq
            self.put_state(f"seq/{lane.log}", b"%d" % lane.reserved_end)

    def next_commit(self) -> int:
        self.commit += 1
        if self.commit > self.commit_reserved:
            self.commit_reserved = self.commit + RESERVATION
            self.put_state("commit", b"%d" % self.commit_reserved)
            self.commit_state_needed = self.state_version
        return self.commit

    def new_lane(self, owner: LaneOwner, topic: str, partition: int, lane: int) -> Lane:
        made = Lane(self, owner, topic, partition, lane, [self.take_tag()])
        self._set_durability(made, self.topics[topic])
        return made

    # -- topics

    def make_topic(self, name: str, now_ns: int, policy: TopicPolicy | None = None) -> Topic:
        """A topic nobody has used before: nothing of it is on disk, so it is ready at once."""
        if policy is None:
            policy = self.options.policies.get(name, self.options.default_policy)
        tags = {key: [self.take_tag()] for key in first_lane_keys(policy.partitions)}
        durability = "memory" if is_ephemeral(name) else policy.durability
        topic = Topic(self, name, new_document(policy.partitions, durability, now_ns, tags))
        for key, lane_tags in tags.items():
            self.add_lane(topic, key, lane_tags)
        self.on_topic_made(topic)
        self.topics[name] = topic
        self.keep(topic, topic.lanes())
        self.on_named(name, "")
        return topic

    def topic_from(self, name: str) -> Topic:
        """The topic as its document says, with its lanes; whoever loads it sets their ends and
        channels."""
        document = cast("TopicDocument", json.loads(self.known[name]))
        topic = Topic(self, name, document)
        for key, tags in document["tags"].items():
            self.add_lane(topic, key, tags)
        return topic

    def add_lane(self, topic: Topic, key: str, tags: list[int]) -> Lane:
        number, lane_number = parse_lane_key(key)
        partition = topic.partitions[number]
        owner: LaneOwner = partition if key.endswith("/delay") else topic
        lane = Lane(self, owner, topic.name, number, lane_number, tags)
        self._set_durability(lane, topic)
        partition.add(lane)
        return lane

    def _set_durability(self, lane: Lane, topic: Topic) -> None:
        # no run after this one gives seqs to an ephemeral topic's log
        lane.unreserved = topic.durability == "synced" or topic.ephemeral
        lane.stored = topic.durability != "memory"

    def delete_topic(self, name: str, now_ns: int) -> Topic:
        """Gone with its channels; what was published and not committed yet is refused."""
        topic = self.topics[name]
        for channel in [*topic.channels]:
            topic.let_go(channel)
            self.on_named(name, channel)
        self.on_named(name, "")
        del self.topics[name]
        topic.gone = True
        self.known.pop(name, None)
        if not topic.ephemeral:
            self.put_state(f"topic/{name}", None)
            self._note_gone(name)
            for lane in topic.lanes():
                self.put_state(f"seq/{lane.log}", None)
        for lane in topic.lanes():
            lane.refusal = OperatingError(f"topic {name} was deleted")
            self.cache.forget(lane.shelf)
        for partition in topic.partitions:
            partition.schedule = Schedule()  # an alarm may hold on to the partition for long
        return topic

    def topic_names(self) -> list[str]:
        """Loaded or not."""
        return [*(self.known | self.topics)]

    def channel_names(self, topic: str) -> Collection[str] | None:
        """Of a topic, loaded or not; None if there is none."""
        loaded = self.topics.get(topic)
        if loaded is not None:
            return loaded.channels.keys()
        document = self.known.get(topic)
        if document is None:
            return None
        return cast("TopicDocument", json.loads(document))["channels"].keys()

    # -- effects

    def alarm(self, monotonic_ns: int, target: Alarmed) -> None:
        self.alarm_count += 1
        heappush(self.alarms, (monotonic_ns, self.alarm_count, target))

    def wake(self, wall_ns: int, target: Alarmed) -> None:
        self.alarm_count += 1
        heappush(self.wakes, (wall_ns, self.alarm_count, target))

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def delay_made(self, partition: Partition, lane: Lane) -> None:
        self.on_delay_made(partition, lane)

    def channel_made(self, channel: Channel) -> None:
        self.on_channel_made(channel)
        self.on_named(channel.topic, channel.name)

    def channel_dropped(self, channel: Channel) -> None:
        if not channel.ephemeral and not self.topics[channel.topic].ephemeral:
            self._note_gone(f"{channel.topic}/{channel.name}")
        self.on_channel_dropped(channel)
        self.on_named(channel.topic, channel.name)

    def _note_gone(self, name: str) -> None:
        self.gone.add(name)
        self.put_state(f"gone/{name}", b"")

    def note_removed(self, name: str) -> None:
        """Nothing of a deleted topic (or TOPIC/CHANNEL) is left on disk: the name is free."""
        if name in self.gone:
            self.gone.remove(name)
            self.put_state(f"gone/{name}", None)


def _nothing(*made: object) -> None:
    """Nobody listens yet."""
