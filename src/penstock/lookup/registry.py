"""What a name server knows: topics, their channels, and the producers (brokers) that have them.

Pure: no socket, and the time is handed in (monotonic, nanoseconds). A topic or channel stays known
when its last producer has gone, as in nsqlookupd, so that consumers can wait for it to come back;
`#ephemeral` ones go with their last producer, whether it says so or just vanishes. (nsqlookupd
forgets them only if it says so.)

A tombstone hides one producer of one topic from lookups for a while, so that consumers let go of it
before the topic is deleted there. A producer that was not heard of for long is not shown either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.errors import PeerError
from penstock.limits import MINUTE_MS, SECOND_MS
from penstock.names import is_ephemeral
from penstock.protocol.lookup import Node

# More topics and channels than any broker has; fewer than would fill the name server's memory.
NAMES_MAX = 250_000

_MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """nsqlookupd's times."""

    inactive_timeout_ms: int = 5 * MINUTE_MS
    tombstone_lifetime_ms: int = 45 * SECOND_MS


@dataclass(eq=False, slots=True)
class Producer:
    """One broker's connection."""

    remote_address: str
    node: Node
    heard_at_ns: int
    # (topic, channel) of all it has registered, the channel empty for the topic itself
    names: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What a tombstone calls it by."""
        return f"{self.node.broadcast_address}:{self.node.http_port}"


@dataclass(eq=False, slots=True)
class _Topic:
    # producers with the moment of their tombstone
    producers: dict[Producer, int | None] = field(default_factory=dict)
    channels: dict[str, dict[Producer, None]] = field(default_factory=dict)


class Registry:
    """Invariant: a producer is under a topic or channel if and only if that is in its names, and
    who is under a channel is under its topic."""

    def __init__(self, options: RegistryOptions | None = None) -> None:
        options = options or RegistryOptions()
        self._inactive_ns = options.inactive_timeout_ms * _MS_NS
        self._tombstone_ns = options.tombstone_lifetime_ms * _MS_NS
        self._topics: dict[str, _Topic] = {}
        self.producers: dict[Producer, None] = {}

    # -- what producers say

    def add(self, producer: Producer) -> None:
        self.producers[producer] = None

    def remove(self, producer: Producer) -> None:
        """It has gone, and is under nothing any more."""
        for topic, channel in [*producer.names]:
            if not channel:
                self.unregister(producer, topic, "")
        del self.producers[producer]

    def register(self, producer: Producer, topic: str, channel: str) -> None:
        if len(producer.names) >= NAMES_MAX:
            raise PeerError("E_INVALID", f"REGISTER of more than {NAMES_MAX} topics and channels")
        known = self._topics.setdefault(topic, _Topic())
        known.producers.setdefault(producer, None)
        producer.names[topic, ""] = None
        if channel:
            known.channels.setdefault(channel, {})[producer] = None
            producer.names[topic, channel] = None

    def unregister(self, producer: Producer, topic: str, channel: str) -> None:
        """The channel, or the topic with all channels that the producer has of it."""
        known = self._topics.get(topic)
        if known is None:
            return
        if channel:
            self._leave_channel(known, producer, topic, channel)
            return
        for name in [*known.channels]:
            self._leave_channel(known, producer, topic, name)
        if producer not in known.producers:
            return
        del known.producers[producer]
        del producer.names[topic, ""]
        if is_ephemeral(topic) and not known.producers:
            del self._topics[topic]

    def _leave_channel(self, known: _Topic, producer: Producer, topic: str, channel: str) -> None:
        have = known.channels.get(channel, {})
        if producer not in have:
            return
        del have[producer]
        del producer.names[topic, channel]
        if is_ephemeral(channel) and not have:
            del known.channels[channel]

    # -- by hand

    def make_topic(self, topic: str) -> None:
        self._topics.setdefault(topic, _Topic())

    def make_channel(self, topic: str, channel: str) -> None:
        self._topics.setdefault(topic, _Topic()).channels.setdefault(channel, {})

    def delete_topic(self, topic: str) -> None:
        """Forgotten until a producer registers it again."""
        known = self._topics.get(topic)
        if known is None:
            return
        for channel in [*known.channels]:
            self.delete_channel(topic, channel)
        for producer in known.producers:
            del producer.names[topic, ""]
        del self._topics[topic]

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Whether there was one."""
        known = self._topics.get(topic)
        if known is None or channel not in known.channels:
            return False
        for producer in known.channels.pop(channel):
            del producer.names[topic, channel]
        return True

    def tombstone(self, topic: str, place: str, now_ns: int) -> None:
        known = self._topics.get(topic, _Topic())
        for producer in known.producers:
            if producer.place == place:
                known.producers[producer] = now_ns

    # -- what there is

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def topics(self) -> list[str]:
        return [*self._topics]

    def channels(self, topic: str) -> list[str]:
        return [*self._topics.get(topic, _Topic()).channels]

    def producers_of(self, topic: str, now_ns: int) -> list[Producer]:
        """Those that consumers should connect to."""
        return [
            producer
            for producer, buried_at_ns in self._topics.get(topic, _Topic()).producers.items()
            if self._is_active(producer, now_ns) and not self._is_buried(buried_at_ns, now_ns)
        ]

    def active(self, now_ns: int) -> list[Producer]:
        """Tombstones or not."""
        return [producer for producer in self.producers if self._is_active(producer, now_ns)]

    def topics_of(self, producer: Producer, now_ns: int) -> dict[str, bool]:
        """A producer's topics, and whether it is tombstoned there."""
        return {
            topic: self._is_buried(self._topics[topic].producers[producer], now_ns)
            for topic, channel in producer.names
            if not channel
        }

    def registrations(self) -> Iterator[tuple[str, str, Producer, int | None]]:
        """(topic, channel, producer, moment of the tombstone): all there is, for the curious."""
        for topic, known in self._topics.items():
            for producer, buried_at_ns in known.producers.items():
                yield topic, "", producer, buried_at_ns
            for channel, have in known.channels.items():
                for producer in have:
                    yield topic, channel, producer, None

    def _is_active(self, producer: Producer, now_ns: int) -> bool:
        return now_ns - producer.heard_at_ns <= self._inactive_ns

    def _is_buried(self, buried_at_ns: int | None, now_ns: int) -> bool:
        return buried_at_ns is not None and now_ns - buried_at_ns < self._tombstone_ns

    def verify(self) -> None:
        """The invariant, for tests."""
        said = {(topic, channel, one) for one in self.producers for topic, channel in one.names}
        known = {(topic, channel, one) for topic, channel, one, _ in self.registrations()}
        assert said == known, said ^ known
        assert {(topic, "", one) for topic, _, one in known} <= known
