"""Housekeeping on a real directory: what is freed, and above all what is not.

The broker's host runs in this process on a file engine with tiny segments; time is the test's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path

import pytest

from penstock.broker.broker import BrokerOptions, TopicPolicy
from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from penstock.runtime.host import Host, HostOptions
from penstock.runtime.pool import DiskPool
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.testing import FakeClock
from tests.unit.broker.rig import Consumer

SECOND = 1_000_000_000
RETAIN_S = 3600
YEARS_S = 5 * 365 * 86_400
FILES = FileOptions(segment_bytes_max=1000, reserve_bytes=0)
BODY = b"x" * 200


class House:
    """A host, and the few things that the tests do with it."""

    def __init__(self, host: Host, clock: FakeClock, directory: Path) -> None:
        self.host = host
        self.clock = clock
        self.directory = directory

    async def topic(self, name: str = "orders") -> Topic:
        opened: asyncio.Future[Topic] = asyncio.get_running_loop().create_future()
        topic = self.host.topic(name, lambda got, _: opened.set_result(got) if got else None)
        return topic if topic is not None else await opened

    async def publish(self, topic: Topic, count: int, *, delay_ns: int = 0) -> None:
        """One by one, so that each is a block."""
        for _ in range(count):
            now_ns = self.clock.now_ns()
            if delay_ns:
                due_ns = now_ns + delay_ns
                turn = topic.publish_delayed([BODY], len(BODY), due_ns, now_ns)
            else:
                turn = topic.publish([BODY], len(BODY), now_ns)
            self.host.wake()
            await until(partial(getattr, turn, "over"))
            assert turn.error is None

    async def consume(self, channel: Channel, count: int, *, settle: bool = True) -> Consumer:
        consumer = Consumer()
        channel.subscribe(consumer.subscriber)
        channel.set_ready(consumer.subscriber, 2500)
        self.host.wake()
        await until(lambda: len(consumer.got) >= count)
        if settle:
            channel.finish(consumer.subscriber, consumer.ids, self.clock.now_ns())
            self.host.wake()
        return consumer

    async def rounds(self) -> None:
        """Long enough for all that may go to go."""
        self.host.wake()
        for _ in range(4):
            await until(self._synced)
            self.clock.advance(11)
            self.host.housekeeping.tick()
            await until(
                lambda: not any(one.shrinking for one in self.host.committer.writers.values())
            )

    def _synced(self) -> bool:
        self.clock.advance(0.001)  # journals are synced now and then only
        committer = self.host.committer
        return (
            self.host.journals.cover(self.clock.monotonic_ns())
            and committer.state.durable == self.host.broker.state_version
        )

    def segments(self, pattern: str = "*") -> int:
        return len([*self.directory.glob(f"topics/*/0/{pattern}.seg")])


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  the host has no event for each of these
            await asyncio.sleep(0.001)


@asynccontextmanager
async def house(
    directory: Path, clock: FakeClock, durability: str = "synced"
) -> AsyncIterator[House]:
    loop = asyncio.get_running_loop()
    engine = FileEngine(str(directory), FILES)
    pool = DiskPool(2, loop.call_soon_threadsafe)
    options = HostOptions(
        broker=BrokerOptions(
            default_policy=TopicPolicy(durability=durability), ephemeral_backlog_max=5
        ),
        journal_write_interval_ms=1,
        journal_sync_interval_ms=1,
        retain_ms=RETAIN_S * 1000,
        idle_unload_ms=100 * RETAIN_S * 1000,
        verify=True,
    )
    host = Host(options, engine, pool, clock, loop)
    host.start()
    yield House(host, clock, directory)
    await host.stop()
    pool.close()


def on_a_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@on_a_loop
async def test_finished_goes_when_it_is_old_enough(tmp_path: Path, clock: FakeClock) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        channel = topic.channel("c", clock.now_ns())
        await home.publish(topic, 20)
        written = home.segments()
        assert written > 3
        await home.consume(channel, 20)
        await home.rounds()
        assert (home.segments(), topic.history) == (written, True)
        clock.advance(RETAIN_S)
        await home.rounds()
        assert (home.segments(), topic.history) == (1, False)
        assert topic.partitions[0].ready[0].start > 0
        await home.publish(topic, 1)
        assert channel.depth() + channel.in_flight_count() == 1


@on_a_loop
async def test_a_clock_that_was_years_ahead_keeps_nothing_for_years(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        channel = topic.channel("c", clock.now_ns())
        await home.publish(topic, 10)
        clock.step(YEARS_S)
        await home.publish(topic, 10)
        clock.step(-YEARS_S)
        await home.publish(topic, 10)
        consumer = await home.consume(channel, 30)
        await home.rounds()
        clock.advance(RETAIN_S)
        await home.rounds()
        assert (home.segments(), topic.history) == (1, False)
        channel.unsubscribe(consumer.subscriber, clock.now_ns())
        clock.advance(100 * RETAIN_S)
        await home.rounds()
        assert topic.gone
        topic = await home.topic()
        await home.publish(topic, 1)  # its append time is none before those in the log
        assert topic.depth() + topic.channels["c"].depth() == 1


@on_a_loop
async def test_a_clock_that_is_years_ahead_frees_nothing_early(
    tmp_path: Path, clock: FakeClock
) -> None:
    """What was appended with a future time is kept as long as any other."""
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        channel = topic.channel("c", clock.now_ns())
        clock.step(YEARS_S)
        await home.publish(topic, 10)
        clock.step(-YEARS_S)
        written = home.segments()
        await home.consume(channel, 10)
        await home.rounds()
        clock.advance(RETAIN_S // 2)
        await home.rounds()
        assert home.segments() == written


@on_a_loop
async def test_what_was_emptied_is_forgotten_when_all_are_past_it(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        ahead = topic.channel("ahead", clock.now_ns())
        behind = topic.channel("behind", clock.now_ns())
        watch = topic.channel("watch#ephemeral", clock.now_ns())
        await home.publish(topic, 1)
        topic.pause()
        for _ in range(3):
            await home.publish(topic, 1)
            topic.empty()
        topic.unpause()
        await home.publish(topic, 1)
        assert topic.jumps == {"0/0": [(1, 4)]}
        await home.consume(ahead, 2)
        await home.rounds()
        assert topic.jumps
        await home.consume(behind, 2)
        await home.rounds()
        assert topic.jumps  # the ephemeral channel has no journal, and has not come so far
        await home.consume(watch, 2)
        await home.rounds()
        assert not topic.jumps
        assert b"jumps" not in home.host.broker.known[topic.name]


@on_a_loop
async def test_what_somebody_needs_stays(tmp_path: Path, clock: FakeClock) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        behind = topic.channel("behind", clock.now_ns())
        ahead = topic.channel("ahead", clock.now_ns())
        await home.publish(topic, 20)
        written = home.segments()
        await home.consume(ahead, 20)
        clock.advance(2 * RETAIN_S)
        await home.rounds()
        assert home.segments() == written
        # in flight is needed, too
        consumer = await home.consume(behind, 20, settle=False)
        await home.rounds()
        assert home.segments() == written
        for number in consumer.ids[1:]:
            assert not behind.finish(consumer.subscriber, [number], clock.now_ns())
        await home.rounds()
        assert home.segments() == written
        # asleep in a channel is needed, too
        day_ns = 24 * 3600 * SECOND
        assert behind.requeue(consumer.subscriber, consumer.ids[0], day_ns, clock.now_ns()) is None
        await home.rounds()
        assert home.segments() == written
    async with house(tmp_path / "data", clock) as home:
        # after a restart as well: nobody opened the topic, but it says that it has a history
        await until(lambda: "orders" in home.host.broker.topics)
        behind = home.host.broker.topics["orders"].channels["behind"]
        await home.rounds()
        assert home.segments() == written
        assert behind.sleeping_count() == 1
        behind.empty(clock.now_ns(), ())
        await home.rounds()
        assert home.segments() == 1


@on_a_loop
async def test_what_nobody_has_claimed_stays(tmp_path: Path, clock: FakeClock) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        await home.publish(topic, 20)
        written = home.segments()
        clock.advance(2 * RETAIN_S)
        await home.rounds()
        assert home.segments() == written
        await home.consume(topic.channel("first", clock.now_ns()), 20)
        await home.rounds()
        assert home.segments() == 1


@on_a_loop
async def test_an_ephemeral_channel_holds_nothing_back(tmp_path: Path, clock: FakeClock) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        channel = topic.channel("c", clock.now_ns())
        topic.channel("watch#ephemeral", clock.now_ns())
        await home.publish(topic, 20)
        await home.consume(channel, 20)
        clock.advance(2 * RETAIN_S)
        await home.rounds()
        assert home.segments() == 1


@on_a_loop
async def test_delayed_goes_once_it_has_moved(tmp_path: Path, clock: FakeClock) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        channel = topic.channel("c", clock.now_ns())
        await home.publish(topic, 20, delay_ns=3 * RETAIN_S * SECOND)
        written = home.segments("delay*")
        assert written > 3
        clock.advance(2 * RETAIN_S)
        await home.rounds()
        assert home.segments("delay*") == written
        clock.advance(RETAIN_S)
        home.host.timers.ring()
        await until(lambda: channel.depth() == 20)
        await home.rounds()
        assert home.segments("delay*") == 1
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        assert len(topic.partitions[0].schedule) == 0
        assert (await home.consume(topic.channels["c"], 20)).bodies == [BODY] * 20


@on_a_loop
async def test_memory_is_freed_at_once(tmp_path: Path, clock: FakeClock) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic("hot#ephemeral")
        lane = topic.partitions[0].ready[0]
        log = home.host.committer.writers[lane].log
        await home.publish(topic, 20)
        await home.rounds()
        # without a channel it keeps what an ephemeral channel may be behind
        assert (topic.depth(), topic.dropped_count) == (5, 15)
        assert log.bounds().start == lane.start == 15
        channel = topic.channel("c", clock.now_ns())
        await home.consume(channel, 5)
        await home.rounds()
        assert log.bounds().start == log.bounds().end - 1


@on_a_loop
async def test_a_floor_that_no_synced_journal_shows_frees_nothing(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        channel = topic.channel("c", clock.now_ns())
        await home.publish(topic, 20)
        written = home.segments()
        await home.consume(channel, 20)
        clock.advance(2 * RETAIN_S)
        home.host.journals.busy = True  # a disk that stalls: what happened is not written
        for _ in range(4):
            clock.advance(11)
            home.host.housekeeping.tick()
        assert home.segments() == written
        home.host.journals.busy = False
        home.host.journals.flush()
        await home.rounds()
        assert home.segments() == 1
