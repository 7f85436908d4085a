"""The host on a real directory while the disk is full or fails, step by step.

The loop and the disk threads are in the test's hands; failpoints make the trouble.
"""

from collections.abc import Callable, Iterator
from errno import EMFILE
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.broker.lanes import Lane, Turn
from penstock.broker.topic import Topic
from penstock.errors import CorruptionError, DiskFull, OperatingError, PenstockError
from penstock.storage.file.disk import RealDisk
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from tests.unit.broker.rig import SECOND, Consumer
from tests.unit.runtime.rig import Rig

Start = Callable[..., Rig]
FILES = FileOptions(reserve_bytes=0, segment_bytes_max=2000)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A host on the test's directory, or on that of a run before it as a kill would leave it."""
    engines: list[FileEngine] = []

    def make(durability: str = "synced") -> Rig:
        passing = partial(next, count(step=2.0))  # time goes on whenever somebody looks
        engines.append(FileEngine(str(tmp_path / "data"), FILES, now=passing))
        return Rig(durability, engines[-1])

    yield make
    failpoint.arm("")
    for engine in engines:
        engine.close()


def opened(rig: Rig, name: str) -> Topic:
    rig.host.topic(name, lambda topic, error: None)
    rig.settle()
    return rig.host.broker.topics[name]


def journals_fail(rig: Rig) -> bool:
    return rig.host.journals.failure is not None


def subscribe(rig: Rig, topic: Topic, channel: str = "c") -> Consumer:
    consumer = Consumer()
    of = topic.channel(channel, rig.clock.now_ns())
    of.subscribe(consumer.subscriber)
    of.set_ready(consumer.subscriber, 100)
    rig.host.wake()
    return consumer


def test_a_journal_that_fails_holds_no_other_up(start: Start) -> None:
    rig = start()
    topic = rig.topic("t")
    consumers = {name: subscribe(rig, topic, name) for name in ("fails", "works")}
    rig.settle()
    failpoint.arm("journal.write=eio")
    for body in (b"1", b"2"):
        rig.publish(topic, body)
        rig.settle()
        for name, consumer in consumers.items():
            ids = [number for number, _, _ in consumer.take()]
            topic.channels[name].finish(consumer.subscriber, ids, rig.clock.now_ns())
        rig.host.wake()
        rig.settle()
        rig.loop.advance(0.1)
        rig.settle()
    journal = rig.host.journals.open[topic.channels["works"]]
    assert len([*journal.history()]) == 2
    assert journals_fail(rig)


def test_a_journal_that_found_no_room_is_written_although_its_channel_is_quiet(
    start: Start,
) -> None:
    rig = start()
    topic = rig.topic("t")
    consumer = subscribe(rig, topic)
    rig.publish(topic, b"1")
    rig.settle()
    failpoint.arm("journal.write=enospc")
    rig.loop.advance(0.1)
    rig.settle()
    assert journals_fail(rig)
    rig.loop.advance(0.1)
    rig.settle()
    assert not journals_fail(rig)
    assert consumer.bodies == [b"1"]
    assert len([*rig.host.journals.open[topic.channels["c"]].history()]) == 1


def test_a_topic_that_cannot_be_opened_can_be_asked_for_again(start: Start, tmp_path: Path) -> None:
    rig = start()
    topic = rig.topic("t")
    subscribe(rig, topic)
    rig.settle()
    for body in (b"1", b"2"):
        rig.publish(topic, body)
        rig.settle()
        rig.loop.advance(1)
        rig.settle()
    rig.engine.close()
    [journal] = tmp_path.glob("data/topics/t/channels/c/journal_*")
    stored = journal.read_bytes()
    journal.write_bytes(stored[:30] + bytes([stored[30] ^ 1]) + stored[31:])
    rig = start()
    answers: list[tuple[Topic | None, PenstockError | None]] = []
    for asked in (1, 2):
        rig.host.topic("t", lambda *answer: answers.append(answer))
        rig.settle()
        assert len(answers) == asked
        assert isinstance(answers[-1][1], CorruptionError)
    rig.engine.close()
    journal.write_bytes(stored)
    assert opened(start(), "t").ready_lanes()[0].durable_end == 2


