"""Who gets what: a fair share each, and never anything behind a mark."""

import pytest

from penstock.broker.broker import Broker, BrokerOptions, TopicPolicy
from penstock.broker.channel import GATHERING_NS, Channel
from penstock.broker.handout import DELIVERY_BYTES_MAX
from penstock.protocol.block import gather
from tests.unit.broker.rig import Consumer, commit


def pump(channel: Channel, at_ns: int) -> None:
    while channel.dirty:
        channel.pump(at_ns, at_ns)


def test_consumers_share_what_is_ready() -> None:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    channel = topic.channel("billing", 0)
    consumers = [Consumer(f"c{number}") for number in range(4)]
    for consumer in consumers:
        channel.subscribe(consumer.subscriber)
        channel.set_ready(consumer.subscriber, 2500)
    topic.publish([b"x"] * 1000, 1000, 0)
    commit(topic.partitions[0].ready[0])
    channel.pump(0, 0)
    assert [len(consumer.got) for consumer in consumers] == [250] * 4


def test_who_arrives_first_leaves_the_others_their_part() -> None:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    channel = topic.channel("billing", 0)
    topic.publish([b"x"] * 1000, 1000, 0)
    commit(topic.partitions[0].ready[0])
    consumers = [Consumer(f"c{number}") for number in range(4)]
    for consumer in consumers:
        channel.subscribe(consumer.subscriber)
    for at_ns, consumer in enumerate(consumers[:3]):
        channel.arrive(consumer.subscriber, at_ns)
        channel.set_ready(consumer.subscriber, 2500)
        pump(channel, at_ns)
    assert [len(consumer.got) for consumer in consumers] == [250, 250, 250, 0]
    channel.finish(consumers[0].subscriber, consumers[0].ids[:100], 9)
    pump(channel, 9)
    assert len(consumers[0].got) == 250 + 75  # its part of what is outstanding by now
    channel.on_alarm(GATHERING_NS, GATHERING_NS)  # the third's is not over
    assert channel.depth() == 175
    channel.on_alarm(GATHERING_NS + 2, GATHERING_NS + 2)
    pump(channel, GATHERING_NS + 2)
    assert not channel.depth()  # whoever has not come by then misses its part
    assert sum(len(consumer.got) for consumer in consumers) == 1000


def test_a_consumer_by_itself_waits_for_nobody() -> None:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    channel = topic.channel("billing", 0)
    topic.publish([b"x"] * 1000, 1000, 0)
    commit(topic.partitions[0].ready[0])
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    channel.arrive(consumer.subscriber, 0)
    channel.set_ready(consumer.subscriber, 2500)
    channel.pump(0, 0)
    assert len(consumer.got) == 1000


def test_a_sample_that_passes_over_more_than_a_turn_s_bytes_goes_on() -> None:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    channel = topic.channel("billing", 0)
    consumer = Consumer(sample_rate=1)
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 300)
    large = [b"x" * (DELIVERY_BYTES_MAX // 2)] * 10
    topic.publish(large, DELIVERY_BYTES_MAX * 5, 0)
    commit(topic.partitions[0].ready[0])
    for _ in range(10):
        if channel.dirty:
            channel.pump(0, 0)
    assert channel.depth() == 0


@pytest.mark.parametrize("straddling", [0, 1])
def test_a_block_that_was_read_over_the_pause_mark_is_handed_out_up_to_it(straddling: int) -> None:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0, TopicPolicy(partitions=2))
    lanes = [partition.ready[0] for partition in topic.partitions]
    lane, other = lanes[straddling], lanes[1 - straddling]
    channel = topic.channel("billing", 0)
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 10)
    other.publish([b"other"] * 3, 15, 0)
    commit(other)
    lane.publish([b"before"], 6, 0)
    stored = commit(lane)
    topic.pause()
    lane.publish([b"behind"] * 3, 18, 0)
    stored += commit(lane)
    broker.cache.forget(lane.shelf)
    [joined] = gather(stored)
    broker.cache.add(lane.shelf, joined)
    channel.pump(0, 0)
    assert sorted(consumer.bodies) == [b"before", *[b"other"] * 3]
    topic.unpause()
    channel.pump(0, 0)
    assert consumer.bodies[4:] == [b"behind"] * 3
