"""What one run of the broker answered, the next one has."""

import pytest

from penstock.broker.topic import Topic
from penstock.errors import DiskFull
from tests.unit.broker.rig import SECOND, Consumer
from tests.unit.runtime.rig import Rig


def next_run(rig: Rig) -> Rig:
    """A broker on what this one has stored, as after a kill."""
    return Rig(engine=rig.engine)


def opened(rig: Rig, name: str) -> Topic:
    """A topic of an earlier run."""
    rig.host.topic(name, lambda topic, error: None)
    rig.settle()
    return rig.host.broker.topics[name]


def delay(rig: Rig, topic: Topic, body: bytes) -> None:
    now_ns = rig.clock.now_ns()
    turn = topic.publish_delayed([body], len(body), now_ns + SECOND, now_ns)
    rig.host.wake()
    rig.settle()
    assert turn.over
    assert turn.error is None


def test_delayed_after_the_first_delayed_message_was_refused() -> None:
    """The refused one made the delay lane, and nobody wrote down that there is one."""
    rig = Rig()
    topic = rig.topic("t")
    rig.publish(topic, b"1")
    rig.settle()
    rig.host.broker.refusal = DiskFull("no room")
    with pytest.raises(DiskFull):
        delay(rig, topic, b"refused")
    rig.host.broker.refusal = None
    delay(rig, topic, b"kept")
    topic = opened(next_run(rig), "t")
    assert len(topic.partitions[0].schedule) == 1


def test_what_is_published_behind_an_ephemeral_channel_of_the_run_before() -> None:
    rig = Rig()
    topic = rig.topic("t")
    topic.channel("watch#ephemeral", rig.clock.now_ns())
    rig.publish(topic, b"watched")
    rig.settle()
    rig = next_run(rig)
    topic = opened(rig, "t")
    rig.publish(topic, b"unclaimed")
    rig.settle()
    rig = next_run(rig)
    topic = opened(rig, "t")
    channel = topic.channel("c", rig.clock.now_ns())
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 10)
    rig.host.wake()
    rig.settle()
    assert consumer.bodies == [b"unclaimed"]


def test_topics_that_the_start_opens_do_not_stand_before_everything_else() -> None:
    rig = Rig()
    for number in range(50):
        delay(rig, rig.topic(f"t{number}"), b"slept")
    rig = next_run(rig)
    assert 0 < len(rig.pool.jobs) < 10
    turn = rig.publish(rig.topic("new"), b"1")
    for _ in range(5):
        rig.loop.turn()
        rig.pool.run(len(rig.pool.jobs))
    assert turn.over
    rig.settle()
    assert len(rig.host.broker.topics) == 51