class FlakyDisk(RealDisk):
    """One that refuses to read for a while."""

    failing = False

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        if self.failing:
            raise OSError(EMFILE, "no more files")
        return super().pread(handle, length, offset)


def test_a_read_that_fails_is_tried_again(tmp_path: Path) -> None:
    disk = FlakyDisk()
    rig = Rig(engine=FileEngine(str(tmp_path / "data"), FILES, disk=disk))
    topic = rig.topic("t")
    rig.publish(topic, b"1")
    now_ns = rig.clock.now_ns()
    topic.publish_delayed([b"2"], 1, now_ns + SECOND // 2, now_ns)
    rig.settle()
    for lane in topic.lanes():
        rig.host.broker.cache.forget(lane.shelf)
    disk.failing = True
    consumer = subscribe(rig, topic)
    for _ in range(3):
        rig.settle()
        rig.loop.advance(1)
    rig.settle()
    assert consumer.bodies == []
    disk.failing = False
    rig.loop.advance(1)
    rig.settle()
    assert sorted(consumer.bodies) == [b"1", b"2"]
    rig.engine.close()


class NarrowDisk(RealDisk):
    """One that cannot open anything for a while, below one directory."""

    closed = ""

    def listdir(self, path: str) -> list[str]:
        if self.closed and self.closed in path:
            raise OSError(EMFILE, "too many open files")
        return super().listdir(path)


def test_what_is_new_and_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = NarrowDisk()
    rig = Rig(engine=FileEngine(str(tmp_path / "data"), FILES, disk=disk))
    answers: list[tuple[Topic | None, PenstockError | None]] = []

    def ask(name: str) -> Topic | None:
        return rig.host.topic(name, lambda *answer: answers.append(answer))

    disk.closed = "/t"
    for asked in (1, 2):
        assert ask("t") is None
        rig.settle()
        rig.loop.advance(1)  # housekeeping passes
        assert len(answers) == asked
        assert isinstance(answers[-1][1], OperatingError)
    disk.closed = ""
    topic = ask("t")
    assert topic is not None
    turn = rig.publish(topic, b"1")
    rig.settle()
    assert turn.over
    assert turn.error is None

    disk.closed = "/channels/"
    now_ns = rig.clock.now_ns()
    for _ in range(2):
        with pytest.raises(OperatingError):
            topic.channel("c", now_ns)
        with pytest.raises(OperatingError):
            topic.publish_delayed([b"2"], 1, now_ns + SECOND // 2, now_ns)
        rig.settle()
        rig.loop.advance(1)
    assert not topic.channels
    assert len(topic.lanes()) == 1
    disk.closed = ""
    consumer = subscribe(rig, topic)
    topic.publish_delayed([b"2"], 1, now_ns + SECOND // 2, now_ns)
    for _ in range(3):
        rig.host.wake()
        rig.settle()
        rig.loop.advance(1)
    assert consumer.bodies == [b"1", b"2"]
    rig.engine.close()


def test_a_problem_is_over_when_the_topic_could_be_opened(tmp_path: Path) -> None:
    rig = Rig(engine=FileEngine(str(tmp_path / "data"), FILES))
    rig.publish(rig.topic("t"), b"1")
    rig.settle()
    rig.engine.close()
    disk = NarrowDisk()
    rig = Rig(engine=FileEngine(str(tmp_path / "data"), FILES, disk=disk))
    disk.closed = "/t"
    rig.host.topic("t", lambda *_: None)
    rig.settle()
    assert [*rig.host.problems] == ["t"]
    disk.closed = ""
    assert opened(rig, "t").ready_lanes()[0].durable_end == 1
    assert not rig.host.problems
    rig.engine.close()


def test_what_slept_long_survives_a_power_cut_just_after_it_moved(
    start: Start, tmp_path: Path
) -> None:
    rig = start("written")
    topic = rig.topic("t")
    topic.channel("c", rig.clock.now_ns())
    now_ns = rig.clock.now_ns()
    topic.publish_delayed([b"slept"], 5, now_ns + 60 * SECOND, now_ns)
    rig.host.wake()
    for _ in range(4):
        rig.settle()
        rig.loop.advance(15)
    rig.loop.advance(1)
    rig.settle()
    ready = topic.ready_lanes()[0]
    assert (ready.durable_end, ready.synced_end) == (1, 0)
    rig.loop.advance(0.1)
    rig.settle()
    assert rig.host.journals.cover(rig.clock.monotonic_ns())
    assert ready.synced_end == 0
    rig.engine.close()
    # what the power cut took
    for path in tmp_path.glob("data/topics/t/0/ready*"):
        path.unlink()
    rig = start("written")
    topic = opened(rig, "t")
    consumer = subscribe(rig, topic)
    rig.clock.advance(120)
    for _ in range(3):
        rig.loop.advance(1)
        rig.settle()
    assert consumer.bodies == [b"slept"]


def test_publishes_leave_the_reserve_to_consumers(tmp_path: Path) -> None:
    files = FileOptions(reserve_bytes=1 << 20)
    seconds = [0.0]
    now = partial(seconds.__getitem__, 0)
    rig = Rig(engine=FileEngine(str(tmp_path / "data"), files, now=now))
    topic = rig.topic("t")
    consumer = subscribe(rig, topic)
    rig.publish(topic, b"1")
    rig.settle()
    failpoint.arm("journal.write=enospc")  # the journal goes on, on space that the reserve gave up
    rig.loop.advance(0.1)
    rig.settle()
    assert not journals_fail(rig)
    assert consumer.bodies == [b"1"]
    rig.loop.advance(0.25)
    with pytest.raises(DiskFull):
        rig.publish(topic, b"2")
    seconds[0] = 2.0
    rig.loop.advance(0.25)
    rig.publish(topic, b"3")
    rig.settle()
    assert consumer.bodies == [b"1", b"3"]
    rig.engine.close()


def test_an_ephemeral_channel_keeps_nothing_of_what_happened(start: Start) -> None:
    rig = start()
    topic = rig.topic("t")
    consumer = subscribe(rig, topic, "watch#ephemeral")
    rig.publish(topic, b"1")
    rig.settle()
    rig.loop.advance(0.1)
    rig.settle()
    assert consumer.bodies == [b"1"]
    channel = topic.channels["watch#ephemeral"]
    assert not channel.records
    assert not rig.host.journals.open
    topic.delete_channel(channel.name, rig.clock.now_ns())
    rig.settle()


def test_what_sleeps_is_handed_out_although_the_delay_lane_takes_no_more(start: Start) -> None:
    rig = start()
    topic = rig.topic("t")
    consumer = subscribe(rig, topic)

    def delay(body: bytes, seconds: int) -> Turn:
        now_ns = rig.clock.now_ns()
        due_ns = now_ns + seconds * SECOND
        turn = topic.publish_delayed([body], len(body), due_ns, now_ns)
        rig.host.wake()
        return turn

    kept = delay(b"kept", 10)
    rig.settle()
    assert kept.error is None
    failpoint.arm("log.write=eio")
    turns = [delay(b"fails", 5)]
    rig.loop.turn()
    turns.append(delay(b"behind it", 5))
    lane = topic.partitions[0].delay
    assert lane is not None
    idle: list[Lane] = []
    rig.host.committer.when_idle(lane, partial(idle.append, lane))
    rig.settle()
    assert idle == [lane]
    assert all(turn.error is not None for turn in turns)
    for _ in range(3):
        rig.loop.advance(5)
        rig.settle()
    assert consumer.bodies == [b"kept"]
