"""Cold reads: who wanted a block gets on with it, however little the cache holds."""

from tests.unit.broker.rig import Consumer
from tests.unit.runtime.rig import Rig


def test_a_read_does_not_push_out_what_it_was_for() -> None:
    rig = Rig("written")
    topic = rig.topic("t")
    lane = topic.ready_lanes()[0]
    rig.publish(topic, b"small")
    rig.settle()
    lane.skip_to(lane.next_seq + 1)  # a hole: the blocks are not joined when they are read
    rig.publish(topic, b"large" * 1000)
    rig.settle()
    cache = rig.host.broker.cache
    cache.forget(lane.shelf)
    cache.bytes_max = 1000
    consumer = Consumer()
    channel = topic.channel("c", 0)
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 10)
    rig.host.wake()
    for _ in range(10):
        rig.loop.turn()
        rig.pool.run(len(rig.pool.jobs))
    assert consumer.bodies == [b"small", b"large" * 1000]
