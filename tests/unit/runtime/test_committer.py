"""Group commit, step by step: what happens between the turns and the disk's answers."""

from penstock.broker.topic import Topic
from penstock.errors import DiskFull, LogFrozen, OperatingError
from penstock.protocol.block import NUMBER_BITS, TAG_MAX
from penstock.storage.memory import MemoryEngine, MemoryState
from tests.unit.broker.rig import SECOND
from tests.unit.runtime.rig import FullState, Rig


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


def test_a_full_disk_under_the_state_refuses_only_while_it_is_full() -> None:
    engine = MemoryEngine()
    state = engine.state = FullState()
    rig = Rig("written", engine)
    topic = rig.topic("t")
    state.full = True
    refused = rig.publish(topic, b"refused")
    rig.settle()
    assert isinstance(refused.error, DiskFull)
    assert "the state" in rig.host.problems
    topic.pause()  # nobody waits for that
    rig.host.wake()
    rig.settle()
    state.full = False
    rig.loop.advance(1)  # somebody looks if there is room
    rig.settle()
    assert rig.host.committer.state.durable == rig.host.broker.state_version
    topic.unpause()
    kept = rig.publish(topic, b"kept")
    rig.settle()
    assert kept.over
    assert kept.error is None
    assert "the state" not in rig.host.problems
    lane = topic.ready_lanes()[0]
    stored = rig.host.committer.writers[lane].log.read(0, 1000)
    assert [block.body_at(0) for block in stored] == [b"kept"]


def test_what_moved_is_synced_sooner_than_what_was_published() -> None:
    rig = Rig("written")
    topic = rig.topic("t")
    due_ns = rig.clock.now_ns() + SECOND
    topic.publish_delayed([b"x"], 1, due_ns, rig.clock.now_ns())
    rig.host.wake()
    rig.settle()
    rig.loop.advance(1.1)
    rig.settle()
    [ready] = topic.ready_lanes()
    [partition] = topic.partitions
    assert (ready.durable_end, ready.synced_end) == (1, 0)
    rig.clock.advance(0.6)
    rig.host.committer.sync_overdue(2 * SECOND, SECOND // 2)
    rig.settle()
    assert partition.delay is not None
    assert (ready.synced_end, partition.delay.synced_end) == (1, 0)


def test_tags_that_are_used_up_refuse_only_what_needs_another_one() -> None:
    rig, topics = used_topics(3)
    rig.host.broker.next_tag = TAG_MAX + 1
    lane = topics[1].ready_lanes()[0]
    lane.skip_to((1 << NUMBER_BITS) - 1)
    turns = [rig.publish(topic, b"1", b"2") for topic in topics]
    rig.settle()
    assert all(turn.over for turn in turns)
    assert [turn.error is None for turn in turns] == [True, False, True]
    assert rig.host.broker.uncommitted_bytes == 0
    idle: list[bool] = []
    rig.host.committer.when_idle(lane, lambda: idle.append(True))
    assert idle
    again = rig.publish(topics[1], b"3")
    rig.settle()
    assert isinstance(again.error, OperatingError)
    assert "t1" in rig.host.problems


class FrozenState(MemoryState):
    """A state whose disk fails once ``broken``."""

    broken = False

    def sync(self) -> None:
        if self.broken:
            raise LogFrozen("the disk failed")
        super().sync()


def test_a_state_that_failed_refuses_only_what_needs_it() -> None:
    engine = MemoryEngine()
    state = engine.state = FrozenState()
    rig = Rig("synced", engine)
    topic, watched = rig.topic("t"), rig.topic("watched")
    now_ns = rig.clock.now_ns()
    watched.channel("only#ephemeral", now_ns)
    rig.publish(topic, b"1")
    rig.publish(watched, b"1")
    rig.settle()
    state.broken = True
    refused = rig.publish(rig.topic("new"), b"1")
    topic.channel("c", now_ns)  # so it begins later than the first one that is answered
    watched.delete_channel("only#ephemeral", now_ns)  # the state takes what comes for claimed
    kept = rig.publish(topic, b"2")
    lost = rig.publish(watched, b"2")
    rig.settle()
    assert isinstance(refused.error, OperatingError)
    assert isinstance(lost.error, OperatingError)
    assert kept.over
    assert kept.error is None
    assert "the state" in rig.host.problems
    for _ in range(8):
        rig.loop.advance(100)  # a topic whose state is not safe stays open
        rig.settle()
    assert "new" in rig.host.broker.topics


def test_a_reservation_that_is_not_safe_refuses_its_own_lane() -> None:
    engine = MemoryEngine()
    state = engine.state = FrozenState()
    rig = Rig("written", engine)
    topics = [rig.topic("t"), rig.topic("u")]
    for topic in topics:
        rig.publish(topic, b"1")
    rig.settle()
    state.broken = True
    lane = topics[0].ready_lanes()[0]
    lane.skip_to(lane.reserved_end)
    turns = [rig.publish(topic, b"2") for topic in topics]
    rig.settle()
    assert [turn.error is None for turn in turns] == [False, True]
    rig.host.broker.commit = rig.host.broker.commit_reserved
    turn = rig.publish(topics[1], b"3")
    rig.settle()
    assert isinstance(turn.error, OperatingError)
