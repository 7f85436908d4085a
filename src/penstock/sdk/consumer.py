"""Consuming: one channel over any number of brokers, with one budget of messages in flight.

Each address has a task that keeps one connection to it; each connection has a *link*, which knows
what is in flight on it. Messages go from the frame scan into one buffer and from there to whoever
waits: an ``async for``, workers of ``run``, or ``fetch``. Settling goes back through the link, all
of a turn in one write. No task, future or timer belongs to a message.

Who asks for messages decides when they are done with: ``run`` finishes after its handler returned
and requeues after an exception, ``async for`` finishes when the next one is asked for
(``auto_finish``).

Where brokers are found is not decided here: ``set_addresses`` says which ones to consume from, at
any time, and ``discovery`` calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from random import Random
from types import TracebackType
from typing import Self

from penstock.backoff import Backoff, delay
from penstock.errors import ConfigError, OperatingError
from penstock.limits import MSG_TIMEOUT_DEFAULT_MS
from penstock.names import NAME_RULE, is_valid_name
from penstock.protocol import nsq_client as wire
from penstock.sdk.connection import STABLE_AFTER, connect, report_bug
from penstock.sdk.credit import grants, shares
from penstock.sdk.errors import BrokerUnreachable, ClientClosed, MessageInvalid, Refused
from penstock.sdk.iteration import Iteration
from penstock.sdk.link import Link
from penstock.sdk.message import Message
from penstock.sdk.options import Address, ClientOptions, ConsumerOptions, parse_addresses
from penstock.sdk.statistics import ConsumerStatistics

log = logging.getLogger("penstock.sdk")

Handler = Callable[[Message], Awaitable[None]]

# A loop body that never awaits gives the event loop a turn this often: heartbeats, settles, others.
TURN_EVERY = 0.02
# With auto_touch a message is touched at the latest after two of so many parts of its timeout.
TOUCHES_PER_TIMEOUT = 3


class Consumer:
    """Made by ``Client.consumer``; use it with ``async with``."""

    must_reach_one = True

    def __init__(
        self,
        topic: str,
        channel: str,
        addresses: Sequence[Address],
        client: ClientOptions,
        options: ConsumerOptions,
    ) -> None:
        for what, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise MessageInvalid(f"{what} {name!r} is not a name; a name is {NAME_RULE}")
        self.topic = topic
        self.channel = channel
        self._wanted = tuple(addresses)
        self._client = client
        self._options = options
        self._random = Random()
        self._keepers: dict[Address, asyncio.Task[None]] = {}
        self._links: list[Link] = []
        self._buffer: deque[Message] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._iterations: dict[asyncio.Task[object], Iteration] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._retiring: set[asyncio.Task[None]] = set()
        self._turn_at = 0.0
        self._turn = 0  # whose turn it is when credit does not divide
        self._owed = False  # a raise of credit waits for another connection to settle
        self._timers: list[asyncio.TimerHandle] = []
        self._failure: OperatingError | None = None
        self._started = False
        self._stopping = False
        self._drain_seconds = 0.0
        self._draining: asyncio.Timeout | None = None
        self._stopped: asyncio.Task[None] | None = None
        self._received = self._finished = self._requeued = self._touched = 0
        self._stale = self._refused = self._connects = 0

    # --- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and subscribe; raises if no address could be subscribed at.

        Addresses that could not be reached while another could are tried again in the background.
        """
        if self._stopping:
            raise ClientClosed("this consumer was stopped; make a new one")
        if self._started:
            return
        self._loop = asyncio.get_running_loop()
        self._turn_at = self._loop.time()
        try:
            outcomes = await asyncio.gather(
                *(self._connect(address) for address in self._wanted), return_exceptions=True
            )
        except asyncio.CancelledError:
            for link in list(self._links):
                link.abort()
            raise
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        hopeless = [
            failure
            for failure in failures
            if not (isinstance(failure, OperatingError) and failure.retry)
        ]
        if hopeless or (self.must_reach_one and len(failures) == len(outcomes)):
            await asyncio.gather(*(link.close() for link in list(self._links)))
            if hopeless:
                raise hopeless[0]
            if len(failures) == 1:
                raise failures[0]
            raise BrokerUnreachable("; ".join(map(str, failures)))
        self._started = True
        for address, outcome in zip(self._wanted, outcomes):
            self._keep(address, outcome if isinstance(outcome, Link) else None)
        self._later(self._options.rotate_interval, self._rotate)
        if self._options.auto_touch:
            self._later(self._touch_interval(), self._touch_all, frozenset())
        if self.closed:  # as it was asked to in the meantime
            self._begin_stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = 0 if error is not None else None
        self.request_stop(seconds)
        iteration = self._iterations.get(_this_task())
        if iteration is not None:
            iteration.give_back()
        await self.stop(seconds)

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - a drain's budget
        """Drain: take no more, give back what nobody began, wait for what is in hand, disconnect.

        Iterations and ``run`` end. What is still in hand after ``timeout`` seconds (drain_timeout,
        if None) is delivered again by the broker. Called from within the loop or handler itself it
        only begins all that, since the caller's own message is part of what is waited for.
        """
        self.request_stop(timeout)
        task = _this_task()
        iteration = self._iterations.get(task)
        for_itself = task in self._workers or (iteration is not None and iteration.at_work)
        if self._stopped is not None and not for_itself:
            await asyncio.shield(self._stopped)

    def request_stop(self, timeout: float | None = None) -> None:
        """Begin to stop; returns at once. For signal handlers (``loop.add_signal_handler``).

        Asked again, it may hurry: the shortest ``timeout`` holds.
        """
        if self._stopping:
            if timeout is not None:
                self._hurry(timeout)
            return
        self._stopping = True
        self._drain_seconds = self._options.drain_timeout if timeout is None else timeout
        if self._started:
            self._begin_stop()

    def _begin_stop(self) -> None:
        # First of all, or the broker would send to us again what is now given back.
        for link in self._links:
            link.begin_close()
        # At once, or a loop that does not await would be given what waits here.
        self._give_back(self._buffer)
        self._buffer.clear()
        self._wake_all()
        self._stopped = self._loop.create_task(self._stop())
        self._stopped.add_done_callback(report_bug)

    def _hurry(self, seconds: float) -> None:
        self._drain_seconds = min(self._drain_seconds, seconds)
        if self._draining is not None and not self._draining.expired():
            end = self._draining.when()
            hurried = self._loop.time() + seconds
            self._draining.reschedule(hurried if end is None else min(end, hurried))

    async def _stop(self) -> None:
        for keeper in self._keepers.values():
            keeper.cancel()
        try:
            left = await self._drain(self._drain_seconds)
            if left:
                log.warning(
                    "stopped consuming %s/%s with %d messages in hand; "
                    "the broker delivers them again",
                    self.topic,
                    self.channel,
                    left,
                )
            await asyncio.gather(*(link.close() for link in list(self._links)))
            if self._keepers:
                await asyncio.wait(self._keepers.values())
        finally:
            for timer in self._timers:  # not before: what is in hand is touched to the end
                timer.cancel()
            for link in list(self._links):
                link.abort()
            for task in self._iterations:
                task.remove_done_callback(self._end_iteration)
            self._iterations.clear()

    async def _drain(self, seconds: float) -> int:
        """Waits until nothing is in hand; how many messages still are."""
        if self._in_flight() and seconds > 0:
            log.info("waiting up to %g s for %d messages in hand", seconds, self._in_flight())
            try:
                async with asyncio.timeout(seconds) as self._draining:
                    for link in list(self._links):
                        await link.wait_until_empty()
            except TimeoutError:
                pass
            finally:
                self._draining = None
        return self._in_flight()

    @property
    def auto_finish(self) -> bool:
        """Whether an iteration finishes a message when the next one is asked for."""
        return self._options.auto_finish

    @property
    def closed(self) -> bool:
        """Whether it was stopped."""
        return self._stopping

    def statistics(self) -> ConsumerStatistics:
        """Counts since the start, and what is held now."""
        return ConsumerStatistics(
            received=self._received,
            finished=self._finished,
            requeued=self._requeued,
            touched=self._touched,
            stale=self._stale,
            refused=self._refused,
            buffered=len(self._buffer),
            in_flight=self._in_flight(),
            connects=self._connects,
            connected=tuple(link.address for link in self._links),
        )

    # --- taking messages -------------------------------------------------------------------------

    def __aiter__(self) -> Iteration:
        """Each task has an iteration of its own, so that none finishes another's message.

        A task is in one loop at a time: what an earlier one was left with goes back.
        """
        task = _this_task()
        earlier = self._iterations.get(task)
        if earlier is None:
            task.add_done_callback(self._end_iteration)
        else:
            earlier.give_back()
        iteration = self._iterations[task] = Iteration(self, auto_finish=self._options.auto_finish)
        return iteration

    def _end_iteration(self, task: asyncio.Task[object]) -> None:
        """The task has ended, perhaps by an exception in the loop's body."""
        iteration = self._iterations.pop(task, None)
        if iteration is not None:  # or the consumer has stopped since
            iteration.give_back()

    async def next_message(self) -> Message | None:
        """The next message, for the program to settle; None when the consumer has stopped."""
        if self._buffer and self._loop.time() - self._turn_at > TURN_EVERY:
            await self._give_turn()
        if not self._buffer:
            await self._wait_for_messages()
        return self._buffer.popleft() if self._buffer else None

    async def fetch(self, max_messages: int, wait: float | None = None) -> list[Message]:
        """Up to so many messages at once, for the program to settle.

        Waits for the first one; the list is empty after ``wait`` seconds and when the consumer has
        stopped.
        """
        if self._buffer and self._loop.time() - self._turn_at > TURN_EVERY:
            await self._give_turn()
        if not self._buffer:
            try:
                async with asyncio.timeout(wait):
                    await self._wait_for_messages()
            except TimeoutError:
                return []
        buffer = self._buffer
        if len(buffer) <= max_messages:
            messages = list(buffer)
            buffer.clear()
            return messages
        return [buffer.popleft() for _ in range(max_messages)]

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Give each message to ``await handler(message)``, up to ``concurrency`` at once.

        A message that the handler has not settled is finished when it returns and requeued, later
        and later, when it raises. Returns when the consumer is stopped.
        """
        if concurrency < 1:
            raise ConfigError(f"concurrency is at least 1, not {concurrency}")
        self._check_started()
        workers = {self._loop.create_task(self._work(handler)) for _ in range(concurrency)}
        self._workers |= workers
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers)
            self._workers -= workers

    async def _work(self, handler: Handler) -> None:
        while True:
            message = await self.next_message()
            if message is None:
                return
            try:
                await handler(message)
            except Exception as error:
                if not message.settled:
                    log.warning(
                        "the handler of %s/%s failed at attempt %d of message %s; it is requeued",
                        self.topic,
                        self.channel,
                        message.attempts,
                        message.id,
                        exc_info=error,
                    )
                    message.requeue()
            except BaseException:
                if not message.settled:
                    message.requeue(0)
                raise
            else:
                if not message.settled:
                    message.finish()

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._turn_at = self._loop.time()

    async def _wait_for_messages(self) -> None:
        """Returns when there is a message, or none will come any more."""
        self._check_started()
        while not self._buffer and not self._stopping:
            if self._failure is not None:
                raise self._failure
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # it was this one's call; somebody else takes it
                raise
        self._turn_at = self._loop.time()

    def _check_started(self) -> None:
        if not self._started:
            raise ClientClosed("this consumer was not started; use `async with` or call start()")

    def _wake(self, count: int) -> None:
        waiters = self._waiters
        while count and waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _wake_all(self) -> None:
        self._wake(len(self._waiters))

    # --- addresses and connections ---------------------------------------------------------------

    def set_addresses(self, addresses: str | Iterable[str]) -> None:
        """Consume from these brokers from now on: connects to new ones, drains those not named."""
        wanted = parse_addresses(addresses)
        self._check_started()
        if self._stopping:
            return
        self._wanted = wanted
        for address in self._keepers.keys() - set(self._wanted):
            self._keepers.pop(address).cancel()
            for link in self._links:
                if link.address == address:
                    link.begin_close()
                    self._drop_buffered(link, give_back=True)
                    retiring = self._loop.create_task(self._retire(link))
                    retiring.add_done_callback(self._retiring.discard)
                    self._retiring.add(retiring)
        for address in self._wanted:
            if address not in self._keepers:
                self._keep(address, None)
        self._share()

    async def _retire(self, link: Link) -> None:
        """A connection whose address is not wanted any more ends when nothing is in hand on it."""
        try:
            async with asyncio.timeout(self._options.drain_timeout):
                await link.wait_until_empty()
        except TimeoutError:
            log.warning("left %s with %d messages in hand", link.address, len(link.in_flight))
        await link.close()

    def _keep(self, address: Address, link: Link | None) -> None:
        keeper = self._loop.create_task(self._keep_connected(address, link))
        keeper.add_done_callback(report_bug)
        self._keepers[address] = keeper

    async def _keep_connected(self, address: Address, link: Link | None) -> None:
        """One address's connection, for as long as the address is wanted."""
        backoff = Backoff(self._client.reconnect_delay, self._client.reconnect_delay_max)
        while True:
            if link is not None:
                connected_at = self._loop.time()
                await link.lost
                if self._stopping or link.closing:
                    return
                if self._loop.time() - connected_at > STABLE_AFTER:
                    backoff.reset()
                link = None
                await asyncio.sleep(backoff.next_delay())
            try:
                link = await self._connect(address)
            except (BrokerUnreachable, Refused) as error:
                if not error.retry:
                    self._fail(error)
                    return
                log.warning("%s", error)
                await asyncio.sleep(backoff.next_delay())

    async def _connect(self, address: Address) -> Link:
        link = Link(self, address)
        identity: dict[str, wire.Scalar] = {}
        if self._options.msg_timeout is not None:
            identity["msg_timeout"] = round(self._options.msg_timeout * 1000)
        if self._options.sample_rate:
            identity["sample_rate"] = self._options.sample_rate
        link.attach(
            await connect(
                address,
                self._client,
                link,
                partial(Message, link),
                identity=identity,
                greeting=(wire.encode_sub(self.topic, self.channel),),
            )
        )
        self._connects += 1
        self._links.append(link)
        self._share()
        return link

    def _fail(self, error: OperatingError) -> None:
        """No attempt can help: whoever iterates is told."""
        self._failure = error
        self._wake_all()

    # --- credit ----------------------------------------------------------------------------------

    def _share(self) -> None:
        """Tell each connection its part of max_in_flight, as far as it is free."""
        links = [link for link in self._links if not link.closing]
        closing = sum(len(link.in_flight) for link in self._links if link.closing)
        total = max(0, self._options.max_in_flight - closing)
        targets = shares(total, [link.rdy_max for link in links], self._turn)
        granted = grants(
            total, targets, [link.rdy for link in links], [len(link.in_flight) for link in links]
        )
        self._owed = granted != targets or total < self._options.max_in_flight
        for link, rdy in zip(links, granted):
            link.set_rdy(rdy)

    def _rotate(self) -> None:
        if len(self._links) > 1:
            self._turn = (self._turn + self._options.max_in_flight) % len(self._links)
            self._share()
        self._later(self._options.rotate_interval, self._rotate)

    # --- what links call -------------------------------------------------------------------------

    def on_messages(self, link: Link, messages: list[Message]) -> None:
        """Messages have come."""
        self._received += len(messages)
        if link.closing:
            self._give_back(messages)
            return
        self._buffer.extend(messages)
        if self._waiters:
            self._wake(len(messages))

    def on_settled(self, count: int, requeued: int) -> None:
        """A turn's FIN and REQ have been written."""
        self._finished += count - requeued
        self._requeued += requeued
        if self._owed:
            self._share()

    def on_touched(self) -> None:
        """A TOUCH is on its way."""
        self._touched += 1

    def on_stale(self) -> None:
        """A message could not be settled."""
        self._stale += 1

    def on_refused(self, code: str, explanation: str) -> None:
        """The broker refused a FIN, REQ or TOUCH, or is about to close."""
        self._refused += 1
        log.warning("%s/%s: the broker answered %s %s", self.topic, self.channel, code, explanation)

    def on_lost(self, link: Link, reason: str) -> None:
        """A connection has ended; what was in flight on it comes again, here or elsewhere."""
        if link not in self._links:
            return
        self._links.remove(link)
        self._drop_buffered(link, give_back=False)
        if not self._stopping:
            if not link.closing:
                log.warning("lost the connection to %s: %s; reconnecting", link.address, reason)
            self._share()

    def on_replaced(self, messages: list[Message]) -> None:
        """Timed out before anybody asked for them, and delivered anew: the old copies go."""
        gone = set(map(id, messages))
        self._buffer = deque(message for message in self._buffer if id(message) not in gone)

    def retry_delay_ms(self, attempts: int) -> int:
        """Doubling with each attempt, with jitter."""
        options = self._options
        if not options.retry_delay:
            return 0
        seconds = delay(options.retry_delay, options.retry_delay_max, attempts)
        return round(seconds * self._random.uniform(0.75, 1.0) * 1000)

    # --- inside ----------------------------------------------------------------------------------

    def _in_flight(self) -> int:
        return sum(len(link.in_flight) for link in self._links)

    def _give_back(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if not message.settled:
                message.requeue(0)

    def _drop_buffered(self, link: Link, *, give_back: bool) -> None:
        owned = set(map(id, link.in_flight.values()))
        theirs = [message for message in self._buffer if id(message) in owned]
        if theirs:
            self._buffer = deque(message for message in self._buffer if id(message) not in owned)
            if give_back:
                self._give_back(theirs)
            else:
                self._stale += len(theirs)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        self._timers = [timer for timer in self._timers if timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(seconds, call, *arguments))

    def _touch_interval(self) -> float:
        timeouts = [link.msg_timeout_ms for link in self._links] or [MSG_TIMEOUT_DEFAULT_MS]
        return min(timeouts) / 1000 / TOUCHES_PER_TIMEOUT

    def _touch_all(self, seen: frozenset[bytes]) -> None:
        """Touch what was already in flight at the last round."""
        now: list[bytes] = []
        for link in self._links:
            for raw_id, message in link.in_flight.items():
                now.append(raw_id)
                if raw_id in seen:
                    link.extend(message)
        self._later(self._touch_interval(), self._touch_all, frozenset(now))


def _this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "only code that runs in a task can wait for messages"
    return task
