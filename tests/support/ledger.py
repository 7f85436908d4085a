"""What a broker said to its clients, kept by the clients: whoever kills it asks here afterwards.

Bodies are unique and name their topic. Times are `time.monotonic()` of the test's process. What is
wrong is collected in `wrongs` when it is seen, as sentences; a test ends with
`assert not ledger.wrongs`.

    lost        answered at a durability that survives, and a channel never gave it to a consumer
                that finished it, requeued before or not
    came back   finished, the broker is known to have heard it, and delivered again
    early       delivered before its delay was over
    two bodies  one id for two bodies, or two ids for one
    changed     another body than was published
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from tests.support.wire import Delivery

# What was finished so long before a kill does not come back. (The promise; `Ledger.killed` adds
# what the machine itself was late by.)
SAFE_SECONDS = 0.1

FILLER = b"penstock " * 12_000


def make_body(key: str, filler_bytes: int = 0) -> bytes:
    return b"%s %d %s" % (key.encode(), filler_bytes, FILLER[:filler_bytes])


def is_whole(body: bytes) -> bool:
    parts = body.split(b" ", 2)
    return len(parts) == 3 and parts[2] == FILLER[: int(parts[1])]


class ChannelLedger:
    """What one channel was given, and what it said to that."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.delivered: set[bytes] = set()
        self.finishing: set[bytes] = set()  # FIN was sent at least once
        self.finished: dict[bytes, float] = {}  # in this run: body -> when the broker had heard it
        self.over: set[bytes] = set()  # in earlier runs, and safe
        self.asleep: dict[bytes, tuple[float, float]] = {}  # body -> (not before, heard at or 0)

    def __repr__(self) -> str:
        return f"{self.topic}/{self.name}"


class Ledger:
    """All topics and channels of one broker, over all its runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wrongs: list[str] = []
        self.answered: dict[str, set[bytes]] = {}
        self.not_before: dict[bytes, float] = {}
        self.bodies: dict[bytes, bytes] = {}  # id -> body
        self.ids: dict[bytes, bytes] = {}
        self.channels: dict[tuple[str, str], ChannelLedger] = {}
        self.deliveries = 0
        self.forgotten: set[int] = set()  # hashes of bodies and ids that are over everywhere

    def channel(self, topic: str, name: str) -> ChannelLedger:
        with self.lock:
            return self.channels.setdefault((topic, name), ChannelLedger(topic, name))

    def wrong(self, what: str) -> None:
        with self.lock:
            self._wrong(what)

    def _wrong(self, what: str) -> None:
        if len(self.wrongs) < 30:
            self.wrongs.append(what)

    # --- publishers

    def publishing(self, bodies: Iterable[bytes], delay_ms: int = 0) -> None:
        """About to be sent."""
        if delay_ms:
            not_before = time.monotonic() + delay_ms / 1000
            with self.lock:
                self.not_before.update(dict.fromkeys(bodies, not_before))

    def published(self, topic: str, bodies: Sequence[bytes]) -> None:
        """OK came."""
        with self.lock:
            self.answered.setdefault(topic, set()).update(bodies)

    def behind(self, topic: str) -> int:
        """How many answered messages the slowest channel has not seen."""
        with self.lock:
            published = len(self.answered.get(topic, ()))
            seen = [len(one.delivered) for one in self.channels.values() if one.topic == topic]
            return published - min(seen, default=0)

    # --- consumers

    def delivered(self, channel: ChannelLedger, delivery: Delivery) -> None:
        now = time.monotonic()
        body, number = delivery.body, delivery.id
        what = f"{channel}: {body[:60]!r} (id {number.decode()})"
        with self.lock:
            self.deliveries += 1
            channel.delivered.add(body)
            if self.bodies.setdefault(number, body) != body:
                self._wrong(f"two bodies: {what} has the id of {self.bodies[number][:60]!r}")
            if self.ids.setdefault(body, number) != number:
                self._wrong(f"two ids: {what} had {self.ids[body].decode()} before")
            if hash(number) in self.forgotten:
                self._wrong(f"two bodies: {what} has the id of one that is long over")
            if not is_whole(body) or not body.startswith(channel.topic.encode()):
                self._wrong(f"changed: {what}")
            if now < self.not_before.get(body, 0):
                early = self.not_before[body] - now
                self._wrong(f"early: {what} was published with a delay, {early:.3f} s are left")
            not_before, _ = channel.asleep.pop(body, (0.0, 0.0))
            if now < not_before:
                self._wrong(f"early: {what} was requeued, {not_before - now:.3f} s are left")
            if body in channel.finished or body in channel.over or hash(body) in self.forgotten:
                self._wrong(f"came back: {what}, attempts {delivery.attempts}")

    def finishes(self, channel: ChannelLedger, bodies: Iterable[bytes]) -> None:
        """About to be finished."""
        with self.lock:
            channel.finishing.update(bodies)

    def sleeps(self, channel: ChannelLedger, body: bytes, delay_ms: int) -> None:
        """About to be requeued with a delay."""
        with self.lock:
            channel.asleep[body] = (time.monotonic() + delay_ms / 1000, 0)

    def heard(
        self, channel: ChannelLedger, finished: Iterable[bytes], requeued: Iterable[bytes]
    ) -> None:
        """The broker answered something that was sent behind these."""
        now = time.monotonic()
        with self.lock:
            channel.finished.update(dict.fromkeys(finished, now))
            for body in requeued:
                if body in channel.asleep:
                    channel.asleep[body] = (channel.asleep[body][0], now)

    # --- the end of a run

    def killed(self, alive_at: float, late_seconds: float) -> None:
        """By kill -9. The broker answered something that was asked at `alive_at` (0: nothing), and
        answers were up to `late_seconds` late on this machine."""
        safe_until = alive_at - SAFE_SECONDS - late_seconds
        with self.lock:
            for channel in self.channels.values():
                channel.over.update(
                    body for body, heard_at in channel.finished.items() if heard_at <= safe_until
                )
                channel.finished.clear()
                channel.asleep = {
                    body: (not_before, heard_at)
                    for body, (not_before, heard_at) in channel.asleep.items()
                    if 0 < heard_at <= safe_until
                }

    def stopped(self) -> None:
        """In order: all that was heard is kept."""
        self.killed(time.monotonic() + SAFE_SECONDS, 0)

    def forget(self) -> None:
        """Keep no more than a hash of what is over in all of a topic's channels: for long runs."""
        with self.lock:
            for topic in {channel.topic for channel in self.channels.values()}:
                channels = [one for one in self.channels.values() if one.topic == topic]
                for body in set.intersection(*(one.over for one in channels)):
                    number = self.ids.pop(body)
                    del self.bodies[number]
                    self.forgotten.update((hash(body), hash(number)))
                    self.answered.get(topic, set()).discard(body)
                    self.not_before.pop(body, None)
                    for one in channels:
                        one.over.discard(body)
                        one.delivered.discard(body)
                        one.finishing.discard(body)

    def missing(self, topics: Iterable[str]) -> dict[str, int]:
        """Channels in which not all that was answered was finished, and how much is missing."""
        with self.lock:
            missing = {
                repr(channel): len(self.answered.get(channel.topic, set()) - channel.finishing)
                for channel in self.channels.values()
                if channel.topic in topics
            }
        return {name: count for name, count in missing.items() if count}
