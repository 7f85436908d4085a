"""Group commit, step by step: what happens between the turns and the disk's answers."""

from penstock.broker.topic import Topic
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


def used_topics(count: int) -> tuple[Rig, list[Topic]]:
    """Topics with a message each: no commit waits for their state any more."""
    rig = Rig("synced")
    topics = [rig.topic(f"t{number}") for number in range(count)]
    for topic in topics:
        rig.publish(topic, b"0")
    rig.settle()
    return rig, topics


def test_many_small_commits_go_together_and_the_next_group_collects_meanwhile() -> None:
    rig, topics = used_topics(5)
    turns = [rig.publish(topic, b"1") for topic in topics]
    rig.loop.turn()
    assert len(rig.pool.jobs) == 1
    again = [rig.publish(topic, b"2") for topic in topics]
    rig.publish(rig.topic("t0"), b"3")
    rig.loop.turn()
    assert len(rig.pool.jobs) == 1  # their lanes are busy
    rig.pool.run()
    assert all(turn.over for turn in turns)
    rig.loop.turn()
    assert len(rig.pool.jobs) == 1
    rig.settle()
    assert all(turn.over for turn in again)
    assert [topic.ready_lanes()[0].durable_end for topic in topics] == [4, 3, 3, 3, 3]


def test_a_large_commit_waits_for_nobody() -> None:
    rig, topics = used_topics(4)
    for topic in topics:
        rig.publish(topic, b"1")
    large = rig.publish(rig.topic("t1"), b"x" * 100_000)
    rig.loop.turn()
    assert len(rig.pool.jobs) == 2
    rig.pool.run()
    assert large.over
    rig.settle()
