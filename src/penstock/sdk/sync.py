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
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar, Unpack

from penstock.sdk.client import LOCAL, Client
from penstock.sdk.consumer import Consumer
from penstock.sdk.delays import Delay, delay_ms
from penstock.sdk.errors import AlreadySettled, ClientClosed, MessageInvalid, PublishError
from penstock.sdk.iteration import Loop
from penstock.sdk.message import Message
from penstock.sdk.options import (
    BATCH_MESSAGES,
    ClientKeywords,
    ConsumerKeywords,
    ProducerKeywords,
)
from penstock.sdk.producer import Body, Outcome, Producer
from penstock.sdk.statistics import ConsumerStatistics, ProducerStatistics

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
        except CancelledError:
            raise ClientClosed("this client was closed meanwhile; make a new one") from None
        except BaseException:
            future.cancel()
            raise

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call something over there; nothing, if the client was closed."""
        with suppress(RuntimeError):  # how asyncio says that the loop is closed
            self.loop.call_soon_threadsafe(call, *arguments)

    def close(self) -> None:
        """End the thread, and what other threads still wait for."""
        if not self.loop.is_closed():
            self.call(_end_others())
            self.call(self.loop.shutdown_default_executor())  # it has resolved names
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


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
        while not outcome.stopped:
            if outcome.first:
                outcome.cut_short = True
                break
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
        if outcome.first is None:
            outcome.first = error.__cause__ if isinstance(error.__cause__, PublishError) else error
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

    def requeue(self, delay: Delay | None = None) -> None:
        """Deliver it again after ``delay`` seconds (None: longer with each attempt, 0: at once)."""
        if delay is not None:
            delay_ms(delay)  # a wrong one is told here, not to the loop's thread
        self._settle(partial(self._message.requeue, delay))

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


class SyncIteration(Loop[SyncMessage]):
    """One thread's ``for``."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: SyncConsumer, *, auto_finish: bool) -> None:
        super().__init__(auto_finish=auto_finish)
        self._consumer = consumer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        self.finish()
        message = self._in_hand = self._consumer.next_message()
        if message is None:
            raise StopIteration
        return message


class OfThread(threading.local):
    """What one thread does with a consumer."""

    iteration: SyncIteration | None = None
    handles = False  # it is one of the threads of ``run``


class SyncConsumer:
    """``Consumer`` for scripts: iterate it, or ``run`` a handler on threads."""

    def __init__(self, portal: Portal, consumer: Consumer) -> None:
        self._portal = portal
        self._consumer = consumer
        # What one crossing has brought; filled and given back on the loop's thread only.
        self._buffer: deque[Message] = deque()
        self._of_thread = OfThread()
        self._settles: deque[Callable[[], bool]] = deque()
        self._settling = False
        self._stopping = False

    def start(self) -> None:
        """Connect and subscribe; ``SyncClient.consumer`` has done so."""
        self._portal.call(self._consumer.start())

    def __iter__(self) -> SyncIteration:
        """Each thread has an iteration of its own, so that none finishes another's message.

        A thread is in one loop at a time: what an earlier one was left with goes back.
        """
        earlier = self._of_thread.iteration
        if earlier is not None:
            earlier.give_back()
        iteration = SyncIteration(self, auto_finish=self._consumer.auto_finish)
        self._of_thread.iteration = iteration
        return iteration

    def next_message(self) -> SyncMessage | None:
        """The next message, for the program to settle; None when the consumer has stopped."""
        taken = self._take(1) or self._fetch(1, FETCH_MESSAGES, None)
        return taken[0] if taken else None

    def fetch(self, max_messages: int, wait: float | None = None) -> list[SyncMessage]:
        """Up to so many messages, for the program to settle; empty after ``wait`` seconds."""
        return self._take(max_messages) or self._fetch(max_messages, max_messages, wait)

    def run(self, handler: Callable[[SyncMessage], None], *, concurrency: int = 1) -> None:
        """Call ``handler(message)`` on up to ``concurrency`` threads, until the consumer is
        stopped.

        Finishes a message when its handler returns, requeues it when it raises. An interrupt
        (Ctrl-C) stops the consumer: handlers at work are waited for.
        """
        threads = max(1, concurrency)  # what is below 1 the consumer refuses in its own words
        with ThreadPoolExecutor(threads, "penstock-handler", self._begin_handling) as pool:

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
        """Give back what was not begun, wait for what is in hand, disconnect.

        Called from within a loop or handler it only begins that, as in ``Consumer.stop``.
        """
        iteration = self._of_thread.iteration
        if self._of_thread.handles or (iteration is not None and iteration.at_work):
            self.request_stop(timeout)
        else:
            self._portal.call(self._stop(timeout))

    def request_stop(self, timeout: float | None = None) -> None:
        """Begin to stop; returns at once. For signal handlers and other threads."""
        self._stopping = True  # at once, or the loop that asks would be given what waits here
        self._portal.soon(self._begin_stop, timeout)

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
        seconds = 0 if error is not None else None
        self.request_stop(seconds)
        if self._of_thread.iteration is not None:
            self._of_thread.iteration.give_back()
        self.stop(seconds)

    # --- across the thread -----------------------------------------------------------------------

    def enqueue(self, settle: Callable[[], bool]) -> None:
        """From any thread: done on the loop's thread within SETTLE_EVERY."""
        self._settles.append(settle)
        # Set before the queue is emptied and read after it was filled, so none is left behind.
        if not self._settling:
            self._settling = True
            self._portal.soon(self._portal.loop.call_later, SETTLE_EVERY, self._settle_now)

    def _settle_now(self) -> None:
        self._settling = False
        while self._settles:
            self._settles.popleft()()

    def _begin_handling(self) -> None:
        self._of_thread.handles = True

    def _take(self, max_messages: int) -> list[SyncMessage]:
        """From the buffer; what timed out there, or lost its connection, comes again by itself."""
        taken: list[SyncMessage] = []
        try:
            while len(taken) < max_messages and not self._stopping:
                message = self._buffer.popleft()
                if not message.stale:
                    taken.append(SyncMessage(message, self))
        except IndexError:  # it is empty; or another thread was faster
            pass
        return taken

    def _fetch(self, max_messages: int, ahead: int, wait: float | None) -> list[SyncMessage]:
        """Waits for up to ``ahead`` of them; empty after ``wait`` seconds and after the stop."""
        while self._portal.call(self._fill(ahead, wait)):
            taken = self._take(max_messages)
            if taken:
                return taken
        return []

    async def _fill(self, max_messages: int, wait: float | None) -> bool:
        self._settle_now()
        messages = await self._consumer.fetch(max_messages, wait)
        self._buffer.extend(messages)
        return bool(messages)

    def _begin_stop(self, timeout: float | None) -> None:
        self._stopping = True
        self._consumer.request_stop(timeout)
        self._settle_now()
        while self._buffer:
            self._buffer.popleft().requeue(0)

    async def _stop(self, timeout: float | None) -> None:  # noqa: ASYNC109 - a drain's budget
        self._begin_stop(timeout)
        await self._consumer.stop(timeout)
