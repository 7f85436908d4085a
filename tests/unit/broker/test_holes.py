"""Cursors pass over seqs that no message ever had, without asking the disk for them."""

from penstock.broker.broker import Broker, BrokerOptions
from penstock.errors import DiskFull
from tests.unit.broker.rig import Consumer, commit, refuse


def test_publishes_that_failed_behind_the_cursor_are_passed_over() -> None:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    lane = topic.partitions[0].ready[0]
    lane.restore(0, 1, 1, 0, 100)  # one message, and a reservation that the last run left
    consumer = Consumer()
    topic.channel("mail", 0)
    channel = topic.channel("billing", 0)  # not the first one: its cursor is at 100
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 10)
    for _ in range(3):
        lane.publish([b"refused"], 7, 0)
        refuse(lane, DiskFull("no room"))
    lane.publish([b"kept"], 4, 0)
    commit(lane)
    channel.pump(0, 0)
    assert consumer.bodies == [b"kept"]
    assert broker.wants == []
    assert lane.hole_ends == {1: 103}  # the cursor stood within
