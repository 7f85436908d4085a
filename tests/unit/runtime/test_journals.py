"""Channels' journals on their way to storage: one that fails does not hold up the others."""

import pytest

from penstock.broker import channel as channel_module
from penstock.broker.channel import Channel
from penstock.errors import DiskFull, LogFrozen, OperatingError
from penstock.protocol.journal import EMPTIED, Batch
from penstock.storage.memory import MemoryJournal
from tests.unit.broker.rig import Consumer
from tests.unit.runtime.rig import Rig, is_over


class BrokenJournal(MemoryJournal):
    """A journal whose writes fail while there is an ``error``."""

    error: OperatingError | None = None

    def write(self) -> None:
        if self.error is not None:
            raise self.error
        super().write()


def rig_with_channels() -> tuple[Rig, Channel, Channel, BrokenJournal]:
    rig = Rig()
    topic = rig.topic("t")
    broken = topic.channel("broken", rig.clock.now_ns())
    whole = topic.channel("whole", rig.clock.now_ns())
    journal = BrokenJournal()
    journal.recover()
    rig.host.journals.open[broken] = journal
    rig.settle()
    return rig, broken, whole, journal


def written(rig: Rig, channel: Channel) -> list[Batch]:
    return [*rig.host.journals.open[channel].history()]


@pytest.mark.parametrize("kind", [DiskFull, LogFrozen])
def test_the_others_are_written(kind: type[OperatingError]) -> None:
    rig, broken, whole, journal = rig_with_channels()
    journal.error = kind("no")
    for channel in (broken, whole):
        channel.empty(rig.clock.now_ns(), ())
    rig.host.wake()
    rig.loop.turn()
    rig.loop.advance(1)
    rig.settle()
    assert written(rig, whole)
    assert ("t/broken" in rig.host.problems) == (kind is LogFrozen)


def test_what_there_was_no_room_for_is_written_when_there_is() -> None:
    rig, broken, _, journal = rig_with_channels()
    journal.error = DiskFull("no")
    broken.empty(rig.clock.now_ns(), ())
    rig.host.wake()
    rig.loop.turn()
    rig.loop.advance(1)
    rig.settle()
    assert not written(rig, broken)
    assert not rig.host.journals.cover(rig.clock.monotonic_ns())
    journal.error = None
    rig.loop.advance(1)
    rig.settle()
    assert [record[0] for batch in written(rig, broken) for record in batch.records] == [EMPTIED]


def test_an_emptied_channel_is_answered_when_that_is_synced() -> None:
    rig, _, whole, journal = rig_with_channels()
    topic = rig.topic("t")
    rig.host.empty_channel(topic, "whole")  # another flush is under way
    turn = rig.host.empty_channel(topic, "whole")
    assert not is_over(turn)
    rig.settle()
    assert turn.over
    assert turn.error is None
    assert len(written(rig, whole)) == 2
    journal.error = LogFrozen("no")
    turn = rig.host.empty_channel(topic, "broken")
    other = rig.host.empty_channel(topic, "whole")
    rig.settle()
    assert turn.error is not None
    assert other.error is None


def test_a_channel_whose_journal_stalls_hands_out_no_more_than_it_can_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "RECORDS_MAX", 10)
    rig = Rig()
    topic = rig.topic("t")
    consumer = Consumer()
    channel = topic.channel("c", rig.clock.now_ns())
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 1)
    rig.publish(topic, *(b"%d" % number for number in range(100)))
    rig.settle()
    rig.loop.advance(1)  # a write of the journals is under way, and stays so

    def finish_all() -> None:
        while got := consumer.take():
            now_ns = rig.clock.now_ns()
            channel.finish(consumer.subscriber, [number for number, _, _ in got], now_ns)
            rig.host.wake()
            rig.loop.turn()

    finish_all()
    finished = channel.finish_count
    assert finished < 15
    assert len(channel.records) < 15
    rig.settle()  # the disk goes on
    while channel.finish_count < 100:
        rig.loop.advance(1)
        rig.settle()
        finish_all()
        assert channel.finish_count > finished
        finished = channel.finish_count
