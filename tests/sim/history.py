"""What clients did and saw, and whether a durable queue may behave like that.

Every entry is made at the broker's own moments: a command counts when its last byte was given to
the door, an answer or a message when the door wrote it. So nothing is left to guess but what a
crash may take, and for that the promise is explicit (`crashed`). The first thing that breaks it
raises `Violation`, with the story of that message.

Checked as it happens:

    early       a message of DPUB, or one that was requeued with a delay, before its time
    twice       delivered again after it was finished; or while it is in flight elsewhere
    over RDY    handed out although as much as the client asked for was in flight
    identity    an id with two bodies, or a body with two ids, in one run or over crashes
    body        something that nobody has published
    attempts    within one run each delivery counts one more
    order       fresh messages of one log reach a channel in the order of their ids
    refused     a FIN, REQ or TOUCH that failed although the client had the message in flight

And in the end (`judge`): lost, that is, answered with OK and never delivered to a channel that
was there; and a promise that a message that was refused was not kept (`unkept`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.sim.world import MS, SECOND, World

KILL_WINDOW_NS = 100 * MS
POWER_WINDOW_NS = SECOND
CATCH_UP_NS = 2 * SECOND  # after trouble with the disk all is as promised again


class Violation(AssertionError):
    """A promise was broken."""


class Message:
    """One published body; unique."""

    __slots__ = (
        "acked_ns",
        "body",
        "copies",
        "due_ns",
        "excused",
        "failed",
        "id",
        "sent_ns",
        "story",
        "topic",
    )

    def __init__(self, topic: TopicHistory, body: bytes, sent_ns: int) -> None:
        self.topic = topic
        self.body = body
        self.sent_ns = sent_ns
        self.acked_ns = 0
        self.failed = ""
        self.due_ns = 0
        self.id = b""
        self.excused = ""
        self.copies: dict[str, Copy] = {}
        self.story: list[str] = []

    def copy_for(self, channel: ChannelHistory) -> Copy:
        copy = self.copies.get(channel.name)
        if copy is None:
            copy = self.copies[channel.name] = Copy(self, channel)
        return copy

    def __str__(self) -> str:
        lines = [f"{self.topic.name} {self.body[:40]!r} id {self.id!r}", *self.story]
        return "\n    ".join(lines)


class Holder:
    """Who has messages in flight: one consumer's connection."""

    __slots__ = ("alive", "held", "name", "ready", "timeout_ns")

    def __init__(self, name: str, timeout_ns: int) -> None:
        self.name = name
        self.timeout_ns = timeout_ns
        self.ready = 0
        self.alive = True
        self.held: dict[bytes, Copy] = {}


@dataclass(slots=True)
class Copy:
    """A message as one channel knows it."""

    message: Message
    channel: ChannelHistory
    holder: Holder | None = None
    held_until_ns: int = 0
    finished_ns: int = 0
    ever_finished: bool = False
    requeued_ns: int = 0
    wake_ns: int = 0
    attempts: int = 0
    attempts_epoch: int = -1


@dataclass(slots=True)
class ChannelHistory:
    """One channel; ``since_ns`` is when its creation was answered."""

    name: str
    first: bool
    since_ns: int = 0
    newest: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)


class TopicHistory:
    """One topic."""

    def __init__(self, name: str, durability: str) -> None:
        self.name = name
        self.durability = durability
        self.messages: dict[bytes, Message] = {}
        self.channels: dict[str, ChannelHistory] = {}
        self.exposed_ns: int | None = None  # since when nothing may be synced: a process died

    def channel(self, name: str, *, first: bool = False) -> ChannelHistory:
        return self.channels.setdefault(name, ChannelHistory(name, first))


