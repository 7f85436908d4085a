"""Deleted topics and channels: the state says so before anything of them goes."""

from penstock.broker.topic import Topic
from penstock.errors import DiskFull
from penstock.storage.memory import MemoryEngine
from tests.unit.runtime.rig import FullState, Rig, is_over


def rig_with_topic() -> tuple[Rig, Topic, FullState]:
    engine = MemoryEngine()
    state = engine.state = FullState()
    rig = Rig(engine=engine)
    topic = rig.topic("t")
    topic.channel("a", rig.clock.now_ns())
    rig.publish(topic, b"1")
    rig.settle()
    return rig, topic, state


def test_the_files_go_when_the_state_has_forgotten_the_name() -> None:
    rig, _, state = rig_with_topic()
    turn = rig.host.delete_topic("t")
    rig.loop.turn()
    assert len(rig.pool.jobs) == 1
    assert not is_over(turn)
    rig.pool.run()
    assert turn.over
    assert turn.error is None
    assert rig.engine.lanes("t", 0) == [0]
    assert [key for key, _ in state.items("gone/")] == ["gone/t"]
    rig.settle()
    assert rig.engine.lanes("t", 0) == []
    assert not [*state.items("gone/")]


def test_who_asks_for_the_name_meanwhile_waits() -> None:
    rig, old, _ = rig_with_topic()
    got: list[Topic | None] = []
    rig.host.delete_topic("t")
    assert rig.host.topic("t", lambda topic, error: got.append(topic)) is None
    rig.loop.turn()
    rig.pool.run()
    assert not got
    rig.settle()
    assert got[0] is not None
    assert got[0] is not old
    assert got[0].partitions[0].ready[0].log != old.partitions[0].ready[0].log


def test_a_channels_journal_goes_when_the_state_has_forgotten_it() -> None:
    rig, topic, state = rig_with_topic()
    turn = rig.host.delete_channel(topic, "a")
    free: list[bool] = []
    assert rig.host.is_leaving("t", "a", lambda: free.append(True))
    rig.loop.turn()
    rig.pool.run()
    assert turn.over
    assert not free
    assert [key for key, _ in state.items("gone/")] == ["gone/t/a"]
    rig.settle()
    assert free
    assert not rig.host.is_leaving("t", "a", lambda: free.append(True))
    assert not [*state.items("gone/")]


def test_a_full_disk_only_puts_it_off() -> None:
    rig, _, state = rig_with_topic()
    state.full = True
    turn = rig.host.delete_topic("t")
    rig.settle()
    assert isinstance(turn.error, DiskFull)
    assert rig.engine.lanes("t", 0) == [0]
    state.full = False
    rig.loop.advance(1)
    rig.settle()
    assert rig.engine.lanes("t", 0) == []


def test_the_next_run_removes_what_this_one_did_not() -> None:
    rig, _, _ = rig_with_topic()
    rig.host.delete_topic("t")
    rig.loop.turn()
    rig.pool.run()
    after = Rig(engine=rig.engine)
    assert after.engine.lanes("t", 0) == []
    after.host.wake()
    after.settle()
    assert not [*after.engine.state.items("gone/")]


def test_what_waits_for_a_commit_is_refused() -> None:
    rig, topic, _ = rig_with_topic()
    turn = rig.publish(topic, b"2")
    rig.host.delete_topic("t")
    assert turn.over
    assert turn.error is not None
    rig.settle()
    assert not rig.host.broker.uncommitted_bytes
