"""The wire of one client: bytes in through the layers, answers out in order, and how both wait.

``owed`` is the queue of answers: each is ready, or tied to a commit turn. They go out in the order
of the commands, whatever waits on the disk. Reading pauses while the connection is parked, the peer
does not read, or too much waits to be committed. What a command means is ``Connection``'s business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from penstock.broker.lanes import Turn
from penstock.doors.nsq.layers import Layer, LayerError, TlsLayer
from penstock.errors import PeerError, PenstockError
from penstock.protocol.nsq import error_frame, failed
from penstock.runtime.listening import peer_of

if TYPE_CHECKING:
    from penstock.doors.nsq.door import NsqDoor

log = logging.getLogger("penstock.nsq")

WRITE_HIGH_WATER = 512 * 1024


class Wire(asyncio.Protocol):
    """Bytes and answers of one connection."""

    def __init__(self, door: NsqDoor) -> None:
        self.door = door
        self.host = door.host
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.layers: list[Layer] = []
        self.tls: TlsLayer | None = None
        self.secured = False
        self.parked = False
        self.over = False  # no further command is carried out
        self.input_ended = False
        self.reading = True
        self.owed: deque[tuple[Turn | None, bytes, str, int]] = deque()
        self.owed_bytes = 0
        self.blocked_at_ns = 0

    # -- what the protocol above does

    def take(self, data: bytes) -> None:
        """Bytes of the protocol itself."""
        raise AssertionError("the protocol above takes them")

    def on_secured(self) -> None:
        """The TLS handshake is through."""

    def on_input_end(self) -> None:
        """The peer sends no more, and all it sent was taken."""

    def on_blocked(self) -> None:
        """The peer does not read."""

    def on_answered(self) -> None:
        """Answers went out."""

    # -- in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by class
        self.transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.peer = peer_of(transport)

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        if self.layers:
            self.feed(data, 0)
        else:
            self.take(data)

    def feed(self, data: bytes, depth: int) -> None:
        """Bytes as they are below layer ``depth``."""
        try:
            self._through(data, depth)
        except (LayerError, PeerError) as error:
            self._broken_layer(error)
        if self.tls is not None and self.transport is not None:
            outgoing = self.tls.take_outgoing()
            if outgoing:
                self.transport.write(outgoing)
        if not self.over and any(layer.ended for layer in self.layers):
            self.eof_received()

    def _through(self, data: bytes, depth: int) -> None:
        layers = self.layers
        if depth == len(layers):
            self.take(data)
            return
        for piece in layers[depth].feed(data):
            self._through(piece, depth + 1)
            if self.over or self.parked or not self.reading:
                return  # the layer keeps the rest: a bomb must not go off in our memory
        if self.tls is not None and self.tls.secure and not self.secured:
            self.secured = True
            self.door.handshakes.pop(self, None)
            self.on_secured()

    def _broken_layer(self, error: PenstockError) -> None:
        log.info("%s: %s", self.peer, error)
        if self.tls is not None and not self.secured:
            self.layers, self.tls = [], None
            self.fail(PeerError("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}"))
        else:
            self.close_now()

    def eof_received(self) -> bool:
        """The peer sends no more; it still gets what it is owed."""
        if not self.over and not self.input_ended:
            self.input_ended = True
            if not self.parked:
                self.on_input_end()
        return True

    # -- out

    def owe(self, turn: Turn, answer: bytes, verb: str, size: int) -> None:
        """An answer that waits for a commit turn; back-pressure when too much waits."""
        waiters = turn.waiters
        if not waiters or waiters[-1] is not self:
            waiters.append(self)
        self.owed.append((turn, answer, verb, size))
        self.owed_bytes += size
        if self.owed_bytes > self.door.connection_bytes_max:
            self.pause_reading()
        elif self.host.crowded and self.reading:
            self.pause_reading()
            self.host.held_back.append(self.resume_reading)

    def turn_over(self) -> None:
        """A commit turn ended: send what may go now, in order."""
        owed = self.owed
        ready: list[bytes] = []
        while owed:
            turn, answer, verb, size = owed[0]
            if turn is not None and not turn.over:
                break
            owed.popleft()
            self.owed_bytes -= size
            if turn is not None and turn.error is not None:
                ready.append(error_frame(failed(verb, turn.error)))
                owed.clear()
                self.over = True
                break
            ready.append(answer)
        if self.transport is None:
            return
        if ready:
            self.write(b"".join(ready))
            self.on_answered()
        if self.over:
            if not owed:
                self._close()
        elif not self.reading and self.owed_bytes <= self.door.connection_bytes_max // 2:
            self.resume_reading()

    def answer(self, answer: bytes) -> None:
        """An answer in its place in the order."""
        if self.owed:
            self.owed.append((None, answer, "", 0))
        else:
            self.write(answer)

    def write(self, data: bytes) -> None:
        if self.transport is None or (self.tls is not None and not self.secured):
            return  # gone, or in the middle of a handshake: there is no way to say anything
        if self.layers:
            try:
                for layer in reversed(self.layers):
                    data = layer.wrap(data)
            except LayerError as error:
                # this connection's end, not that of the turn which had something for it
                self._broken_layer(error)
                return
        self.transport.write(data)

    def write_all(self, parts: list[bytes]) -> None:
        """Message frames."""
        if self.transport is None:
            return
        if self.layers or len(parts) == 1:
            self.write(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            self.transport.writelines(parts)

    # -- held back

    def pause_writing(self) -> None:
        """The peer does not read: it gets no messages, and its commands wait too."""
        self.blocked_at_ns = self.door.clock.monotonic_ns()
        self.on_blocked()
        self.pause_reading()

    def resume_writing(self) -> None:
        self.blocked_at_ns = 0
        self.on_answered()
        self.resume_reading()

    def pause_reading(self) -> None:
        if self.reading and self.transport is not None:
            self.reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        transport = self.transport
        if self.reading or transport is None or not self._may_read():
            return
        if self.host.crowded and self.owed_bytes:
            # who has been answered goes on, a read at a time: one log's disk must not stop others
            self.host.held_back.append(self.resume_reading)
            return
        self.reading = True
        # what the layers kept comes first, the innermost before those below it
        for depth in reversed(range(len(self.layers))):
            self.feed(b"", depth)
        if self._may_read():
            transport.resume_reading()

    def _may_read(self) -> bool:
        return not (
            self.over
            or self.parked
            or self.transport is None
            or self.blocked_at_ns
            or self.owed_bytes > self.door.connection_bytes_max
        )

    # -- ending

    def fail(self, error: PeerError) -> None:
        log.debug("%s: %s", self.peer, error)
        self.answer(error_frame(error))
        if error.fatal:
            self.close_in_order()

    def close_in_order(self) -> None:
        """After everything owed."""
        self.over = True
        if not self.owed:
            self._close()

    def _close(self) -> None:
        """What was written still goes out, and behind it each layer's end: a peer must be able to
        tell an end in order from a cut."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.layers and (self.tls is None or self.secured):
            try:
                self.transport.write(self._farewell())
            except LayerError as error:
                self._broken_layer(error)
        self.transport.close()

    def _farewell(self) -> bytes:
        farewell = b""
        for layer in reversed(self.layers):
            farewell = (layer.wrap(farewell) if farewell else b"") + layer.close()
        return farewell

    def close_now(self) -> None:
        self.over = True
        if self.transport is not None:
            self.transport.abort()
