"""Loads that publish: closed loop (so many commands in flight) and open loop (by a schedule).

Closed loop finds what the broker can do; its waiting publishers wait with it. Open loop finds how
long a publisher waits at a given rate: every message has an instant at which it was due to be sent,
and its time counts from there, however late it really left. Coordinated omission can't flatter it.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from penstock.bench.dialect import Dialect, Line, NsqLine
from penstock.bench.fleet import Outcome
from penstock.bench.histogram import Histogram
from penstock.bench.link import SILENCE_S, Address, receive
from penstock.bench.wire import BenchError, body_of
from penstock.protocol.nsq_client import encode_pub

ANSWER_BYTES_MAX = 65_536
DUE_AT = Struct(">Q")  # how a scheduled message carries the instant it was due, first in its body


@dataclass(frozen=True)
class PublishLoad:
    """``commands`` PUBs or MPUBs in all, over the topics in turn, ``inflight`` per connection."""

    address: Address
    topics: Sequence[str]
    connections: int
    inflight: int
    per_command: int
    body_bytes: int
    commands: int
    dialect: Dialect = NsqLine

    def open(self) -> ClosedLoopPublishing:
        """Connect and build the commands."""
        return ClosedLoopPublishing(self)


class ClosedLoopPublishing:
    """An answer lets the next command go."""

    def __init__(self, load: PublishLoad) -> None:
        self._per_command = load.per_command
        self._latency = Histogram()
        self._commands = load.commands
        share, more = divmod(load.commands, load.connections)
        self._publishers = []
        for number in range(load.connections):
            left = share + (number < more)
            line = load.dialect(load.address, load.per_command)
            commands = _Commands(_commands_of(load, line, first=number * share, count=left))
            self._publishers.append(_Publisher(line, commands, left, load.inflight, self._latency))

    def run(self) -> Outcome:
        """Publish all of it; every command is answered."""
        started_at_ns = time.monotonic_ns()
        poll = select.epoll()
        at_work = {}
        for publisher in self._publishers:
            if publisher.start():
                at_work[publisher.link.fileno()] = publisher
                room = select.EPOLLOUT if publisher.watched_for_room else 0
                poll.register(publisher.link.fileno(), select.EPOLLIN | room)
        while at_work:
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise BenchError(f"the broker answered nothing for {SILENCE_S:.0f} s")
            for fileno, event in ready:
                publisher = at_work[fileno]
                if event & ~select.EPOLLOUT and publisher.on_answers():
                    del at_work[fileno]
                    poll.unregister(fileno)
                elif publisher.send_rest() == publisher.watched_for_room:
                    publisher.watched_for_room = not publisher.watched_for_room
                    room = select.EPOLLOUT if publisher.watched_for_room else 0
                    poll.modify(fileno, select.EPOLLIN | room)
        ended_at_ns = time.monotonic_ns()
        poll.close()
        return Outcome(
            self._commands * self._per_command, started_at_ns, ended_at_ns, self._latency
        )


def _commands_of(load: PublishLoad, line: Line, *, first: int, count: int) -> list[bytes]:
    """The connection's share of the topics, from its first on; no more than it will use."""
    body = body_of(load.body_bytes)
    topics = load.topics
    return [
        line.command(topics[(first + number) % len(topics)], body, load.per_command)
        for number in range(max(1, min(len(topics), count)))
    ]


class _Commands:
    """The next ``count`` commands as bytes: one prebuilt command repeated, or all in turn."""

    def __init__(self, one_each: list[bytes]) -> None:
        self._one_each = one_each
        self._next = 0
        self._row = b""

    def take(self, count: int) -> memoryview:
        if len(self._one_each) == 1:
            size = len(self._one_each[0])
            if len(self._row) < count * size:
                self._row = self._one_each[0] * count
            return memoryview(self._row)[: count * size]
        commands = []
        while count:
            some = self._one_each[self._next : self._next + count]
            commands += some
            count -= len(some)
            self._next = (self._next + len(some)) % len(self._one_each)
        return memoryview(b"".join(commands))


