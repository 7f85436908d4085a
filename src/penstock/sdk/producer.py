"""Publishing: what a program hands over in one turn of the loop leaves in few commands.

``publish`` puts a message into its topic's batch (``sdk.outbox``) and waits for the broker's OK,
which means the message is safe at the topic's durability. With nothing unanswered, a batch leaves
at the end of the loop's turn; else it gathers until it is full, the linger is over, or the answers
are in. So a lone publish pays no linger and a thousand concurrent ones share a command. Several
batches are on the wire at once. One connection is used at a time, so one topic's messages keep
their order; the other addresses are for when it is lost.

This module owns the waiting, the timers and the connection; the outbox decides what is in which
batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Self, cast

from penstock.backoff import Backoff
from penstock.names import NAME_RULE, is_valid_name
from penstock.protocol import nsq_client as wire
from penstock.sdk.connection import (
    PERMANENT_CODES,
    STABLE_AFTER,
    Connection,
    connect,
    no_message,
    report_bug,
)
from penstock.sdk.delays import Delay, delay_ms
from penstock.sdk.errors import (
    BrokerUnreachable,
    ClientClosed,
    MessageInvalid,
    PublishError,
    PublishLost,
    PublishRefused,
    PublishTimeout,
    Refused,
)
from penstock.sdk.options import Address, ClientOptions, ProducerOptions
from penstock.sdk.outbox import Batch, Outbox
from penstock.sdk.room import Room
from penstock.sdk.statistics import ProducerStatistics

log = logging.getLogger("penstock.sdk")

Body = bytes | bytearray | memoryview

# Deadlines are looked at so often in the life of a publish; a timeout is late by at most a tenth.
DEADLINE_CHECKS = 10


class Producer:
    """Made by ``Client.producer``; use it with ``async with``."""

    def __init__(
        self, addresses: Sequence[Address], client: ClientOptions, options: ProducerOptions
    ) -> None:
        self._addresses = tuple(addresses)
        self._client = client
        self._options = options
        self._outbox = Outbox(options.batch_messages, options.batch_bytes)
        self._known_topics: set[str] = set()
        self._room = Room(self._outbox, options.pending_bytes_max)
        self._connection: Connection[None] | None = None
        self._writable = True
        self._connected_at = 0.0
        self._at = 0  # the address in use, or to try first
        self._backoff = Backoff(client.reconnect_delay, client.reconnect_delay_max)
        self._reconnecting: asyncio.Task[None] | None = None
        self._turn_ends = False
        self._linger: asyncio.TimerHandle | None = None
        self._deadlines: asyncio.TimerHandle | None = None
        self._trouble = ""  # why there is no connection, for the errors of those who wait
        self._started = False
        self._closed = False
        self._published = 0
        self._failed = 0
        self._resent = 0
        self._connects = 0

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the first address that answers; if none does, say what each one said."""
        if not self.closed:
            if self._started:
                return
            self._loop = asyncio.get_running_loop()
            await self._connect_any()
        if self.closed:  # before, or in the meantime
            if self._connection is not None:
                self._connection.abort("closed")
            raise ClientClosed("this producer was closed; make a new one")
        self._started = True
        self._room.open()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def flush(self) -> None:
        """Send what is gathering and wait until all that was published before has its answer.

        Failures are raised where the messages were published, not here.
        """
        if not self._started:
            return
        self._outbox.seal()
        self._pump()
        receipts: list[asyncio.Future[None]] = []
        for batch in self._outbox.batches():
            receipt = self._loop.create_future()
            batch.receipts.append(receipt)
            receipts.append(receipt)
        if receipts:
            await asyncio.gather(*receipts, return_exceptions=True)

    async def close(self) -> None:
        """Take no more messages, wait for the answers to those taken, and disconnect."""
        if self._closed:
            return
        self._closed = True
        self._room.close(lambda: ClientClosed("this producer was closed; the message was not sent"))
        try:
            await self.flush()
            if self._connection is not None:
                await self._connection.close()
        finally:
            for timer in (self._linger, self._deadlines):
                if timer is not None:
                    timer.cancel()
            if self._reconnecting is not None:
                self._reconnecting.cancel()
            # What a close that was given up leaves behind, or its publishers would wait for ever.
            for batch in self._outbox.drop_all():
                self._give_up(batch, "the producer was closed", PublishLost)
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.abort("closed")

    @property
    def closed(self) -> bool:
        """Whether it takes no more messages."""
        return self._closed

    def statistics(self) -> ProducerStatistics:
        """Counts since the start, and what is pending now."""
        connection = self._connection
        return ProducerStatistics(
            published=self._published,
            failed=self._failed,
            resent=self._resent,
            pending_messages=self._outbox.pending_messages,
            pending_bytes=self._outbox.pending_bytes,
            connects=self._connects,
            address=None if connection is None else connection.address,
        )

    # --- publishing ------------------------------------------------------------------------------

    async def publish(self, topic: str, body: Body, *, delay: Delay = 0) -> None:
        """One message; returns when the broker has it safe, else raises a ``PublishError``.

        With a ``delay`` (seconds, or a timedelta) it is delivered that much later. Cancelling the
        wait does not take the message back.
        """
        if topic not in self._known_topics:
            self._learn(topic)
        if type(body) is not bytes:
            body = _as_bytes(body)
        if not 0 < len(body) <= self._options.message_bytes_max:
            raise MessageInvalid(self._size_complaint("the message", len(body)))
        wait_ms = delay_ms(delay) if delay else 0
        outbox = self._outbox
        if outbox.pending_bytes >= self._room.free_below:
            await self._wait_for_room(len(body))
        deadline = self._loop.time() + self._options.publish_timeout
        if wait_ms:
            batch = outbox.add_delayed(topic, body, wait_ms, deadline)
        else:
            batch = outbox.add(topic, body, deadline)
        receipt: asyncio.Future[None] = self._loop.create_future()
        batch.receipts.append(receipt)
        if not self._turn_ends:
            self._turn_ends = True
            self._loop.call_soon(self._end_turn)
        await receipt

    async def publish_many(self, topic: str, bodies: Iterable[Body], *, delay: Delay = 0) -> int:
        """Messages of one topic, in order, in as few commands as they fit; how many there were.

        Takes any iterable and reads on only while there is room, so it may be longer than memory.
        If some fail it goes no further, and the ``PublishError`` says how many were kept, were not
        kept, or may have been, counted from the front; those behind them were not sent.
        With a ``delay`` each message is a command of its own, since NSQ has none for several.
        """
        if topic not in self._known_topics:
            self._learn(topic)
        wait_ms = delay_ms(delay) if delay else 0
        source = iter(bodies)
        outcome = Outcome()
        while outcome.first is None:
            chunk = list(islice(source, self._options.batch_messages))
            if not chunk:
                break
            try:
                checked, body_bytes = self._check_bodies(chunk, outcome.total)
                if self._outbox.pending_bytes >= self._room.free_below:
                    await self._wait_for_room(body_bytes)
            except (MessageInvalid, PublishTimeout, ClientClosed) as error:
                outcome.stopped = error
                break
            deadline = self._loop.time() + self._options.publish_timeout
            if wait_ms:
                for body in checked:
                    batch = self._outbox.add_delayed(topic, body, wait_ms, deadline)
                    batch.receipts.append(outcome.expect(1))
            else:
                for batch, count in self._outbox.add_many(topic, checked, body_bytes, deadline):
                    batch.receipts.append(outcome.expect(count))
            if not self._turn_ends:
                self._turn_ends = True
                self._loop.call_soon(self._end_turn)
        else:
            outcome.cut_short = True
        await outcome.settled(self._loop)
        outcome.check()
        return outcome.total

    def _check_bodies(self, chunk: list[Body], before: int) -> tuple[list[bytes], int]:
        """The chunk as bytes with its size, or which message of the whole is wrong."""
        limit = self._options.message_bytes_max
        if set(map(type, chunk)) == {bytes}:
            checked = cast("list[bytes]", chunk)
        else:
            checked = [_as_bytes(body) for body in chunk]
        sizes = list(map(len, checked))
        if min(sizes) == 0 or max(sizes) > limit:
            wrong = next(i for i, size in enumerate(sizes) if not 0 < size <= limit)
            raise MessageInvalid(self._size_complaint(f"message {before + wrong}", sizes[wrong]))
        return checked, sum(sizes)

    def _learn(self, topic: str) -> None:
        if not is_valid_name(topic):
            raise MessageInvalid(f"topic {topic!r} is not a name; a name is {NAME_RULE}")
        self._known_topics.add(topic)

    def _size_complaint(self, which: str, size: int) -> str:
        if not size:
            return f"{which} is empty, and brokers take no empty messages; it was not sent"
        return (
            f"{which} has {size} bytes, over the limit of {self._options.message_bytes_max}; "
            "it was not sent: raise message_bytes_max and the broker's max-msg-size together"
        )

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Back-pressure: returns when so many bytes may be added, in the order of asking."""
        if self._closed:
            raise ClientClosed("this producer is closed; the message was not sent")
        if not self._started:
            raise ClientClosed("this producer was not started; use `async with` or call start()")
        await self._room.wait(size_bytes, self._loop.time() + self._options.publish_timeout)
        if self._closed:
            raise ClientClosed("this producer was closed; the message was not sent")

    def _no_room(self) -> PublishTimeout:
        return PublishTimeout(
            f"no room for the message within {self._options.publish_timeout:g} s: "
            f"{self._outbox.pending_bytes} bytes wait for the broker{self._because()}; "
            "it was not sent; publish it again",
            not_kept=1,
        )

    # --- sending ---------------------------------------------------------------------------------

    def _end_turn(self) -> None:
        """After all that ran in this turn of the loop has published what it had."""
        self._turn_ends = False
        outbox = self._outbox
        if self._options.linger == 0 or (self._connection and not outbox.sent_messages):
            outbox.seal()
        elif outbox.gathering and self._linger is None:
            self._linger = self._loop.call_later(self._options.linger, self._end_linger)
        self._pump()

    def _end_linger(self) -> None:
        self._linger = None
        self._outbox.seal()
        self._pump()

    def _pump(self) -> None:
        """What is ready goes out, as far as the window and the socket allow, in one write.

        The window is counted in full batches' worth of messages and bytes, since delayed messages
        travel one by one.
        """
        if self._deadlines is None and self._outbox.pending_messages:
            self._deadlines = self._loop.call_later(
                self._options.publish_timeout / DEADLINE_CHECKS, self._check_deadlines
            )
        connection = self._connection
        if connection is None or not self._writable:
            return
        outbox = self._outbox
        options = self._options
        window_messages = options.batches_in_flight * options.batch_messages
        window_bytes = options.batches_in_flight * options.batch_bytes
        commands: list[bytes] = []
        while outbox.sent_messages < window_messages and outbox.sent_bytes < window_bytes:
            batch = outbox.take()
            if batch is None:
                break
            commands.append(batch.encode())
        if commands:
            connection.write(b"".join(commands) if len(commands) > 1 else commands[0])

    def _check_deadlines(self) -> None:
        self._deadlines = None
        self._outbox.seal()
        waited = f"{self._options.publish_timeout:g} s have passed{self._because()}"
        for batch in self._outbox.expire(self._loop.time()):
            self._give_up(batch, waited, PublishTimeout)
        self._room.expire(self._loop.time(), self._no_room)
        self._room.give()
        self._pump()

    def _because(self) -> str:
        return f" ({self._trouble})" if self._trouble else ""

    def _fail(self, batch: Batch, new_error: Callable[[], PublishError]) -> None:
        self._failed += len(batch.bodies)
        for receipt in batch.receipts:
            if not receipt.done():
                # One error each: they are raised in different places and collect different traces.
                receipt.set_exception(new_error())

    def _give_up(self, batch: Batch, event: str, error: type[PublishError]) -> None:
        """It will not be sent, or not answered: whoever waits is told which of the two."""
        if batch.attempts:
            sentence = (
                f"{event} before the broker answered for a message to {batch.topic!r}; it may have "
                "been kept: publishing it again can make a duplicate"
            )
            self._fail(batch, partial(error, sentence, unknown=1))
        else:
            sentence = (
                f"{event} before a message to {batch.topic!r} could be sent; it was not kept: "
                "publish it again"
            )
            self._fail(batch, partial(error, sentence, not_kept=1))

    # --- what the connection calls ---------------------------------------------------------------

    def on_messages(self, messages: list[None]) -> None:
        """Never: ``no_message`` refuses to make one."""

    def on_answer(self, data: bytes) -> None:
        """The oldest batch on the wire is safe."""
        batch = self._outbox.answered() if data == wire.OK else None
        if batch is None:
            # Answers belong to commands by their order alone, so nothing behind it can be trusted.
            if self._connection is not None:
                self._connection.abort(f"the broker answered {data[:80]!r} out of turn")
            return
        self._published += len(batch.bodies)
        self._backoff.reset()
        for receipt in batch.receipts:
            if not receipt.done():
                receipt.set_result(None)
        if self._room:
            self._room.give()
        if self._outbox.idle:
            self._outbox.seal()
        self._pump()

    def on_error(self, code: str, explanation: str) -> None:
        """The oldest batch on the wire was refused."""
        batch = self._outbox.answered()
        if batch is None:
            log.warning("the broker sent %s %s, which answers nothing", code, explanation)
            return
        retry = code not in PERMANENT_CODES
        advice = "publish it again later" if retry else "publishing it again will not help"
        company = len(batch.bodies) - 1
        beside = f" with the {company} others of its batch" if company else ""
        answer = f"{code} {explanation}".rstrip()
        sentence = (
            f"the broker refused a message to {batch.topic!r}{beside}: {answer}; "
            f"it was not kept: {advice}"
        )
        self._fail(batch, partial(PublishRefused, sentence, code=code, not_kept=1, retry=retry))
        self._room.give()
        self._pump()

    def on_writable(self, writable: bool) -> None:
        """The socket's buffer is above, or again below, its high water."""
        self._writable = writable
        if writable:
            self._pump()

    def on_lost(self, reason: str) -> None:
        """Unanswered batches go first on the next connection, or fail, as the program chose."""
        connection, self._connection = self._connection, None
        self._writable = True
        address = self._addresses[self._at] if connection is None else connection.address
        self._trouble = f"lost the connection to {address}: {reason}"
        if self._loop.time() - self._connected_at > STABLE_AFTER:
            self._backoff.reset()
        if self._options.on_lost == "resend":
            self._resent += self._outbox.return_sent()
        else:
            for batch in self._outbox.drop_sent():
                self._give_up(batch, self._trouble, PublishLost)
            self._room.give()
        if self._closed and not self._outbox.pending_messages:
            return  # as close() asked for
        log.warning("%s; reconnecting", self._trouble)
        self._reconnecting = self._loop.create_task(self._reconnect())
        self._reconnecting.add_done_callback(report_bug)

    # --- connecting ------------------------------------------------------------------------------

    async def _reconnect(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.next_delay())
            try:
                await self._connect_any()
            except (BrokerUnreachable, Refused) as error:
                self._trouble = str(error)
                log.warning("%s", error)
            else:
                log.info("connected again, to %s", self._addresses[self._at])
                return

    async def _connect_any(self) -> None:
        """The address in use first, then the others in turn."""
        failures: list[BrokerUnreachable | Refused] = []
        for step in range(len(self._addresses)):
            at = (self._at + step) % len(self._addresses)
            try:
                connection = await connect(self._addresses[at], self._client, self, no_message)
            except (BrokerUnreachable, Refused) as error:
                failures.append(error)
                continue
            self._at = at
            self._connects += 1
            self._connected_at = self._loop.time()
            self._connection = connection
            self._trouble = ""
            self._outbox.seal()
            self._pump()
            return
        if len(failures) == 1:
            raise failures[0]
        raise BrokerUnreachable("; ".join(map(str, failures)))


