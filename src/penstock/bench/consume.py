"""Loads that consume: at full speed, with slow handlers, and with a clock at the handler.

At full speed a read's frames are one table (see ``penstock.bench.wire``): checked, counted and
answered with one run of FINs, no object per message. What was delivered more than once is counted
and reported, and a run ends when all that was asked for has come and the broker has read every FIN.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.bench.fleet import Outcome
from penstock.bench.histogram import Histogram
from penstock.bench.link import (
    SILENCE_S,
    Address,
    close_subscription,
    grant,
    open_subscription,
)
from penstock.bench.schedule import DUE_AT_BYTES
from penstock.bench.wire import (
    BenchError,
    count_redelivered,
    cut_whole_frames,
    fins_of,
    fins_of_ids,
    frame_bytes,
    is_uniform,
)
from penstock.protocol.nsq_client import HEARTBEAT, MESSAGE_HEAD, NOP, TYPE_MESSAGE

READ_BYTES_MAX = 256 * 1024
_ID = slice(MESSAGE_HEAD.size - 8 - 16, MESSAGE_HEAD.size - 8)  # in a frame's data, behind its head


@dataclass(frozen=True)
class ConsumeLoad:
    """SUB and FIN of ``messages`` from each channel, over ``connections`` per channel."""

    address: Address
    topic: str
    channels: Sequence[str]
    connections: int
    credit: int
    body_bytes: int
    messages: int
    timed: bool = False  # bodies begin with the instant they were due; measure to the handler

    def open(self) -> Consuming:
        """Connect and subscribe; nothing flows yet."""
        return Consuming(self)


class Consuming:
    """Every channel's connections in one loop."""

    def __init__(self, load: ConsumeLoad) -> None:
        self._load = load
        self._latency = Histogram()
        self._left = dict.fromkeys(load.channels, load.messages)
        self._subscribers = []
        for channel in load.channels:
            for _ in range(load.connections):
                link = open_subscription(load.address, load.topic, channel)
                latency = self._latency if load.timed else None
                self._subscribers.append(_Subscriber(link, channel, load.body_bytes, latency))

    def run(self) -> Outcome:
        """Consume until every channel has delivered its messages."""
        started_at_ns = time.monotonic_ns()
        poll = select.epoll()
        at_work = {subscriber.link.fileno(): subscriber for subscriber in self._subscribers}
        for fileno, subscriber in at_work.items():
            poll.register(fileno, select.EPOLLIN)
            grant(subscriber.link, self._load.credit)
        left = self._left
        while any(count > 0 for count in left.values()):
            ready = poll.poll(SILENCE_S)
            if not ready:
                raise BenchError(
                    f"nothing came for {SILENCE_S:.0f} s and {left} messages a channel are missing"
                )
            for fileno, _ in ready:
                subscriber = at_work[fileno]
                left[subscriber.channel] -= subscriber.on_frames()
        surplus = sum(subscriber.close() for subscriber in self._subscribers)
        ended_at_ns = time.monotonic_ns()
        poll.close()
        received = sum(subscriber.received for subscriber in self._subscribers)
        redelivered = sum(subscriber.redelivered for subscriber in self._subscribers)
        return Outcome(
            received,
            started_at_ns,
            ended_at_ns,
            self._latency,
            {"redelivered": redelivered, "surplus": surplus},
        )


class _Subscriber:
    """One connection's side: a buffer, a stride, and FINs by the read."""

    __slots__ = (
        "link", "channel", "received", "redelivered",
        "_stride", "_body_bytes", "_buffer", "_view", "_have", "_latency",
    )  # fmt: skip

    def __init__(
        self, link: socket.socket, channel: str, body_bytes: int, latency: Histogram | None
    ) -> None:
        self.link = link
        self.channel = channel
        self.received = 0
        self.redelivered = 0
        self._stride = frame_bytes(body_bytes)
        self._body_bytes = body_bytes
        self._buffer = bytearray(READ_BYTES_MAX + self._stride)
        self._view = memoryview(self._buffer)
        self._have = 0
        self._latency = latency

    def on_frames(self) -> int:
        """Take in one read and answer it; how many messages it completed."""
        self._have += self._receive()
        count = self._have // self._stride
        taken = count * self._stride
        frames = bytes(self._view[:taken])
        if is_uniform(frames, count, self._stride):
            if count:
                self.redelivered += count_redelivered(frames, count, self._stride)
                self._time(frames, count)
                self.link.sendall(fins_of(frames, count, self._stride))
        else:
            count, taken = self._take_one_by_one()
        self._keep_from(taken)
        self.received += count
        return count

    def close(self) -> int:
        """Leave; how many messages came that nobody waited for."""
        return close_subscription(self.link, bytes(self._view[: self._have]))

    def _receive(self) -> int:
        try:
            size = self.link.recv_into(self._view[self._have :])
        except OSError as error:
            raise BenchError(f"the connection broke: {error}") from error
        if not size:
            raise BenchError("the broker closed the connection in the middle of the run")
        return size

    def _keep_from(self, taken: int) -> None:
        left = self._have - taken
        if left and taken:
            self._view[:left] = bytes(self._view[taken : self._have])
        self._have = left

    def _time(self, frames: bytes, count: int) -> None:
        if self._latency is None:
            return
        now_ns = time.monotonic_ns()
        for number in range(count):
            at = number * self._stride + MESSAGE_HEAD.size
            self._latency.record(now_ns - int(frames[at : at + DUE_AT_BYTES], 16))

    def _take_one_by_one(self) -> tuple[int, int]:
        frames, taken = cut_whole_frames(bytes(self._view[: self._have]))
        ids = []
        for kind, data in frames:
            if kind == TYPE_MESSAGE:
                if len(data) != self._stride - 8:
                    raise BenchError(
                        f"a message of {len(data) - _ID.stop} bytes came; the bench published "
                        f"{self._body_bytes}: the topic is not the bench's own"
                    )
                ids.append(data[_ID])
            elif data == HEARTBEAT:
                self.link.sendall(NOP)
            else:
                raise BenchError(f"the broker answered {data[:200]!r} to a subscriber")
        if self._latency is not None and ids:
            raise BenchError("messages and answers came mixed; this latency run is void")
        self.link.sendall(fins_of_ids(ids))
        return len(ids), taken