class _Publisher:
    """One connection's side of a closed loop."""

    __slots__ = (
        "link", "watched_for_room",
        "_line", "_commands", "_left", "_inflight", "_latency", "_sent", "_rest",
    )  # fmt: skip

    def __init__(
        self, line: Line, commands: _Commands, left: int, inflight: int, latency: Histogram
    ) -> None:
        self.link = line.link
        self.watched_for_room = False
        self._line = line
        self._commands = commands
        self._left = left
        self._inflight = inflight
        self._latency = latency
        self._sent: deque[list[int]] = deque()  # [sent at, commands not answered yet]
        self._rest = memoryview(b"")  # commands that the socket did not take yet

    def start(self) -> bool:
        """Fill the window; whether there is anything to wait for."""
        self.link.setblocking(False)
        self._send(min(self._inflight, self._left))
        self.watched_for_room = bool(self._rest)
        return bool(self._sent)

    def on_answers(self) -> bool:
        """Count what was answered and send as many anew; whether all is done."""
        answered = count = self._line.feed(receive(self.link, ANSWER_BYTES_MAX))
        now_ns = time.monotonic_ns()
        sent = self._sent
        while count:
            if not sent:
                raise BenchError("the broker sent more answers than there were commands")
            oldest = sent[0]
            some = min(count, oldest[1])
            self._latency.record(now_ns - oldest[0], some)
            count -= some
            oldest[1] -= some
            if not oldest[1]:
                sent.popleft()
        self._send(min(answered, self._left))
        return not sent

    def _send(self, count: int) -> None:
        if not count:
            return
        self._left -= count
        self._sent.append([time.monotonic_ns(), count])
        commands = self._commands.take(count)
        if self._rest:
            commands = memoryview(bytes(self._rest) + bytes(commands))
        self._rest = commands
        self.send_rest()

    def send_rest(self) -> bool:
        """Send what the socket takes; whether nothing is left."""
        if self._rest:
            try:
                sent = self.link.send(self._rest)
            except BlockingIOError:
                return False
            except OSError as error:
                raise BenchError(f"the connection broke: {error}") from error
            self._rest = self._rest[sent:]
        return not self._rest


@dataclass(frozen=True)
class ScheduledPublishLoad:
    """``messages`` single PUBs at ``rate_per_s``, each due at its own instant, topics in turn.

    The first message is due ``lead_ms`` after the word to go. Bodies begin with the instant they
    were due, for a consumer that measures (see ``penstock.bench.consume``).
    """

    address: Address
    topics: Sequence[str]
    connections: int
    body_bytes: int
    rate_per_s: int
    messages: int
    lead_ms: int = 20

    def open(self) -> OpenLoopPublishing:
        """Connect and build all of a message but its instant."""
        return OpenLoopPublishing(self)


class OpenLoopPublishing:
    """The schedule lets the next command go; the answers are timed from the schedule."""

    def __init__(self, load: ScheduledPublishLoad) -> None:
        self._load = load
        self._lines = [NsqLine(load.address, 1) for _ in range(load.connections)]
        self._links = [line.link for line in self._lines]
        rest = body_of(load.body_bytes)[DUE_AT.size :]
        bodies = [encode_pub(topic, bytes(DUE_AT.size) + rest) for topic in load.topics]
        cut = len(rest) + DUE_AT.size
        self._heads = [command[:-cut] for command in bodies]
        self._rest = rest
        self._due: dict[int, deque[int]] = {link.fileno(): deque() for link in self._links}
        self._by_fileno = {line.link.fileno(): line for line in self._lines}
        self._latency = Histogram()
        self._lag = Histogram()

    def run(self) -> Outcome:
        """Send by the schedule, then wait for the answers that are still out."""
        _wake_precisely()
        links = self._links
        started_at_ns = time.monotonic_ns()
        schedule = self._schedule(started_at_ns + self._load.lead_ms * 1_000_000)
        number, due_at_ns = next(schedule)
        left = self._load.messages
        while left:
            now_ns = time.monotonic_ns()
            if now_ns < due_at_ns:
                self._take_answers((due_at_ns - now_ns) / 1e9)
                continue
            batches: dict[int, list[bytes]] = {}
            while left and due_at_ns <= now_ns:
                self._lag.record(now_ns - due_at_ns)
                place = number % len(links)
                link = links[place]
                self._due[link.fileno()].append(due_at_ns)
                head = self._heads[number % len(self._heads)]
                batches.setdefault(place, []).extend((head, DUE_AT.pack(due_at_ns), self._rest))
                left -= 1
                if left:
                    number, due_at_ns = next(schedule)
            for place, parts in batches.items():
                links[place].sendall(b"".join(parts))
        while any(self._due.values()):
            if not self._take_answers(SILENCE_S):
                raise BenchError(f"the broker answered nothing for {SILENCE_S:.0f} s")
        return Outcome(
            self._load.messages,
            started_at_ns,
            time.monotonic_ns(),
            self._latency,
            self._lag.in_ms("generator_lag"),
        )

    def _schedule(self, first_at_ns: int) -> Iterator[tuple[int, int]]:
        rate = self._load.rate_per_s
        for number in range(self._load.messages):
            yield number, first_at_ns + number * 1_000_000_000 // rate

    def _take_answers(self, wait_s: float) -> bool:
        # select, not epoll: its timeout is in microseconds, epoll's in milliseconds.
        ready, _, _ = select.select(self._links, (), (), wait_s)
        for link in ready:
            fileno = link.fileno()
            count = self._by_fileno[fileno].feed(receive(link, ANSWER_BYTES_MAX))
            now_ns = time.monotonic_ns()
            due = self._due[fileno]
            if count > len(due):
                raise BenchError("the broker sent more answers than there were commands")
            for _ in range(count):
                self._latency.record(now_ns - due.popleft())
        return bool(ready)


def _wake_precisely() -> None:
    """Ask Linux for timers as exact as it can; 50 µs of slack is its default."""
    slack = Path("/proc/self/timerslack_ns")
    if slack.exists():
        slack.write_text("1")
