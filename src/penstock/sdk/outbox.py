"""Messages on their way out: gathered into batches, queued, sent, answered; or sent again.

The pure half of a producer: it knows no socket, no loop and no clock but the times it is told.
A batch is what one command carries (PUB, MPUB or DPUB) and gets one answer. Batches of one topic
are sent in the order in which their messages were added, and answers come in the order of sending.

Invariants: a batch is in exactly one of *open* (gathering), *ready* (full, or its linger is over)
and *sent* (on the wire, unanswered). ``pending_…`` counts all three, ``sent_…`` the last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from penstock.protocol import nsq_client as wire

# What a message takes in an MPUB beside its body; counted, or empty-ish bodies would weigh nothing.
MESSAGE_OVERHEAD_BYTES = 4


class Receipt(Protocol):
    """What a publisher waits on (an asyncio future)."""

    def done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def set_result(self, result: None, /) -> None:
        """The broker has kept the messages."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """It has not, or nobody knows."""
        ...


class Batch:
    """The messages of one command, and who waits for its answer."""

    __slots__ = (
        "topic", "bodies", "size_bytes", "delay_ms", "deadline", "receipts", "attempts", "given_up"
    )  # fmt: skip

    def __init__(self, topic: str, deadline: float, delay_ms: int = 0) -> None:
        self.topic = topic
        self.bodies: list[bytes] = []
        self.size_bytes = 0
        self.delay_ms = delay_ms
        self.deadline = deadline
        self.receipts: list[Receipt] = []
        self.attempts = 0  # how often it was written to a connection
        self.given_up = False  # its publishers were told; only its answer's place is still kept

    def encode(self) -> bytes:
        """The command."""
        if self.delay_ms:
            return wire.encode_dpub(self.topic, self.delay_ms, self.bodies[0])
        if len(self.bodies) == 1:
            return wire.encode_pub(self.topic, self.bodies[0])
        return wire.encode_mpub(self.topic, self.bodies)


class Outbox:
    """See the module. A ``deadline`` is when the batch that a message opens must be done."""

    def __init__(self, batch_messages: int, batch_bytes: int) -> None:
        self.pending_bytes = 0
        self.pending_messages = 0
        self.sent_bytes = 0
        self.sent_messages = 0
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._open: dict[str, Batch] = {}
        self._ready: deque[Batch] = deque()
        self._sent: deque[Batch] = deque()

    # --- in --------------------------------------------------------------------------------------

    def add(self, topic: str, body: bytes, deadline: float) -> Batch:
        """Into the topic's open batch; returns it, for a receipt."""
        size = len(body) + MESSAGE_OVERHEAD_BYTES
        batch = self._open.get(topic)
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            self._seal(batch)
            batch = None
        if batch is None:
            batch = self._open[topic] = Batch(topic, deadline)
        batch.bodies.append(body)
        batch.size_bytes += size
        self.pending_bytes += size
        self.pending_messages += 1
        if len(batch.bodies) >= self._batch_messages or batch.size_bytes >= self._batch_bytes:
            self._seal(batch)
        return batch

    def add_many(
        self, topic: str, bodies: list[bytes], body_bytes: int, deadline: float
    ) -> list[tuple[Batch, int]]:
        """The batches that took the messages, with how many each; ``body_bytes`` is their sum."""
        size = body_bytes + MESSAGE_OVERHEAD_BYTES * len(bodies)
        batch = self._open.get(topic)
        used_messages, used_bytes = (len(batch.bodies), batch.size_bytes) if batch else (0, 0)
        if (
            used_messages + len(bodies) > self._batch_messages
            or used_bytes + size > self._batch_bytes
        ):
            return self._add_each(topic, bodies, deadline)
        if batch is None:
            batch = self._open[topic] = Batch(topic, deadline)
        batch.bodies.extend(bodies)
        batch.size_bytes += size
        self.pending_bytes += size
        self.pending_messages += len(bodies)
        if len(batch.bodies) >= self._batch_messages or batch.size_bytes >= self._batch_bytes:
            self._seal(batch)
        return [(batch, len(bodies))]

    def _add_each(
        self, topic: str, bodies: list[bytes], deadline: float
    ) -> list[tuple[Batch, int]]:
        taken: list[tuple[Batch, int]] = []
        last: Batch | None = None
        count = 0
        for body in bodies:
            batch = self.add(topic, body, deadline)
            if batch is not last:
                if last is not None:
                    taken.append((last, count))
                last, count = batch, 0
            count += 1
        if last is not None:
            taken.append((last, count))
        return taken

    def add_delayed(self, topic: str, body: bytes, delay_ms: int, deadline: float) -> Batch:
        """A command of its own (NSQ has no batch of delayed messages), ready at once."""
        batch = Batch(topic, deadline, delay_ms)
        batch.bodies.append(body)
        batch.size_bytes = len(body) + MESSAGE_OVERHEAD_BYTES
        self.pending_bytes += batch.size_bytes
        self.pending_messages += 1
        self._ready.append(batch)
        return batch

    def seal(self) -> None:
        """Nothing gathers any longer: all open batches are ready."""
        self._ready.extend(self._open.values())
        self._open.clear()

    def _seal(self, batch: Batch) -> None:
        del self._open[batch.topic]
        self._ready.append(batch)

    # --- out -------------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The next batch to write; from now on it waits for its answer."""
        if not self._ready:
            return None
        batch = self._ready.popleft()
        batch.attempts += 1
        self._sent.append(batch)
        self.sent_bytes += batch.size_bytes
        self.sent_messages += len(batch.bodies)
        return batch

    def answered(self) -> Batch | None:
        """The batch that the next answer belongs to; it is done with."""
        if not self._sent:
            return None
        batch = self._sent.popleft()
        self.sent_bytes -= batch.size_bytes
        self.sent_messages -= len(batch.bodies)
        self._release(batch)
        return batch

    def return_sent(self) -> int:
        """The connection ended: what was unanswered goes first on the next; how many messages."""
        again = [batch for batch in self._sent if not batch.given_up]
        for batch in self._sent:
            if batch.given_up:
                self._release(batch)
        self._clear_sent()
        self._ready.extendleft(reversed(again))
        return sum(len(batch.bodies) for batch in again)

    def drop_sent(self) -> list[Batch]:
        """The connection ended: what was unanswered is given to the caller to fail."""
        dropped = list(self._sent)
        self._clear_sent()
        for batch in dropped:
            self._release(batch)
        return [batch for batch in dropped if not batch.given_up]

    def drop_all(self) -> list[Batch]:
        """Nothing more will be sent: all is given to the caller to fail."""
        self.seal()
        unsent = list(self._ready)
        self._ready.clear()
        for batch in unsent:
            self._release(batch)
        return self.drop_sent() + unsent

    def expire(self, now: float) -> list[Batch]:
        """Batches whose deadline has passed, for the caller to fail.

        One that is on the wire keeps its place, since its answer may still come.
        """
        late = [batch for batch in self._ready if batch.deadline <= now]
        if late:
            self._ready = deque(batch for batch in self._ready if batch.deadline > now)
            for batch in late:
                self._release(batch)
        for batch in self._sent:
            if batch.deadline <= now and not batch.given_up:
                batch.given_up = True
                late.append(batch)
        return late

    # --- looking ---------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing ahead of what is gathering."""
        return not self._sent and not self._ready

    @property
    def gathering(self) -> bool:
        """Whether some batch waits for company."""
        return bool(self._open)

    def batches(self) -> Iterator[Batch]:
        """All that are pending and whose publishers still wait."""
        for batches in (self._sent, self._ready, self._open.values()):
            for batch in batches:
                if not batch.given_up:
                    yield batch

    def verify(self) -> None:
        """The invariants of the module."""
        everything = [*self._sent, *self._ready, *self._open.values()]
        assert len(set(map(id, everything))) == len(everything)
        assert self.pending_messages == sum(len(batch.bodies) for batch in everything)
        assert self.pending_bytes == sum(batch.size_bytes for batch in everything)
        assert self.sent_messages == sum(len(batch.bodies) for batch in self._sent)
        assert self.sent_bytes == sum(batch.size_bytes for batch in self._sent)
        assert all(topic == batch.topic for topic, batch in self._open.items())

    def _clear_sent(self) -> None:
        self._sent.clear()
        self.sent_bytes = self.sent_messages = 0

    def _release(self, batch: Batch) -> None:
        self.pending_bytes -= batch.size_bytes
        self.pending_messages -= len(batch.bodies)
