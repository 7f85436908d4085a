"""The SDK for scripts: the same client behind a thread that runs the event loop.

Calls block; several threads of a program may share a client, producer or consumer, and what they
publish at the same time shares commands. Consuming crosses the thread once for many messages, and
so does settling: finished messages are told to the broker within a few milliseconds, or with the
next crossing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar, Unpack

from penstock.sdk.client import LOCAL, Client
from penstock.sdk.consumer import Consumer, ConsumerStatistics
from penstock.sdk.errors import AlreadySettled, ClientClosed, MessageInvalid, PublishError
from penstock.sdk.message import Message
from penstock.sdk.options import (
    BATCH_MESSAGES,
    ClientKeywords,
    ConsumerKeywords,
    ProducerKeywords,
)
from penstock.sdk.producer import Body, Delay, Outcome, Producer, ProducerStatistics

T = TypeVar("T")

# Settles of a loop that is faster than this share one crossing.
SETTLE_EVERY = 0.005
# Messages that one crossing brings: what is buffered, up to so many.
FETCH_MESSAGES = 500
# Chunks of a publish_many that are handed over before the first one's answer is waited for.
CHUNKS_AHEAD = 8


class Portal:
    """A thread with an event loop; ``call`` runs a coroutine there and waits for it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-sdk", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Start a coroutine over there."""
        if self.loop.is_closed():
            work.close()
            raise ClientClosed("this client was closed; make a new one")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine over there; an interrupt here cancels it there."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread; nothing may be running there any more."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


class SyncClient:
    """``with Client.sync("host:4150") as client``; see ``Client``."""

    def __init__(
        self, addresses: str | Iterable[str] = LOCAL, **options: Unpack[ClientKeywords]
    ) -> None:
        self._client = Client(addresses, **options)
        self._portal = Portal()

    def producer(self, **options: Unpack[ProducerKeywords]) -> SyncProducer:
        """A producer, connected."""
        producer = SyncProducer(self._portal, self._client.producer(**options))
        producer.start()
        return producer

    def consumer(
        self, topic: str, channel: str, **options: Unpack[ConsumerKeywords]
    ) -> SyncConsumer:
        """A consumer, subscribed."""
        consumer = SyncConsumer(self._portal, self._client.consumer(topic, channel, **options))
        consumer.start()
        return consumer

    def close(self) -> None:
        """Stop all consumers, close all producers, end the thread."""
        if not self._portal.loop.is_closed():
            self._portal.call(self._client.close())
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncProducer:
    """``Producer`` for scripts."""

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer

    def start(self) -> None:
        """Connect; ``SyncClient.producer`` has done so."""
        self._portal.call(self._producer.start())

    def publish(self, topic: str, body: Body, *, delay: Delay = 0) -> None:
        """One message, safe at the broker when this returns."""
        self._portal.call(self._producer.publish(topic, body, delay=delay))

    def publish_many(self, topic: str, bodies: Iterable[Body], *, delay: Delay = 0) -> int:
        """Messages of one topic, in order; the iterable is read in this thread."""
        source = iter(bodies)
        outcome = Outcome()
        ahead: deque[tuple[Future[int], int]] = deque()
        while not outcome.first and not outcome.stopped:
            chunk = list(islice(source, BATCH_MESSAGES))
            if not chunk:
                break
            work = self._producer.publish_many(topic, chunk, delay=delay)
            ahead.append((self._portal.submit(work), len(chunk)))
            if len(ahead) > CHUNKS_AHEAD:
                _collect(ahead.popleft(), outcome)
        for each in ahead:
            _collect(each, outcome)
        outcome.check()
        return outcome.total

    def flush(self) -> None:
        """Wait for the answers to all that other threads have published."""
        self._portal.call(self._producer.flush())

    def close(self) -> None:
        """Flush and disconnect."""
        self._portal.call(self._producer.close())

    def statistics(self) -> ProducerStatistics:
        """See ``Producer.statistics``."""
        return self._producer.statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _collect(chunk: tuple[Future[int], int], outcome: Outcome) -> None:
    future, count = chunk
    try:
        outcome.kept += future.result()
        outcome.total += count
    except PublishError as error:
        outcome.total += error.kept + error.not_kept + error.unknown
        outcome.kept += error.kept
        outcome.not_kept += error.not_kept
        outcome.unknown += error.unknown
        outcome.first = outcome.first or error
    except (MessageInvalid, ClientClosed) as error:
        outcome.stopped = outcome.stopped or error


