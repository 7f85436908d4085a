"""One connection of a consumer: its credit, what is in flight on it, and what goes out.

Between ``Connection``, which knows bytes, and ``Consumer``, which knows all connections. Settling a
message goes out through the link that brought it, all of a turn in one write.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.limits import MSG_TIMEOUT_DEFAULT_MS, RDY_COUNT_MAX
from penstock.protocol import nsq_client as wire
from penstock.sdk.connection import Connection
from penstock.sdk.message import Message
from penstock.sdk.options import Address


class LinkOwner(Protocol):
    """What a link tells its consumer."""

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """Messages have come."""

    def on_settled(self, count: int, requeued: int) -> None:
        """A turn's FIN and REQ have been written."""

    def on_touched(self) -> None:
        """A TOUCH is on its way."""

    def on_stale(self) -> None:
        """A message could not be settled."""

    def on_refused(self, code: str, explanation: str) -> None:
        """The broker refused a FIN, REQ or TOUCH, or is about to close."""

    def on_lost(self, link: Link, reason: str) -> None:
        """The connection has ended."""

    def on_replaced(self, messages: list[Message]) -> None:
        """Timed out before anybody asked for them, and delivered anew."""

    def retry_delay_ms(self, attempts: int) -> int:
        """How long a message waits when it is requeued without a delay of its own."""


class Link:
    """One connection of a consumer: its credit, what is in flight on it, what goes out."""

    __slots__ = (
        "address", "in_flight", "rdy", "rdy_max", "msg_timeout_ms", "closing",
        "lost", "_empty", "_consumer", "_connection", "_loop", "_commands", "_requeued", "_settled",
        "_close_wait",
    )  # fmt: skip

    def __init__(self, consumer: LinkOwner, address: Address) -> None:
        self.address = address
        self.in_flight: dict[bytes, Message] = {}
        self.rdy = 0
        self.rdy_max = RDY_COUNT_MAX
        self.msg_timeout_ms = MSG_TIMEOUT_DEFAULT_MS
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._empty: asyncio.Future[None] | None = None
        self._close_wait: asyncio.Future[None] = self._loop.create_future()
        self._consumer = consumer
        self._connection: Connection[Message] | None = None
        self._commands: list[bytes] = []
        self._settled = 0
        self._requeued = 0

    def attach(self, connection: Connection[Message]) -> None:
        """The connection is open and subscribed."""
        self._connection = connection
        rdy_max = connection.facts.get("max_rdy_count")
        if isinstance(rdy_max, int) and rdy_max > 0:
            self.rdy_max = rdy_max
        msg_timeout_ms = connection.facts.get("msg_timeout")
        if isinstance(msg_timeout_ms, int) and msg_timeout_ms > 0:
            self.msg_timeout_ms = msg_timeout_ms

    # --- for the consumer ------------------------------------------------------------------------

    def set_rdy(self, rdy: int) -> None:
        """Tell the broker, if it is another number than before."""
        if rdy != self.rdy and self._connection is not None:
            self.rdy = rdy
            self._send(wire.encode_rdy(rdy))

    def begin_close(self) -> None:
        """Ask the broker to send nothing more; what is in flight can still be settled."""
        if not self.closing:
            self.closing = True
            self.rdy = 0
            self._send(wire.CLS)

    async def wait_until_empty(self) -> None:
        """Until all that is in flight was settled, or the connection is gone."""
        if self.in_flight:
            if self._empty is None or self._empty.done():
                self._empty = self._loop.create_future()
            await asyncio.shield(self._empty)

    def _check_empty(self) -> None:
        if self._empty is not None and not self._empty.done() and not self.in_flight:
            self._empty.set_result(None)

    def abort(self) -> None:
        """Disconnect, whatever is still to be said."""
        if self._connection is not None:
            self._connection.abort("closed")

    async def close(self) -> None:
        """Disconnect, once the broker has said that it sends nothing more."""
        connection = self._connection
        if connection is None:
            return
        self._flush()
        await asyncio.wait(
            (self._close_wait, self.lost), timeout=1, return_when=asyncio.FIRST_COMPLETED
        )
        self._flush()
        await connection.close()

    # --- for messages ----------------------------------------------------------------------------

    def holds(self, message: Message) -> bool:
        return self.in_flight.get(message.raw_id) is message

    def settle(self, message: Message, command: bytes) -> bool:
        if self.in_flight.get(message.raw_id) is not message:
            self._consumer.on_stale()
            return False
        del self.in_flight[message.raw_id]
        commands = self._commands
        if not commands:
            self._loop.call_soon(self._flush)
        commands.append(command)
        self._settled += 1
        if command[0] == 82:  # R of REQ
            self._requeued += 1
        return True

    def extend(self, message: Message) -> bool:
        if not self.holds(message):
            return False
        self._send(wire.encode_touch(message.raw_id))
        self._consumer.on_touched()
        return True

    def retry_delay_ms(self, attempts: int) -> int:
        return self._consumer.retry_delay_ms(attempts)

    def _send(self, command: bytes) -> None:
        if not self._commands:
            self._loop.call_soon(self._flush)
        self._commands.append(command)

    def _flush(self) -> None:
        """All commands of this turn in one write."""
        if self._commands:
            assert self._connection is not None
            self._connection.write(b"".join(self._commands))
            self._commands.clear()
        if self._settled:
            settled, requeued = self._settled, self._requeued
            self._settled = self._requeued = 0
            self._consumer.on_settled(settled, requeued)
            self._check_empty()

    # --- for the connection ----------------------------------------------------------------------

    def on_messages(self, messages: list[Message]) -> None:
        in_flight = self.in_flight
        fresh = {message.raw_id: message for message in messages}
        if not in_flight.keys().isdisjoint(fresh):
            self._consumer.on_replaced([in_flight[i] for i in fresh.keys() & in_flight.keys()])
        in_flight.update(fresh)
        self._consumer.on_messages(self, messages)

    def on_answer(self, data: bytes) -> None:
        if data == wire.CLOSE_WAIT and not self._close_wait.done():
            self._close_wait.set_result(None)

    def on_error(self, code: str, explanation: str) -> None:
        self._consumer.on_refused(code, explanation)

    def on_writable(self, writable: bool) -> None:
        """Settles are small and belong to messages that credit has bounded."""

    def on_lost(self, reason: str) -> None:
        self._commands.clear()
        if not self.lost.done():
            self.lost.set_result(None)
        self._consumer.on_lost(self, reason)
        self.in_flight.clear()
        self._check_empty()