@dataclass(frozen=True)
class SlowConsumeLoad:
    """``connections`` equal consumers of one channel, each handling a message at a time.

    A handler takes ``handler_us``; all credit is granted at once. What is measured is who got how
    many of ``messages``.
    """

    address: Address
    topic: str
    channel: str
    connections: int
    credit: int
    handler_us: int
    messages: int

    def open(self) -> SlowConsuming:
        """Connect and subscribe; nothing flows yet."""
        return SlowConsuming(self)


class SlowConsuming:
    """Handlers as instants on a heap: a consumer is busy until its handler's end has come."""

    def __init__(self, load: SlowConsumeLoad) -> None:
        self._load = load
        self._consumers = []
        for _ in range(load.connections):
            link = open_subscription(load.address, load.topic, load.channel)
            self._consumers.append(_SlowConsumer(link))

    def run(self) -> Outcome:
        """Until all messages are finished; the shares are in the counts, in percent."""
        started_at_ns = time.monotonic_ns()
        handler_ns = self._load.handler_us * 1000
        by_fileno = {
            consumer.link.fileno(): place for place, consumer in enumerate(self._consumers)
        }
        for consumer in self._consumers:
            grant(consumer.link, self._load.credit)
        handling: list[tuple[int, int]] = []  # (ends at, place)
        left = self._load.messages
        while left > 0:
            wait_s = SILENCE_S
            if handling:
                wait_s = max(0.0, (handling[0][0] - time.monotonic_ns()) / 1e9)
            ready, _, _ = select.select(list(by_fileno), (), (), wait_s)
            if not ready and not handling:
                raise BenchError(f"nothing came for {SILENCE_S:.0f} s and {left} are missing")
            now_ns = time.monotonic_ns()
            for fileno in ready:
                place = by_fileno[fileno]
                if self._consumers[place].on_frames():
                    heapq.heappush(handling, (now_ns + handler_ns, place))
            while handling and handling[0][0] <= now_ns:
                ended_at_ns, place = heapq.heappop(handling)
                left -= 1
                if self._consumers[place].finish_one():
                    heapq.heappush(handling, (ended_at_ns + handler_ns, place))
        for consumer in self._consumers:
            consumer.close()
        shares = [consumer.finished * 100 / self._load.messages for consumer in self._consumers]
        return Outcome(
            self._load.messages,
            started_at_ns,
            time.monotonic_ns(),
            counts={"share_min_percent": min(shares), "share_max_percent": max(shares)},
        )


class _SlowConsumer:
    """What was delivered and waits for the handler."""

    __slots__ = ("link", "finished", "_stream", "_waiting")

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.finished = 0
        self._stream = b""
        self._waiting: deque[bytes] = deque()

    def on_frames(self) -> bool:
        """Take in a read; whether the handler was idle and has work now."""
        was_idle = not self._waiting
        data = self.link.recv(READ_BYTES_MAX)
        if not data:
            raise BenchError("the broker closed the connection in the middle of the run")
        self._stream += data
        frames, taken = cut_whole_frames(self._stream)
        self._stream = self._stream[taken:]
        self._waiting.extend(data[_ID] for kind, data in frames if kind == TYPE_MESSAGE)
        return was_idle and bool(self._waiting)

    def close(self) -> None:
        """Leave."""
        close_subscription(self.link, self._stream)

    def finish_one(self) -> bool:
        """The handler's end; whether it goes on with another message."""
        self.link.sendall(fins_of_ids([self._waiting.popleft()]))
        self.finished += 1
        return bool(self._waiting)
