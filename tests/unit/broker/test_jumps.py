"""What was emptied from a topic while it was paused: cursors jump over it once they get there."""

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import Channel
from penstock.broker.topic import Topic
from tests.unit.broker.rig import Consumer, commit


def publish(topic: Topic, body: bytes) -> None:
    topic.publish([body], len(body), 0)
    commit(topic.partitions[0].ready[0])


def emptied(ready: int) -> tuple[Broker, Channel, Consumer]:
    """One message, then one that was emptied, then one more."""
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    channel = topic.channel("billing", 0)
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, ready)
    publish(topic, b"before")
    topic.pause()
    publish(topic, b"emptied")
    topic.empty()
    topic.unpause()
    publish(topic, b"behind")
    broker.dirty_channels.clear()
    return broker, channel, consumer


def test_what_comes_behind_is_handed_out_in_the_same_turn() -> None:
    broker, channel, consumer = emptied(10)
    assert channel.depth() == 2
    channel.pump(0, 0)
    assert consumer.bodies == [b"before", b"behind"]
    assert not broker.dirty_channels
    assert channel.depth() == 0


def test_what_comes_behind_waits_for_credit_only() -> None:
    _, channel, consumer = emptied(1)
    channel.pump(0, 0)
    assert channel.depth() == 1
    channel.finish(consumer.subscriber, consumer.ids, 0)
    channel.pump(0, 0)
    assert consumer.bodies == [b"before", b"behind"]


def test_emptying_the_channel_empties_behind_it_too() -> None:
    _, channel, consumer = emptied(10)
    channel.empty(0, ())
    channel.pump(0, 0)
    assert consumer.bodies == []
    assert channel.depth() == 0
