"""A load that publishes in a closed loop: so many commands in flight, an answer lets one more go.

It finds what a broker can do. How long a publisher waits is ``penstock.bench.schedule``'s business:
here a publisher that waits publishes less.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.dialect import Dialect, Line, NsqLine
from penstock.bench.fleet import Outcome
from penstock.bench.histogram import Histogram
from penstock.bench.link import SILENCE_S, Address, receive
from penstock.bench.wire import BenchError, body_of

ANSWER_BYTES_MAX = 65_536


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
