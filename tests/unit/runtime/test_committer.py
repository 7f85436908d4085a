"""Group commit, step by step: what happens between the turns and the disk's answers."""

from tests.unit.runtime.rig import Rig


def test_what_is_published_while_state_is_saved_is_committed_once() -> None:
    rig = Rig("written")
    topic = rig.topic("t")
    first = rig.publish(topic, b"1")
    rig.loop.turn()  # the block waits for the new topic's state
    second = rig.publish(topic, b"2")  # and its lane has something to commit again
    rig.pool.run()  # which the end of the first commit sees too
    assert first.over
    rig.settle()
    assert second.over
    assert rig.publish(topic, b"3") is not second
    rig.settle()
    assert topic.ready_lanes()[0].durable_end == 3
