"""Seqs of a lane that is not synced: reserved ahead, given back in order, never given again."""

from penstock.broker.broker import Broker, BrokerOptions, TopicPolicy
from penstock.broker.lanes import RESERVATION, Lane
from penstock.errors import OperatingError
from tests.unit.broker.rig import commit


def lane_of(broker: Broker) -> Lane:
    [lane] = broker.make_topic("t", 0, TopicPolicy(durability="written")).lanes()
    return lane


def publish(lane: Lane) -> int:
    lane.publish([b"x"], 1, 0)
    [block] = commit(lane)
    return block.base


def kept(broker: Broker) -> int:
    """The end of the reservation that a broker after this one finds."""
    values = dict(broker.state_changes)
    value = values["seq/1"]
    assert value is not None
    return int(value)


def next_run(reserved_end: int, end: int = 0) -> tuple[Broker, Lane]:
    """Another broker on the same state, its log at ``end``."""
    broker = Broker(BrokerOptions())
    lane = lane_of(broker)
    lane.restore(0, end, end, 0, reserved_end)
    return broker, lane


def test_after_a_kill_seqs_go_on_behind_the_reservation() -> None:
    broker = Broker(BrokerOptions())
    assert publish(lane_of(broker)) == 0
    assert kept(broker) == 1 + RESERVATION
    _, lane = next_run(kept(broker))
    assert publish(lane) == 1 + RESERVATION


def test_after_a_stop_in_order_nothing_is_skipped() -> None:
    broker = Broker(BrokerOptions())
    lane = lane_of(broker)
    publish(lane)
    broker.return_unused(lane)
    _, lane = next_run(kept(broker), end=1)
    assert publish(lane) == 1


def test_a_stop_in_order_remembers_what_a_power_cut_took() -> None:
    """The log is empty, and was closed well; its seq 0 was seen all the same."""
    broker = Broker(BrokerOptions())
    publish(lane_of(broker))
    broker, lane = next_run(kept(broker))
    broker.return_unused(lane)
    _, lane = next_run(1 + RESERVATION)
    assert publish(lane) == 1 + RESERVATION


def test_a_lane_that_goes_on_reserves_anew() -> None:
    broker = Broker(BrokerOptions())
    lane = lane_of(broker)
    publish(lane)
    broker.return_unused(lane)
    broker.state_changes.clear()
    assert publish(lane) == 1
    assert kept(broker) == 2 + RESERVATION


def test_a_lane_that_takes_no_more_keeps_its_reservation() -> None:
    broker = Broker(BrokerOptions())
    lane = lane_of(broker)
    publish(lane)
    lane.refusal = OperatingError("the disk failed")
    broker.return_unused(lane)
    assert kept(broker) == 1 + RESERVATION


def test_ephemeral_topics_leave_nothing_in_the_state() -> None:
    broker = Broker(BrokerOptions())
    for index in range(3):
        topic = broker.make_topic(f"t{index}#ephemeral", 0)
        topic.publish([b"x"], 1, 0)
        commit(topic.ready_lanes()[0])
        broker.delete_topic(topic.name, 0)
    assert {key for key, _ in broker.state_changes} == {"tag", "commit"}
