"""A load that publishes in an open loop: by a schedule that no answer can hold up.

Every message has an instant at which it is due to be sent, and its time counts from there, however
late it really left: what a broker (or this generator) holds up counts for every message that was
due meanwhile, so coordinated omission can't flatter the figure. How late the generator itself was
is reported beside it.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.dialect import Dialect, NsqLine
from penstock.bench.fleet import Outcome
from penstock.bench.histogram import Histogram
from penstock.bench.link import SILENCE_S, Address, receive
from penstock.bench.publish import ANSWER_BYTES_MAX
from penstock.bench.wire import BenchError, body_of

# How a message carries the instant it was due, first in its body: as text, for protocols of lines.
DUE_AT = b"%016x"
DUE_NEVER = DUE_AT % 0
DUE_AT_BYTES = len(DUE_NEVER)


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
    dialect: Dialect = NsqLine

    def open(self) -> OpenLoopPublishing:
        """Connect and build all of a message but its instant."""
        return OpenLoopPublishing(self)


class OpenLoopPublishing:
    """The schedule lets the next command go; the answers are timed from the schedule."""

    def __init__(self, load: ScheduledPublishLoad) -> None:
        self._load = load
        lines = [load.dialect(load.address, 1) for _ in range(load.connections)]
        body = DUE_NEVER + body_of(load.body_bytes)[len(DUE_NEVER) :]
        # Of each line and topic what stands before and behind the instant.
        self._commands = [
            [line.command(topic, body, 1).split(DUE_NEVER) for topic in load.topics]
            for line in lines
        ]
        self._links = [line.link for line in lines]
        self._lines = {line.link.fileno(): line for line in lines}
        self._due: dict[int, deque[int]] = {fileno: deque() for fileno in self._lines}
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
                self._due[links[place].fileno()].append(due_at_ns)
                commands = self._commands[place]
                head, rest = commands[number % len(commands)]
                batches.setdefault(place, []).extend((head, DUE_AT % due_at_ns, rest))
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
            count = self._lines[fileno].feed(receive(link, ANSWER_BYTES_MAX))
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
