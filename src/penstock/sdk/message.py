"""A message in a consumer's hands, and what can be done with it.

Made by the frame scan, one per delivery, so it has four slots of data and a link to the connection
it came over. ``finish`` and ``requeue`` settle it, once; the commands of one turn of the loop leave
in one write. A message whose connection is gone cannot be settled any more: the broker delivers it
again, to whoever is there.
"""

from __future__ import annotations

from typing import Protocol

from penstock.protocol import nsq_client as wire
from penstock.sdk.delays import Delay, delay_ms
from penstock.sdk.errors import AlreadySettled


class Link(Protocol):
    """The connection that a message came over, as the message sees it."""

    def holds(self, message: Message) -> bool:
        """Whether the message is still ours to settle."""
        ...

    def settle(self, message: Message, command: bytes) -> bool:
        """Send FIN or REQ; False if the message is no longer ours."""
        ...

    def extend(self, message: Message) -> bool:
        """Send TOUCH; False if the message is no longer ours."""
        ...

    def retry_delay_ms(self, attempts: int) -> int:
        """How long a message waits after so many deliveries if nobody says."""
        ...


class Message:
    """One delivery. ``timestamp_ns`` is when it was published, ``attempts`` counts from 1."""

    __slots__ = ("_link", "timestamp_ns", "attempts", "raw_id", "body")

    def __init__(
        self, link: Link, timestamp_ns: int, attempts: int, raw_id: bytes, body: bytes
    ) -> None:
        self._link: Link | None = link
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.raw_id = raw_id
        self.body = body

    @property
    def id(self) -> str:
        """16 characters, given at publish, the same at every delivery and in every channel."""
        return self.raw_id.decode("ascii", "replace")

    @property
    def settled(self) -> bool:
        """Whether it was finished or requeued."""
        return self._link is None

    @property
    def stale(self) -> bool:
        """Whether it is too late to settle it: it was settled, or comes again by itself."""
        return self._link is None or not self._link.holds(self)

    def finish(self) -> bool:
        """It is done with. False if it was too late: its connection is gone, it comes again."""
        link = self._unsettled("finish")
        self._link = None
        return link.settle(self, wire.encode_fin(self.raw_id))

    def requeue(self, delay: Delay | None = None) -> bool:
        """Deliver it again after ``delay`` seconds (None: longer with each attempt, 0: at once).

        False if it was too late, as with ``finish``.
        """
        link = self._unsettled("requeue")
        wait_ms = link.retry_delay_ms(self.attempts) if delay is None else delay_ms(delay)
        self._link = None
        return link.settle(self, wire.encode_req(self.raw_id, wait_ms))

    def touch(self) -> bool:
        """It is still being worked on: its timeout begins anew. False if it was too late."""
        return self._unsettled("touch").extend(self)

    def _unsettled(self, verb: str) -> Link:
        link = self._link
        if link is None:
            raise AlreadySettled(
                f"cannot {verb} message {self.id}: it was finished or requeued before; nothing was "
                "sent. Settle a message once, or turn auto_finish off where the program does it"
            )
        return link

    def __repr__(self) -> str:
        shown = self.body if len(self.body) <= 40 else self.body[:37] + b"..."
        return f"<Message {self.id} attempts={self.attempts} body={shown!r}>"
