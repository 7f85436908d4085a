"""Who asked to be called at a time is called then, and asks once for the next time."""

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import ALARM_MESSAGES_MAX, Channel
from penstock.broker.lanes import Lane
from penstock.broker.topic import Topic
from penstock.errors import OperatingError
from tests.unit.broker.rig import SECOND, TIMEOUT, Consumer, commit

MESSAGES = 40


def broker_with(consumer: Consumer) -> tuple[Broker, Topic, Channel]:
    broker = Broker(BrokerOptions(), seed=1)
    topic = broker.make_topic("orders", 0)
    channel = topic.channel("billing", 0)
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, MESSAGES)
    return broker, topic, channel


def ring(broker: Broker, now_ns: int) -> int:
    """What the runtime's timer does; returns how many calls that was."""
    calls = 0
    for heap in (broker.alarms, broker.wakes):
        due = [entry for entry in heap if entry[0] <= now_ns]
        heap[:] = sorted([entry for entry in heap if entry[0] > now_ns])
        for _, _, target in due:
            target.on_alarm(now_ns, now_ns)
            calls += 1
    return calls


def test_deadlines_and_sleepers_of_one_channel_do_not_multiply_its_alarms() -> None:
    consumer = Consumer(timeout_ns=SECOND)
    broker, topic, channel = broker_with(consumer)
    topic.publish([b"x"] * MESSAGES, MESSAGES, 0)
    commit(topic.partitions[0].ready[0])
    calls = 0
    for step in range(100):
        now_ns = step * SECOND // 7
        calls += ring(broker, now_ns)
        channel.pump(now_ns, now_ns)
        for index, (number, _, _) in enumerate(consumer.take()):
            if index % 2:
                channel.requeue(consumer.subscriber, number, (index % 5 + 1) * SECOND // 3, now_ns)
        assert len(broker.alarms) + len(broker.wakes) <= 8
    assert channel.timeout_count and calls <= 200


def test_a_touched_message_is_not_timed_out_at_its_first_deadline() -> None:
    consumer = Consumer(timeout_ns=10 * SECOND)
    broker, topic, channel = broker_with(consumer)
    topic.publish([b"x"], 1, 0)
    commit(topic.partitions[0].ready[0])
    channel.pump(0, 0)
    assert channel.touch(consumer.subscriber, consumer.ids[0], 6 * SECOND) is None
    ring(broker, 15 * SECOND)
    assert channel.in_flight_count() == 1
    ring(broker, 16 * SECOND)
    assert channel.in_flight_count() == 0 and channel.timeout_count == 1


def test_messages_delayed_ever_shorter_do_not_multiply_the_alarms() -> None:
    consumer = Consumer()
    broker, topic, _ = broker_with(consumer)
    partition = topic.partitions[0]
    for count in range(50):
        topic.publish_delayed([b"x"], 1, (100 - count) * SECOND, 0)
        assert partition.delay is not None
        commit(partition.delay)
    for second in range(1, 200):
        ring(broker, second * SECOND)
        lane = partition.ready[0]
        if lane.pending:
            commit(lane)
    assert len(broker.wakes) == 0
    assert partition.ready[0].durable_end == 50


def delayed(topic: Topic, due_ns: int) -> Lane:
    topic.publish_delayed([b"x"], 1, due_ns, 0)
    lane = topic.partitions[0].delay
    assert lane is not None
    return lane


def test_what_is_due_does_not_ask_again_and_again_while_it_waits_for_a_commit() -> None:
    broker, topic, _ = broker_with(Consumer())
    commit(delayed(topic, 10 * SECOND))
    lane = delayed(topic, 5 * SECOND)  # not durable yet, and nothing may pass it
    assert ring(broker, 11 * SECOND) == 1
    assert ring(broker, 11 * SECOND) == 0
    commit(lane)
    assert ring(broker, 11 * SECOND) == 1
    commit(topic.partitions[0].ready[0])
    assert topic.partitions[0].ready[0].durable_end == 2


def test_what_sleeps_moves_when_a_publish_that_it_waited_for_was_refused() -> None:
    broker, topic, _ = broker_with(Consumer())
    commit(delayed(topic, 10 * SECOND))
    lane = delayed(topic, 5 * SECOND)
    lane.refuse_pending(OperatingError("the disk failed"))
    ring(broker, 11 * SECOND)
    commit(topic.partitions[0].ready[0])
    assert topic.partitions[0].ready[0].durable_end == 1


def ask_for(broker: Broker, channel: Channel, consumer: Consumer, count: int) -> list[int]:
    """Hand out until the consumer has so many more; returns their ids."""
    got: list[int] = []
    channel.set_ready(consumer.subscriber, count)
    while broker.dirty_channels:
        broker.dirty_channels.pop().pump(0, 0)
        got += [number for number, _, _ in consumer.take()]
    assert len(got) == count
    return got


def test_deadlines_that_are_put_off_for_ever_take_no_more_memory() -> None:
    consumer = Consumer()
    broker, topic, channel = broker_with(consumer)
    topic.publish([b"x"] * MESSAGES, MESSAGES, 0)
    commit(topic.partitions[0].ready[0])
    ids = ask_for(broker, channel, consumer, MESSAGES)
    for at_ns in range(1, 200):
        for number in ids:
            assert channel.touch(consumer.subscriber, number, at_ns) is None
        assert len(channel.deadlines) <= 4 * MESSAGES + 64
    channel.on_alarm(0, TIMEOUT + 198)
    assert channel.timeout_count == 0
    channel.on_alarm(0, TIMEOUT + 199)
    assert channel.timeout_count == MESSAGES


def test_what_times_out_and_wakes_at_once_is_dealt_with_in_turns() -> None:
    consumer = Consumer()
    broker, topic, channel = broker_with(consumer)
    count = 5 * ALARM_MESSAGES_MAX
    topic.publish([b"x"] * count, count, 0)
    commit(topic.partitions[0].ready[0])
    ids = ask_for(broker, channel, consumer, count)
    for number in ids[::2]:
        assert channel.requeue(consumer.subscriber, number, SECOND, 0) is None
    while channel.depth() < count:
        dealt_with = channel.depth()
        channel.on_alarm(2 * TIMEOUT, 2 * TIMEOUT)
        assert 0 < channel.depth() - dealt_with <= ALARM_MESSAGES_MAX
        asked_for = [at_ns for at_ns, _, _ in broker.alarms + broker.wakes]
        assert channel.depth() == count or min(asked_for) <= 2 * TIMEOUT
    channel.verify()


def test_a_channel_that_is_deleted_leaves_nothing_with_its_alarms() -> None:
    consumer = Consumer()
    broker, topic, channel = broker_with(consumer)
    topic.publish([b"x"] * MESSAGES, MESSAGES, 0)
    commit(topic.partitions[0].ready[0])
    for number in ask_for(broker, channel, consumer, MESSAGES):
        channel.requeue(consumer.subscriber, number, 10**6 * SECOND, 0)
    topic.delete_channel("billing", 0)
    assert len(broker.wakes) == 1
    assert channel.sleeping_count() == len(channel.wakes) == 0
    ring(broker, 2 * 10**6 * SECOND)
    assert len(broker.wakes) == 0
