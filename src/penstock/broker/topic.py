"""A topic: its partitions and its channels.

On a message's way it chooses the partition (in turn, a batch at a time) and tells channels when
their lanes have moved on. Its document (``document``) is what the broker keeps of it in synced
state: partitions, log tags, marks, channels and where each began.

Marks are {lane key: seq}:
    unclaimed  where the first channel will start; None while there are channels
    paused     no cursor passes it; None while the topic runs
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NotRequired, Protocol, TypedDict

from penstock.broker.channel import Channel, ChannelHost
from penstock.broker.lanes import Lane, LaneOwner, Turn, lane_key
from penstock.broker.partition import Partition, PartitionHost
from penstock.broker.progress import Progress
from penstock.names import is_ephemeral
from penstock.protocol.block import DELAY_LANE, Block

Marks = dict[str, int]


class ChannelDocument(TypedDict):
    created_ns: int
    paused: bool
    start: Marks


class TopicDocument(TypedDict):
    partitions: int
    durability: str
    created_ns: int
    tags: dict[str, list[int]]
    unclaimed: Marks | None
    paused: Marks | None
    jumps: NotRequired[dict[str, list[tuple[int, int]]]]
    history: NotRequired[bool]
    channels: dict[str, ChannelDocument]


class TopicHost(ChannelHost, PartitionHost, Protocol):
    """What a topic asks of the broker around it."""

    max_timeout_ns: int
    ephemeral_backlog_max: int

    def new_lane(self, owner: LaneOwner, topic: str, partition: int, lane: int) -> Lane: ...

    def keep(self, topic: Topic, needed_by: Iterable[Lane | Channel] = ()) -> None:
        """The topic's document changed: write it down before anything that depends on it is
        answered: a request, a block of these lanes, a consumer of these channels."""

    def channel_made(self, channel: Channel) -> None:
        """Raises PenstockError when it cannot be kept."""

    def channel_dropped(self, channel: Channel) -> None: ...


class Topic:
    """One topic, loaded."""

    def __init__(self, host: TopicHost, name: str, document: TopicDocument) -> None:
        self.host = host
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.durability = document["durability"]
        self.created_ns = document["created_ns"]
        self.unclaimed = document["unclaimed"]
        self.paused = document["paused"]
        self.jumps: dict[str, list[tuple[int, int]]] = document.get("jumps", {})
        self.started: dict[str, ChannelDocument] = dict(document["channels"])
        self.partitions = [
            Partition(host, self, name, number) for number in range(document["partitions"])
        ]
        self.channels: dict[str, Channel] = {}
        self.turn_rotation = 0
        self.message_count = 0
        self.message_bytes = 0
        self.gone = False  # deleted, or closed because idle: look the name up again
        self.history = document.get("history", False)  # its logs have segments that will be freed
        self.dropped_count = 0  # by an ephemeral topic that nobody has claimed
        self.used_at_ns = 0  # monotonic, as `idle_for` saw it
        self.seen_seqs = -1

    def __repr__(self) -> str:
        return f"Topic({self.name})"

    def document(self) -> bytes:
        document: TopicDocument = {
            "partitions": len(self.partitions),
            "durability": self.durability,
            "created_ns": self.created_ns,
            "tags": {lane.key: lane.tags for lane in self.lanes()},
            "unclaimed": self.unclaimed,
            "paused": self.paused,
            "channels": {
                name: started for name, started in self.started.items() if not is_ephemeral(name)
            },
        }
        if self.jumps:
            document["jumps"] = self.jumps
        if self.history:
            document["history"] = True
        return json.dumps(document, separators=(",", ":")).encode()

    def lanes(self) -> list[Lane]:
        return [lane for partition in self.partitions for lane in partition.lanes()]

    def ready_lanes(self) -> list[Lane]:
        return [lane for partition in self.partitions for lane in partition.ready.values()]

    # -- publishing

    def publish(self, bodies: Sequence[bytes], size: int, now_ns: int) -> Turn:
        """To a ready lane; ``size`` is the bodies' bytes in all."""
        partitions = self.partitions
        partition = partitions[0]
        if len(partitions) > 1:
            self.turn_rotation = (self.turn_rotation + 1) % len(partitions)
            partition = partitions[self.turn_rotation]
        turn = partition.ready[0].publish(bodies, size, now_ns)
        self.message_count += len(bodies)
        self.message_bytes += size
        return turn

    def publish_delayed(self, bodies: Sequence[bytes], size: int, due_ns: int, now_ns: int) -> Turn:
        """To a delay lane (which comes with its first message), into its ready lane when due."""
        self.turn_rotation = (self.turn_rotation + 1) % len(self.partitions)
        partition = self.partitions[self.turn_rotation]
        if partition.delay is None:
            delay = partition.make_delay()
            # first: this message may be refused, and the next finds the lane
            self.host.keep(self, [delay])
        turn = partition.publish_delayed(bodies, size, due_ns, now_ns)
        self.message_count += len(bodies)
        self.message_bytes += size
        return turn

    def on_forming(self, lane: Lane) -> None:
        """A ready lane's commit turn begins."""

    def on_durable(self, lane: Lane, blocks: Sequence[Block]) -> None:
        if self.ephemeral and self.unclaimed is not None:
            self._drop_unclaimed(lane, self.unclaimed)
        for channel in self.channels.values():
            if channel.subscribers and not channel.dirty:
                channel.mark_dirty()

    def _drop_unclaimed(self, lane: Lane, unclaimed: Marks) -> None:
        """An ephemeral topic without channels keeps no more than an ephemeral channel may."""
        mark = max(unclaimed.get(lane.key, 0), lane.start)
        oldest = lane.durable_end - self.host.ephemeral_backlog_max
        if oldest > mark:
            self.dropped_count += oldest - mark
            unclaimed[lane.key] = oldest

    def on_failed(self, lane: Lane) -> None:
        """Nothing was kept; publishers get the error."""

    # -- channels

    def channel(self, name: str, now_ns: int) -> Channel:
        """The channel of that name, made now if need be; the first one claims what waits."""
        channel = self.channels.get(name)
        if channel is not None:
            return channel
        marks = self.unclaimed
        start: Marks = {}
        for lane in self.ready_lanes():
            if marks is not None:
                start[lane.key] = max(marks.get(lane.key, 0), lane.start)
            else:
                end = lane.durable_end
                if self.paused is not None:
                    end = min(end, self.paused.get(lane.key, end))
                start[lane.key] = end
        started: ChannelDocument = {"created_ns": now_ns, "paused": False, "start": start}
        channel = self._channel_from(name, started)
        self.host.channel_made(channel)
        self.started[name] = started
        self.channels[name] = channel
        self.unclaimed = None
        self.host.keep(self, [channel])
        return channel

    def open_channel(self, name: str) -> Channel:
        """A channel that an earlier run left; its journal says how far it is."""
        channel = self.channels[name] = self._channel_from(name, self.started[name])
        return channel

    def _channel_from(self, name: str, started: ChannelDocument) -> Channel:
        """The channel object with a progress in every ready lane, as its document says."""
        channel = Channel(self.host, self.name, name, self.host.max_timeout_ns)
        channel.paused = started["paused"]
        if channel.ephemeral or self.ephemeral:
            channel.backlog_max = self.host.ephemeral_backlog_max
        for lane in self.ready_lanes():
            self._follow(channel, lane, started["start"].get(lane.key, lane.start))
        return channel

    def _follow(self, channel: Channel, lane: Lane, cursor: int) -> Progress:
        progress = channel.add_lane(lane, max(cursor, lane.start))
        if self.paused is not None:
            progress.limit = self.paused.get(lane.key, lane.start)
        progress.jumps = [jump for jump in self.jumps.get(lane.key, ()) if jump[1] > cursor]
        return progress

    def delete_channel(self, name: str, now_ns: int) -> None:
        """Gone with all it had; the messages stay in the log. The last one leaves an unclaimed
        mark."""
        channel = self.let_go(name)
        if self.channels:
            self.host.keep(self)
        else:
            self.note_unclaimed()
        self.host.channel_dropped(channel)

    def note_unclaimed(self) -> None:
        """What comes from now on is for the first channel. Its blocks need that to be safe: where
        the stored document has no channel either, and no mark, all is taken for claimed."""
        self.unclaimed = {}
        for lane in self.ready_lanes():
            end = lane.durable_end
            if self.paused is not None:
                end = min(end, self.paused.get(lane.key, end))
            self.unclaimed[lane.key] = end
        self.host.keep(self, self.ready_lanes())

    def let_go(self, name: str) -> Channel:
        """The channel is none of the topic's any more, and its subscribers hear of it."""
        channel = self.channels.pop(name)
        del self.started[name]
        channel.delete()
        for subscriber in [*channel.subscribers]:
            subscriber.on_dropped()
        return channel

    def pause_channel(self, name: str, paused: bool) -> None:
        channel = self.channels[name]
        channel.paused = self.started[name]["paused"] = paused
        self.host.keep(self)
        if not paused:
            channel.mark_dirty()

    def empty_channel(self, name: str, now_ns: int) -> None:
        marks = [
            mark
            for partition in self.partitions
            if partition.delay is not None
            for mark in partition.delay.marks()
        ]
        self.channels[name].empty(now_ns, marks)

    # -- the whole topic

    def pause(self) -> None:
        """Channels drain what they have; what comes from now on waits."""
        if self.paused is not None:
            return
        self.paused = {lane.key: lane.durable_end for lane in self.ready_lanes()}
        for channel in self.channels.values():
            for progress in channel.progress:
                progress.limit = self.paused[progress.lane.key]
        self.host.keep(self)

    def unpause(self) -> None:
        self.paused = None
        for channel in self.channels.values():
            for progress in channel.progress:
                progress.limit = None
            channel.mark_dirty()
        self.host.keep(self)

    def empty(self) -> None:
        """What no channel can see yet is dropped: unclaimed messages, or those that came while
        paused."""
        if self.unclaimed is not None:
            self.unclaimed = {lane.key: lane.durable_end for lane in self.ready_lanes()}
        elif self.paused is not None:
            for lane in self.ready_lanes():
                mark, end = self.paused.get(lane.key, lane.start), lane.durable_end
                if end > mark:
                    jumps = self.jumps.setdefault(lane.key, [])
                    if jumps and jumps[-1][1] == mark:
                        mark, _ = jumps.pop()  # emptied twice in one pause
                    jumps.append((mark, end))
                    self.paused[lane.key] = end
            for channel in self.channels.values():
                for progress in channel.progress:
                    progress.limit = self.paused[progress.lane.key]
                    progress.jumps = [
                        jump
                        for jump in self.jumps.get(progress.lane.key, ())
                        if jump[1] > progress.cursor
                    ]
        self.host.keep(self)

    def forget_jumps(self, lane: Lane, floor: int) -> None:
        """No channel comes back below ``floor``: what was emptied there matters to those only that
        have not come so far and keep no journal."""
        jumps = self.jumps.get(lane.key, [])
        ahead = [
            jump
            for channel in self.channels.values()
            for progress in channel.progress
            if progress.lane is lane
            for jump in progress.jumps
        ]
        left = [jump for jump in jumps if jump[1] > floor or jump in ahead]
        if len(left) < len(jumps):
            self.jumps[lane.key] = left
            if not left:
                del self.jumps[lane.key]
            self.host.keep(self)

    def floor_of(self, lane: Lane) -> int:
        """What lies below is needed by nobody any more: every channel has finished it, or it has
        moved. What no channel has claimed is needed. An ephemeral channel holds nothing back but
        what is only in memory, and that is bounded."""
        if lane.lane == DELAY_LANE:
            return self.partitions[lane.partition].delay_floor()
        if self.unclaimed is not None:
            return max(self.unclaimed.get(lane.key, 0), lane.start)
        floors = [
            progress.floor
            for channel in self.channels.values()
            if not channel.ephemeral or not lane.stored
            for progress in channel.progress
            if progress.lane is lane
        ]
        return min(floors, default=lane.durable_end)

    def note_history(self, history: bool) -> None:
        """Whether some of its segments wait for their time to go: then it is opened at start."""
        self.history = history
        self.host.keep(self)

    def idle_for(self, monotonic_ns: int) -> int:
        """How long nobody has been subscribed, nothing slept, nothing was published, and nothing
        waited to be freed, as seen by whoever asks this now and then. (Append times don't tell: the
        wall clock may have been years ahead for a moment.)"""
        lanes = self.lanes()
        seqs = sum([lane.next_seq for lane in lanes])
        if (
            self.history
            or seqs != self.seen_seqs
            or any(lane.pending for lane in lanes)
            or any(one.subscribers or one.wakes for one in self.channels.values())
            or any(len(one.schedule) for one in self.partitions)
        ):
            self.seen_seqs = seqs
            self.used_at_ns = monotonic_ns
        return monotonic_ns - self.used_at_ns

    def depth(self) -> int:
        """What no channel can see yet."""
        marks = self.unclaimed if self.unclaimed is not None else self.paused
        if marks is None:
            return 0
        return sum(
            [
                lane.messages_between(marks.get(lane.key, lane.start), lane.durable_end)
                for lane in self.ready_lanes()
            ]
        )


def new_document(
    partitions: int, durability: str, created_ns: int, tags: dict[str, list[int]]
) -> TopicDocument:
    return {
        "partitions": partitions,
        "durability": durability,
        "created_ns": created_ns,
        "tags": tags,
        "unclaimed": {},
        "paused": None,
        "channels": {},
    }


def first_lane_keys(partitions: int) -> list[str]:
    """The lanes that every topic has from the start."""
    return [lane_key(number, 0) for number in range(partitions)]


def parse_lane_key(key: str) -> tuple[int, int]:
    partition, _, lane = key.partition("/")
    return int(partition), DELAY_LANE if lane == "delay" else int(lane)
