"""Messages that came from the delay lane keep its ids, and are known by no others."""

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import NOT_IN_FLIGHT, Channel
from penstock.broker.lanes import Lane, Moved
from penstock.protocol.block import form_frames
from tests.unit.broker.rig import SECOND, Consumer, commit

IDS = [(999 << 40) | number for number in (3, 5, 8)]


def handed_out() -> tuple[Channel, Lane, Consumer]:
    """Three moved messages, between one plain one before and one behind, in flight."""
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    lane = topic.partitions[0].ready[0]
    consumer = Consumer()
    channel = topic.channel("billing", 0)
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 10)
    frames = [form_frames(number, [(5, [b"moved"])])[1] for number in IDS]
    lane.publish([b"before"], 6, 0)
    lane.publish(frames, sum(map(len, frames)), 0, moved=Moved(frames, IDS, (5, 8)))
    lane.publish([b"behind"], 6, 0)
    commit(lane)
    channel.pump(0, 0)
    assert consumer.ids == [lane.id_of(0), *IDS, lane.id_of(4)]
    return channel, lane, consumer


def test_their_seqs_are_no_ids() -> None:
    channel, lane, consumer = handed_out()
    subscriber = consumer.subscriber
    for seq in (1, 2, 3):
        assert channel.finish(subscriber, [lane.id_of(seq)], 0) == [(0, NOT_IN_FLIGHT)]
        assert channel.requeue(subscriber, lane.id_of(seq), 0, 0) == NOT_IN_FLIGHT
        assert channel.touch(subscriber, lane.id_of(seq), 0) == NOT_IN_FLIGHT
    run = [lane.id_of(seq) for seq in range(5)]
    assert channel.finish(subscriber, run, 0) == [(n, NOT_IN_FLIGHT) for n in (1, 2, 3)]
    assert channel.finish(subscriber, IDS, 0) == []
    assert not channel.foreign


def test_neither_after_they_were_touched_or_handed_out_again() -> None:
    channel, lane, consumer = handed_out()
    subscriber = consumer.subscriber
    assert channel.touch(subscriber, IDS[1], SECOND) is None
    assert channel.finish(subscriber, [lane.id_of(2)], 0) == [(0, NOT_IN_FLIGHT)]
    assert channel.finish(subscriber, [lane.id_of(3)], 0) == [(0, NOT_IN_FLIGHT)]
    channel.unsubscribe(subscriber, 0)
    channel.subscribe(subscriber)
    channel.set_ready(subscriber, 10)
    channel.pump(0, 0)
    run = [lane.id_of(seq) for seq in range(5)]
    assert channel.finish(subscriber, run, 0) == [(n, NOT_IN_FLIGHT) for n in (1, 2, 3)]
    assert channel.finish(subscriber, IDS, 0) == []
