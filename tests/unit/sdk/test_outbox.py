"""The outbox against a plain list: nothing lost, nothing twice, each topic in order."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.sdk.outbox import Batch, Outbox

BATCH_MESSAGES = 4
BATCH_BYTES = 60
FAR = 1e9

topics = st.sampled_from(["a", "b"])
sizes = st.integers(1, 70)


class OutboxMachine(RuleBasedStateMachine):
    """What was added comes out, or is failed, once; each topic in the order of adding."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(BATCH_MESSAGES, BATCH_BYTES)
        self.numbers = iter(range(10**9))
        self.waiting: dict[str, list[bytes]] = {"a": [], "b": []}
        self.wire: list[Batch] = []
        self.now = 0.0

    def body(self, size: int) -> bytes:
        return b"%d" % next(self.numbers) + b"." * size

    @rule(topic=topics, size=sizes)
    def add(self, topic: str, size: int) -> None:
        body = self.body(size)
        batch = self.outbox.add(topic, body, self.now + 10)
        assert batch.bodies[-1] == body
        self.waiting[topic].append(body)

    @rule(topic=topics, count=st.integers(1, 9), size=sizes)
    def add_many(self, topic: str, count: int, size: int) -> None:
        bodies = [self.body(size) for _ in range(count)]
        taken = self.outbox.add_many(topic, bodies, sum(map(len, bodies)), self.now + 10)
        assert sum(number for _, number in taken) == count
        placed = [body for batch, number in taken for body in batch.bodies[-number:]]
        assert placed == bodies
        self.waiting[topic].extend(bodies)

    @rule(topic=topics)
    def add_delayed(self, topic: str) -> None:
        batch = self.outbox.add_delayed(topic, self.body(1), 1000, self.now + 10)
        assert batch.encode().startswith(b"DPUB")

    @rule()
    def seal(self) -> None:
        self.outbox.seal()
        assert not self.outbox.gathering

    @rule()
    def take(self) -> None:
        batch = self.outbox.take()
        if batch is None:
            return
        self.wire.append(batch)
        assert len(batch.bodies) == 1 or batch.size_bytes <= BATCH_BYTES
        assert len(batch.bodies) <= BATCH_MESSAGES
        if not batch.delay_ms and not batch.given_up:
            expected = self.waiting[batch.topic]
            assert expected[: len(batch.bodies)] == batch.bodies
            del expected[: len(batch.bodies)]

    @rule()
    def answer(self) -> None:
        batch = self.outbox.answered()
        assert batch is (self.wire.pop(0) if self.wire else None)

    @rule()
    def reconnect(self) -> None:
        again = [batch for batch in self.wire if not batch.given_up]
        assert self.outbox.return_sent() == sum(len(batch.bodies) for batch in again)
        for batch in reversed(again):
            if not batch.delay_ms:
                self.waiting[batch.topic][:0] = batch.bodies
        self.wire.clear()

    @rule()
    def give_up_sent(self) -> None:
        assert self.outbox.drop_sent() == [batch for batch in self.wire if not batch.given_up]
        self.wire.clear()

    @rule()
    def close(self) -> None:
        told = [body for batch in self.outbox.drop_all() for body in batch.bodies]
        assert {body for bodies in self.waiting.values() for body in bodies} <= set(told)
        assert self.outbox.pending_messages == self.outbox.pending_bytes == 0
        self.wire.clear()
        self.waiting = {"a": [], "b": []}

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for batch in self.outbox.expire(self.now):
            if batch in self.wire:
                assert batch.given_up
            elif not batch.delay_ms:
                for body in batch.bodies:
                    self.waiting[batch.topic].remove(body)

    @precondition(lambda self: self.wire)
    @invariant()
    def the_wire_is_counted(self) -> None:
        assert self.outbox.sent_messages == sum(len(batch.bodies) for batch in self.wire)
        assert not self.outbox.idle

    @invariant()
    def holds(self) -> None:
        self.outbox.verify()


TestOutbox = OutboxMachine.TestCase


def test_commands_by_size() -> None:
    outbox = Outbox(10, 1000)
    outbox.add("t", b"one", FAR)
    outbox.seal()
    outbox.add("t", b"two", FAR)
    outbox.add("t", b"three", FAR)
    outbox.seal()
    commands = []
    while (batch := outbox.take()) is not None:
        commands.append(batch.encode().partition(b"\n")[0])
    assert commands == [b"PUB t", b"MPUB t"]
    assert outbox.take() is None
    assert outbox.pending_messages == 3