class History:
    """Everything that happened, and the judge of it."""

    def __init__(self, world: World, sync_interval_ns: int) -> None:
        self.world = world
        self.sync_interval_ns = sync_interval_ns
        self.topics: dict[str, TopicHistory] = {}
        self.by_id: dict[bytes, Message] = {}
        self.recent: deque[tuple[int, Copy]] = deque()
        self.epoch = 0
        self.trouble_ns: int | None = None  # since when journals may be late
        self.trouble_over_ns: int | None = None
        self.deliveries = self.finishes = self.acks = self.refusals = 0

    def tell(self, message: Message, what: str) -> None:
        message.story.append(f"{self.world.now / 1e9:.6f} {what}")

    def fail(self, message: Message, what: str) -> None:
        raise Violation(f"{self.world.now / 1e9:.6f} {what}\n    {message}")

    # --- publishing

    def published(self, topic: TopicHistory, body: bytes, delay_ns: int | None) -> Message:
        message = topic.messages[body] = Message(topic, body, self.world.now)
        self.tell(message, "sent" if delay_ns is None else f"sent, delay {delay_ns / 1e9:.3f} s")
        return message

    def given(self, message: Message, delay_ns: int) -> None:
        """The broker has the whole command: its delay counts from now, at the earliest."""
        message.due_ns = self.world.now_ns() + delay_ns

    def acked(self, message: Message) -> None:
        message.acked_ns = self.world.now
        self.acks += 1
        self.tell(message, "OK")

    def refused(self, message: Message, error: str) -> None:
        message.failed = error
        self.refusals += 1
        self.tell(message, f"refused: {error}")

    # --- consuming

    def subscribed(self, topic: TopicHistory, channel: str) -> None:
        topic.exposed_ns = None  # it is open, so its logs and journals are synced
        there = topic.channels[channel]
        if not there.since_ns:
            there.since_ns = self.world.now

    def delivered(
        self,
        topic: TopicHistory,
        channel: ChannelHistory,
        holder: Holder,
        message_id: bytes,
        attempts: int,
        body: bytes,
    ) -> None:
        world = self.world
        message = topic.messages.get(body)
        if message is None:
            raise Violation(f"{topic.name}: {body[:80]!r}, id {message_id!r}, was never published")
        self.deliveries += 1
        copy = message.copy_for(channel)
        self.tell(message, f"to {channel.name} for {holder.name}, attempts {attempts}")
        self._check_identity(message, message_id)
        if copy.finished_ns:
            self.fail(message, "delivered again though it was finished")
        other = copy.holder
        if other is not None and other.alive and world.now < copy.held_until_ns:
            self.fail(message, f"delivered while it is in flight to {other.name}")
        if world.wall_highest < message.due_ns:
            ahead = (message.due_ns - world.wall_highest) / 1e9
            self.fail(message, f"delivered {ahead:.6f} s before it is due")
        if world.wall_highest < copy.wake_ns:
            ahead = (copy.wake_ns - world.wall_highest) / 1e9
            self.fail(message, f"requeued, and delivered {ahead:.6f} s before its delay is over")
        if copy.attempts_epoch == self.epoch and attempts != copy.attempts + 1:
            self.fail(message, f"attempts went from {copy.attempts} to {attempts}")
        in_flight = sum([world.now < one.held_until_ns for one in holder.held.values()])
        if in_flight >= holder.ready:
            self.fail(message, f"RDY is {holder.ready}, in flight {in_flight}, and one more came")
        if attempts == 1 and not message.due_ns:
            self._check_order(channel, message)
        if other is not None:
            other.held.pop(message_id, None)
        copy.holder = holder
        copy.held_until_ns = world.now + holder.timeout_ns
        copy.attempts, copy.attempts_epoch = attempts, self.epoch
        copy.wake_ns = copy.requeued_ns = 0
        holder.held[message_id] = copy

    def missed(
        self, topic: TopicHistory, channel: ChannelHistory, attempts: int, body: bytes
    ) -> None:
        """Written to a connection that was closing: no client sees it, yet it counts."""
        message = topic.messages[body]
        self.tell(message, f"to {channel.name}, too late, attempts {attempts}")
        copy = message.copy_for(channel)
        copy.attempts, copy.attempts_epoch = attempts, self.epoch

    def _check_identity(self, message: Message, message_id: bytes) -> None:
        known = self.by_id.setdefault(message_id, message)
        if known is not message:
            self.fail(message, f"id {message_id!r} belongs to another body as well:\n{known}")
        if message.id not in {b"", message_id}:
            self.fail(message, f"has a second id {message_id!r}")
        message.id = message_id

    def _check_order(self, channel: ChannelHistory, message: Message) -> None:
        log, number = message.id[:6], message.id
        epoch, newest = channel.newest.get(log, (-1, b""))
        if epoch == self.epoch and number <= newest:
            self.fail(message, f"came after {newest!r}, both for the first time")
        channel.newest[log] = (self.epoch, number)

    def finished(self, holder: Holder, message_id: bytes) -> None:
        copy = self._settled(holder, message_id, "FIN")
        if copy is None:
            return
        self.finishes += 1
        copy.finished_ns = self.world.now
        copy.ever_finished = True
        self.recent.append((self.world.now, copy))

    def requeued(self, holder: Holder, message_id: bytes, delay_ns: int) -> None:
        copy = self._settled(holder, message_id, f"REQ {delay_ns / 1e9:.3f}")
        if copy is None:
            return
        copy.requeued_ns = self.world.now
        copy.wake_ns = self.world.now_ns() + delay_ns if delay_ns else 0

    def _settled(self, holder: Holder, message_id: bytes, what: str) -> Copy | None:
        copy = holder.held.pop(message_id, None)
        if copy is None or copy.holder is not holder:
            return None
        self.tell(copy.message, f"{what} by {holder.name} on {copy.channel.name}")
        copy.holder = None
        return copy

    def touched(self, holder: Holder, message_id: bytes) -> None:
        copy = holder.held.get(message_id)
        if copy is not None:
            self.tell(copy.message, f"TOUCH by {holder.name}")
            copy.held_until_ns = self.world.now + holder.timeout_ns

    def settle_failed(self, holder: Holder, message_id: bytes, error: str) -> None:
        copy = holder.held.get(message_id)
        if copy is not None and copy.holder is holder and self.world.now < copy.held_until_ns:
            self.fail(copy.message, f"{holder.name} has it in flight, and got {error}")

    def left(self, holder: Holder) -> None:
        """The connection is over: what it had in flight may go to others."""
        holder.alive = False
        for copy in holder.held.values():
            if copy.holder is holder:
                copy.holder = None
                self.tell(copy.message, f"{holder.name} left")
        holder.held.clear()

    # --- crashes, and what they may take

    def trouble(self) -> None:
        """From now on journals may be later than is promised for a disk that works."""
        if self._trouble_since() is None:
            self.trouble_ns = self.world.now
        self.trouble_over_ns = None

    def trouble_over(self) -> None:
        self.trouble_over_ns = self.world.now

    def stopped(self) -> None:
        """A clean stop takes nothing, but what is only in memory. One amidst trouble with the disk
        is as good as a kill."""
        if self._trouble_since() is not None:
            self.killed()
            return
        self._excuse_memory("stop")
        self.recent.clear()
        for topic in self.topics.values():
            topic.exposed_ns = None
        self._next_epoch()

    def killed(self) -> None:
        self._excuse_memory("kill -9")
        for topic in self.topics.values():
            topic.exposed_ns = self._unsynced_since(topic)
        self._forget_recent(dict.fromkeys(self.topics, self._late_since() - KILL_WINDOW_NS))
        self._next_epoch()

    def power_cut(self, slack_ns: int) -> None:
        self._excuse_memory("power cut")
        self._excuse_unsynced(slack_ns, "power cut before its sync")
        self._forget_recent(
            {
                name: self._unsynced_since(topic) - POWER_WINDOW_NS
                for name, topic in self.topics.items()
            }
        )
        for topic in self.topics.values():
            topic.exposed_ns = None
        self._next_epoch()

    def damaged(self, slack_ns: int) -> None:
        """A bit flipped in what a killed process left. What it had not synced looks torn then, and
        of a journal also its very end, which nothing behind it vouches for. So what was finished
        may come again."""
        self._excuse_unsynced(slack_ns, "damaged before its sync")
        self.recent.clear()
        for copy in self._copies():
            copy.finished_ns = copy.wake_ns = 0

    def _excuse_memory(self, reason: str) -> None:
        for topic in self.topics.values():
            if topic.durability == "memory":
                for message in topic.messages.values():
                    message.excused = message.excused or reason

    def _excuse_unsynced(self, slack_ns: int, reason: str) -> None:
        for topic in self.topics.values():
            if topic.durability == "written":
                limit = self._unsynced_since(topic) - self.sync_interval_ns - slack_ns
                for message in topic.messages.values():
                    if not message.acked_ns or message.acked_ns > limit:
                        message.excused = message.excused or reason

    def _trouble_since(self) -> int | None:
        over = self.trouble_over_ns
        if over is not None and self.world.now > over + CATCH_UP_NS:
            self.trouble_ns = self.trouble_over_ns = None
        return self.trouble_ns

    def _late_since(self) -> int:
        """Until then the broker could do everything in time."""
        trouble_ns = self._trouble_since()
        return self.world.now if trouble_ns is None else trouble_ns

    def _unsynced_since(self, topic: TopicHistory) -> int:
        late_ns = self._late_since()
        return late_ns if topic.exposed_ns is None else min(late_ns, topic.exposed_ns)

    def _forget_recent(self, since: dict[str, int]) -> None:
        """What was settled that late may come back; by topic."""
        kept = [entry for entry in self.recent if entry[0] < since[entry[1].message.topic.name]]
        for at_ns, copy in self.recent:
            if at_ns >= since[copy.message.topic.name]:
                copy.finished_ns = 0
        self.recent = deque(kept)
        for copy in self._copies():
            if copy.requeued_ns >= since[copy.message.topic.name]:
                copy.wake_ns = 0

    def _copies(self) -> Iterator[Copy]:
        for topic in self.topics.values():
            for message in topic.messages.values():
                yield from message.copies.values()

    def _next_epoch(self) -> None:
        self.epoch += 1
        if self.trouble_ns is not None and self.trouble_over_ns is None:
            self.trouble_ns = self.world.now
        else:
            self.trouble_ns = self.trouble_over_ns = None

    # --- the end

    def outstanding(self) -> list[Message]:
        """Messages that some channel must still get and finish."""
        return [
            message
            for topic in self.topics.values()
            for message in topic.messages.values()
            if message.acked_ns
            and not message.excused
            and any(
                self._owed(message, channel)
                and not (
                    channel.name in message.copies and message.copies[channel.name].ever_finished
                )
                for channel in topic.channels.values()
            )
        ]

    def _owed(self, message: Message, channel: ChannelHistory) -> bool:
        if channel.first:
            return True
        return bool(channel.since_ns) and message.sent_ns >= channel.since_ns

    def judge(self) -> None:
        missing = self.outstanding()
        if missing:
            story = "\n".join([str(message) for message in missing[:3]])
            raise Violation(f"{len(missing)} messages answered with OK are lost, such as\n{story}")