@dataclass(slots=True)
class Outcome:
    """What became of the messages of one ``publish_many``, however many batches they took."""

    total: int = 0
    kept: int = 0
    not_kept: int = 0
    unknown: int = 0
    first: PublishError | None = None
    cut_short: bool = False  # after a failure no more were taken
    # Why the messages behind the first ``total`` were not sent at all.
    stopped: Exception | None = None
    _waiter: asyncio.Future[None] | None = None

    def expect(self, count: int) -> Share:
        """The receipt for so many more messages, for their batch."""
        self.total += count
        return Share(self, count)

    def fail(self, error: PublishError, count: int) -> None:
        """One batch failed, with so many of the messages in it."""
        self.first = self.first or error
        if error.unknown:
            self.unknown += count
        else:
            self.not_kept += count

    def settle(self) -> None:
        """One batch more has its answer."""
        if self._waiter is not None and not self._waiter.done() and not self._left():
            self._waiter.set_result(None)

    async def settled(self, loop: asyncio.AbstractEventLoop) -> None:
        """Waits for all batches."""
        if self._left():
            self._waiter = loop.create_future()
            await self._waiter

    def _left(self) -> int:
        return self.total - self.kept - self.not_kept - self.unknown

    def check(self) -> None:
        """Raises unless every message was kept."""
        if self.first is None and self.stopped is None:
            return
        if self.total == 0 and self.stopped is not None:
            raise self.stopped
        behind = "; those behind them were not sent" if self.stopped or self.cut_short else ""
        behind += f": {self.stopped}" if self.stopped else ""
        reason = f"; the first to fail: {self.first}" if self.first else ""
        raise PublishError(
            f"of {self.total} messages {self.kept} were kept, {self.not_kept} were not, "
            f"{self.unknown} may have been{reason}{behind}",
            kept=self.kept,
            not_kept=self.not_kept,
            unknown=self.unknown,
            retry=self.first.retry if self.first else not isinstance(self.stopped, MessageInvalid),
        ) from (self.first or self.stopped)


class Share:
    """A batch's receipt for the messages that belong to one ``publish_many``."""

    __slots__ = ("_outcome", "_count")

    def __init__(self, outcome: Outcome, count: int) -> None:
        self._outcome = outcome
        self._count = count

    def done(self) -> bool:
        return False

    def set_result(self, _: None, /) -> None:
        self._outcome.kept += self._count
        self._outcome.settle()

    def set_exception(self, error: Exception, /) -> None:
        assert isinstance(error, PublishError)
        self._outcome.fail(error, self._count)
        self._outcome.settle()


def _as_bytes(body: Body) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise MessageInvalid(
        f"a message's body is bytes, not {type(body).__name__}; "
        "encode it first, for example with json.dumps(value).encode()"
    )
