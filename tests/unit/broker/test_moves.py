"""Due messages on their way from the delay lane to the ready lane, a turn at a time."""

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import Channel
from penstock.broker.lanes import Lane
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.protocol.block import NUMBER_BITS, Block
from tests.unit.broker.rig import SECOND, Consumer, commit


class House:
    """A topic with a delay lane, whose blocks are kept."""

    def __init__(self) -> None:
        self.broker = Broker(BrokerOptions(), seed=1)
        self.topic: Topic = self.broker.make_topic("t", 0)
        self.partition: Partition = self.topic.partitions[0]
        self.ready: Lane = self.partition.ready[0]
        self.disk: list[Block] = []

    def delay(self, body: bytes, due_ns: int) -> None:
        self.topic.publish_delayed([body], len(body), due_ns, 0)
        assert self.partition.delay is not None
        self.disk += commit(self.partition.delay)

    def forget(self) -> None:
        """Nothing is in memory any more."""
        assert self.partition.delay is not None
        self.broker.cache.forget(self.partition.delay.shelf)

    def bring(self) -> int:
        """What the runtime's reader does; returns how many reads that took."""
        reads = 0
        while self.broker.delay_wants:
            wants, self.broker.delay_wants = self.broker.delay_wants, []
            for partition, lane, seq in wants:
                [block] = [one for one in self.disk if one.base <= seq < one.end]
                self.broker.cache.add(lane.shelf, block)
                partition.go_on()
                reads += 1
        return reads

    def deliver(self, channel: Channel, consumer: Consumer) -> list[bytes]:
        channel.set_ready(consumer.subscriber, 2500)
        while self.broker.dirty_channels:
            self.broker.dirty_channels.pop().pump(0, 0)
        return [body for _, _, body in consumer.take()]


def test_a_move_holds_a_few_blocks_in_memory_whatever_is_due() -> None:
    house = House()
    channel = house.topic.channel("c", 0)
    bodies = [b"%d" % index + b"x" * (1 << 20) for index in range(10)]
    for index, body in enumerate(reversed(bodies)):
        house.delay(body, (10 - index) * SECOND)
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    got: list[bytes] = []
    for _ in range(10):
        house.partition.on_alarm(100 * SECOND, 0)
        house.bring()
        if not house.ready.pending:
            break
        assert house.ready.pending_bytes <= 6 << 20
        commit(house.ready)
        got += house.deliver(channel, consumer)
    assert got == bodies
    assert len(house.partition.schedule) == 0


def test_a_block_is_asked_for_once_however_many_of_its_messages_are_due() -> None:
    house = House()
    bodies = [b"%d" % index for index in range(100)]
    house.topic.publish_delayed(bodies, 100, SECOND, 0)
    house.delay(b"last", SECOND)
    house.forget()
    house.partition.on_alarm(2 * SECOND, 0)
    assert house.bring() == 1
    commit(house.ready)
    assert house.ready.durable_end == 101


def test_a_channel_passes_over_what_was_emptied_however_much_it_is() -> None:
    house = House()
    channel = house.topic.channel("c", 0)
    for _ in range(10):
        house.delay(b"x" * 100_000, SECOND)
    house.topic.empty_channel("c", 0)
    house.partition.on_alarm(2 * SECOND, 0)
    commit(house.ready)
    house.topic.publish([b"after"], 5, 0)
    commit(house.ready)
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    assert house.deliver(channel, consumer) == [b"after"]


def test_a_channel_is_empty_also_behind_what_was_emptied_while_paused() -> None:
    house = House()
    channel = house.topic.channel("c", 0)

    def publish(body: bytes) -> None:
        house.topic.publish([body], len(body), 0)
        commit(house.ready)

    publish(b"1")
    house.topic.pause()
    publish(b"2")
    house.topic.empty()
    house.topic.unpause()
    publish(b"3")
    house.topic.empty_channel("c", 0)
    assert channel.depth() == 0
    publish(b"4")
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    assert house.deliver(channel, consumer) == [b"4"]


def test_an_emptied_channel_gets_nothing_that_slept_whatever_its_tag() -> None:
    house = House()
    channel = house.topic.channel("c", 0)
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    house.delay(b"1", SECOND)
    delay = house.partition.delay
    assert delay is not None
    delay.skip_to((1 << NUMBER_BITS) - 1)
    house.delay(b"2", SECOND)
    house.delay(b"3", SECOND)  # the numbers of the first tag are used up
    assert len(delay.tags) == 2
    house.topic.empty_channel("c", 0)
    house.delay(b"4", SECOND)
    house.partition.on_alarm(2 * SECOND, 0)
    house.bring()
    commit(house.ready)
    assert house.deliver(channel, consumer) == [b"4"]
