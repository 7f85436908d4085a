"""Consumers' names and numbers, as the journal knows them."""

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import Channel
from penstock.broker.restore import replay, snapshot
from tests.unit.broker.rig import Consumer


def channel_of(broker: Broker) -> Channel:
    return broker.make_topic("t", 0).channel("c", 0)


def test_those_who_come_and_go_leave_nothing_behind() -> None:
    channel = channel_of(Broker(BrokerOptions()))
    for index in range(100):
        consumer = Consumer(f"10.0.0.1:{index}")
        channel.subscribe(consumer.subscriber)
        channel.unsubscribe(consumer.subscriber, 0)
    assert snapshot(channel, 0).names == {}
    assert channel.take_records().names == {}


def test_a_number_stands_for_one_name_only() -> None:
    channel = channel_of(Broker(BrokerOptions()))
    first, same, other = Consumer("a"), Consumer("a"), Consumer("b")
    for consumer in (first, same, other):
        channel.subscribe(consumer.subscriber)
    assert first.subscriber.number == same.subscriber.number != other.subscriber.number
    channel.unsubscribe(first.subscriber, 0)
    batch = channel.take_records()
    assert batch.names == {1: "a", 2: "b"}
    channel = channel_of(Broker(BrokerOptions()))
    replay(channel, [batch])
    late = Consumer("c")
    channel.subscribe(late.subscriber)
    assert late.subscriber.number == 3
    assert snapshot(channel, 0).names == {3: "c"}
