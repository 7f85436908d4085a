"""A simulated connection between one client and one real connection of a door.

`Link` is the transport that the door's connection writes to, and the client's socket at once. Bytes
take a seeded while, arrive in seeded pieces and in order, wait while the broker does not read, and
press back when the client does not. A client learns things twice: ``said`` at the very moment when
the broker hands a frame to its socket (that is what a history is judged by), ``heard`` when it
arrives. Nothing here knows what frames mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Protocol

from tests.sim.world import US, World

FRAME = Struct(">II")
SOCKET_BYTES = 64 * 1024  # what the system takes before a transport's own buffer grows

Frame = tuple[int, bytes]


class End(Protocol):
    """The client's side."""

    def said(self, kind: int, data: bytes) -> None:
        """The broker has written this frame."""

    def missed(self, kind: int, data: bytes) -> None:
        """The broker has written this frame, but too late: the connection is closing."""

    def heard(self, kind: int, data: bytes) -> None:
        """The frame has arrived."""

    def gone(self) -> None:
        """For the broker the connection is over."""

    def ended(self) -> None:
        """The client sees that it is over."""


class Link(asyncio.Transport):
    """One connection."""

    def __init__(
        self, world: World, rng: Random, connection: asyncio.Protocol, end: End, number: int
    ) -> None:
        super().__init__({"peername": ("10.0.0.1", 1000 + number)})
        self.number = number
        self.world = world
        self.rng = rng
        self.connection = connection
        self.end = end
        self.high_water = 64 * 1024
        self.lost = False
        self.closing = False
        self.hung_up = False  # the client takes no notice any more
        self.paused = False
        self.pressed = False
        self.reading = True  # the client's side
        self.up = bytearray()
        self.up_sent = self.up_taken = 0
        self.up_scheduled = False
        self.half_closed = False
        self.marks: deque[tuple[int, bytes, Callable[[], None]]] = deque()
        self.partial = b""
        self.down: deque[tuple[int, list[Frame]]] = deque()
        self.down_bytes = 0
        self.down_at = 0
        self.arrived = 0  # writes that came while the client did not read

    def open(self) -> None:
        self.connection.connection_made(self)

    # --- the client's side

    def send(self, data: bytes, done: Callable[[], None] | None = None, about: bytes = b"") -> None:
        """``done`` is called when the broker has been given the last byte of it. Of all that is
        ``about`` one thing the broker is only given one at a time, so that an error tells which."""
        if self.hung_up or self.lost:
            return
        self.up += data
        self.up_sent += len(data)
        if done is not None:
            self.marks.append((self.up_sent, about, done))
        self._schedule_up()

    def close_gently(self) -> None:
        """All that was sent still arrives; then the end of the stream."""
        self.half_closed = True
        self.hung_up = True
        self._schedule_up()

    def vanish(self) -> None:
        """As a process that is killed, or a cable that is cut."""
        self.hung_up = True
        self.up.clear()
        self.world.after(self.latency(), self._lost, ConnectionResetError("simulated reset"))

    def stop_reading(self) -> None:
        self.reading = False

    def start_reading(self) -> None:
        self.reading = True
        held, self.arrived = self.arrived, 0
        for _ in range(held):
            self._arrive()

    @property
    def unread(self) -> bool:
        """Whether the broker has not been given all that was sent."""
        return bool(self.up) and not self.lost

    def latency(self) -> int:
        return self.rng.randrange(20, 500) * US

    def _schedule_up(self) -> None:
        if not self.up_scheduled and not self.paused:
            self.up_scheduled = True
            self.world.after(self.latency(), self._carry_up)

    def _carry_up(self) -> None:
        self.up_scheduled = False
        if self.lost or self.closing or self.paused:
            return
        if self.up:
            size = len(self.up)
            if size > 1 and self.rng.random() < 0.3:
                size = self.rng.randrange(1, size)
            size = self._before_same(size)
            chunk = bytes(self.up[:size])
            del self.up[:size]
            self.up_taken += size
            self.connection.data_received(chunk)
            while self.marks and self.marks[0][0] <= self.up_taken:
                self.marks.popleft()[2]()
        if self.up:
            self._schedule_up()
        elif self.half_closed and not self.connection.eof_received():
            self.close()

    def _before_same(self, size: int) -> int:
        seen: set[bytes] = set()
        taken = 0
        for end, about, _ in self.marks:
            if end > self.up_taken + size:
                break
            if about and about in seen:
                return taken
            seen.add(about)
            taken = end - self.up_taken
        return size

    def process_died(self) -> None:
        """The broker is gone without a word."""
        if self.lost:
            return
        self.lost = True
        self.end.gone()
        self.world.after(self.latency(), self._see_the_end)

    def _see_the_end(self) -> None:
        if not self.hung_up:
            self.hung_up = True
            self.end.ended()

    # --- asyncio.Transport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high_water = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return max(self.down_bytes - SOCKET_BYTES, 0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.lost:
            return
        stored = self.partial + bytes(data)
        frames: list[Frame] = []
        at = 0
        while len(stored) - at >= FRAME.size:
            size, kind = FRAME.unpack_from(stored, at)
            if len(stored) - at < 4 + size:
                break
            frames.append((kind, stored[at + 8 : at + 4 + size]))
            at += 4 + size
        self.partial = stored[at:]
        if self.closing:
            for kind, frame in frames:
                self.end.missed(kind, frame)
            return
        self.down_bytes += len(data)
        self.down.append((len(data), frames))
        self.down_at = max(self.down_at, self.world.now + self.latency())
        self.world.at(self.down_at, self._arrive)
        for kind, frame in frames:
            self.end.said(kind, frame)
        if not self.pressed and self.get_write_buffer_size() > self.high_water:
            self.pressed = True
            self.connection.pause_writing()

    def _arrive(self) -> None:
        if not self.reading:
            self.arrived += 1
            return
        size, frames = self.down.popleft()
        self.down_bytes -= size
        if self.pressed and not self.lost and self.get_write_buffer_size() <= self.high_water // 4:
            self.pressed = False
            self.connection.resume_writing()
        for kind, data in frames:
            if not self.hung_up:
                self.end.heard(kind, data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        if self.up or self.half_closed:
            self._schedule_up()

    def is_reading(self) -> bool:
        return not self.paused

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.world.call_soon(self._lost, None)

    def abort(self) -> None:
        self.close()

    def _lost(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = self.closing = True
        self.connection.connection_lost(error)
        self.end.gone()
        self.world.at(max(self.down_at, self.world.now + self.latency()), self._see_the_end)