class SyncMessage:
    """``Message`` for scripts: what happens to a settle is not waited for."""

    __slots__ = ("_message", "_consumer", "_settled")

    def __init__(self, message: Message, consumer: SyncConsumer) -> None:
        self._message = message
        self._consumer = consumer
        self._settled = False

    @property
    def id(self) -> str:
        """16 characters, the same at every delivery."""
        return self._message.id

    @property
    def body(self) -> bytes:
        """What was published."""
        return self._message.body

    @property
    def attempts(self) -> int:
        """How often it was delivered, from 1."""
        return self._message.attempts

    @property
    def timestamp_ns(self) -> int:
        """When it was published."""
        return self._message.timestamp_ns

    @property
    def settled(self) -> bool:
        """Whether it was finished or requeued."""
        return self._settled

    def finish(self) -> None:
        """It is done with."""
        self._settle(self._message.finish)

    def requeue(self, delay: float | timedelta | None = None) -> None:
        """Deliver it again after ``delay`` seconds (None: longer with each attempt, 0: at once)."""
        self._settle(lambda: self._message.requeue(delay))

    def touch(self) -> None:
        """Its timeout begins anew."""
        if self._settled:
            raise AlreadySettled(f"cannot touch message {self.id}: it was finished or requeued")
        self._consumer.enqueue(self._message.touch)

    def _settle(self, settle: Callable[[], bool]) -> None:
        if self._settled:
            raise AlreadySettled(
                f"message {self.id} was finished or requeued before; nothing was sent"
            )
        self._settled = True
        self._consumer.enqueue(settle)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._message)[1:]}"


class SyncConsumer:
    """``Consumer`` for scripts: iterate it, or ``run`` a handler on threads."""

    def __init__(self, portal: Portal, consumer: Consumer) -> None:
        self._portal = portal
        self._consumer = consumer
        self._buffer: deque[Message] = deque()
        self._in_hand: SyncMessage | None = None
        self._settles: deque[Callable[[], bool]] = deque()
        self._settling = False

    def start(self) -> None:
        """Connect and subscribe; ``SyncClient.consumer`` has done so."""
        self._portal.call(self._consumer.start())

    def __iter__(self) -> Iterator[SyncMessage]:
        return self

    def __next__(self) -> SyncMessage:
        self._finish_in_hand()
        if not self._buffer:
            self._buffer.extend(self._portal.call(self._fetch(FETCH_MESSAGES, None)))
        if not self._buffer:
            raise StopIteration
        message = SyncMessage(self._buffer.popleft(), self)
        if self._consumer.auto_finish:
            self._in_hand = message
        return message

    def fetch(self, max_messages: int, wait: float | None = None) -> list[SyncMessage]:
        """Up to so many messages, for the program to settle; empty after ``wait`` seconds."""
        self._finish_in_hand()
        if not self._buffer:
            self._buffer.extend(self._portal.call(self._fetch(max_messages, wait)))
        taken = [self._buffer.popleft() for _ in range(min(max_messages, len(self._buffer)))]
        return [SyncMessage(message, self) for message in taken]

    def run(self, handler: Callable[[SyncMessage], None], *, concurrency: int = 1) -> None:
        """Call ``handler(message)`` on up to ``concurrency`` threads, until the consumer is
        stopped.

        Finishes a message when its handler returns, requeues it when it raises. An interrupt
        (Ctrl-C) stops the consumer: handlers at work are waited for.
        """
        with ThreadPoolExecutor(concurrency, "penstock-handler") as pool:

            async def handle(message: Message) -> None:
                work = self._portal.loop.run_in_executor(pool, handler, SyncMessage(message, self))
                try:
                    await work
                finally:
                    self._settle_now()

            running = self._portal.submit(self._consumer.run(handle, concurrency=concurrency))
            try:
                running.result()
            except BaseException:
                self.stop()
                raise

    def stop(self, timeout: float | None = None) -> None:
        """Give back what was not begun, wait for what is in hand, disconnect."""
        self._portal.call(self._stop(timeout))

    def statistics(self) -> ConsumerStatistics:
        """See ``Consumer.statistics``."""
        return self._consumer.statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(0 if error is not None else None)

    # --- settling across the thread --------------------------------------------------------------

    def enqueue(self, settle: Callable[[], bool]) -> None:
        """From any thread: done on the loop's thread within SETTLE_EVERY."""
        self._settles.append(settle)
        # Set before the queue is emptied and read after it was filled, so none is left behind.
        if not self._settling:
            self._settling = True
            loop = self._portal.loop
            loop.call_soon_threadsafe(loop.call_later, SETTLE_EVERY, self._settle_now)

    def _settle_now(self) -> None:
        self._settling = False
        while self._settles:
            self._settles.popleft()()

    def _finish_in_hand(self) -> None:
        message, self._in_hand = self._in_hand, None
        if message is not None and not message.settled:
            message.finish()

    async def _fetch(self, max_messages: int, wait: float | None) -> list[Message]:
        self._settle_now()
        return await self._consumer.fetch(max_messages, wait)

    async def _stop(self, timeout: float | None) -> None:  # noqa: ASYNC109 - a drain's budget
        self._consumer.request_stop(timeout)
        self._settle_now()
        if self._in_hand is not None and not self._in_hand.settled:
            self._in_hand.requeue(0)
            self._settle_now()
        while self._buffer:
            self._buffer.popleft().requeue(0)
        await self._consumer.stop(timeout)
