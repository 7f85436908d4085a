"""Two channels of one topic against their models, through everything that can happen to them.

Lanes: two partitions, in one of them a second priority, one lane close to the border where its
log tag is renewed, one that is `written` (it goes on behind its reservation after a crash and may
lose unsynced blocks). The block cache holds next to nothing, so most blocks are cold by the time
that somebody gets them. At any point the broker may crash, with any number of the newest records
of a journal lost. Checked after every step: the channel's own ``verify``, that it is in exactly
the state of its model, and that replaying its journal would bring it there too; at every delivery:
that nobody else has the message, that its turn has come, its attempts, and the consumer's credit.
``settle`` checks that what can go out does go out without being asked twice.
"""

from collections.abc import Mapping
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.broker import restore
from penstock.broker.broker import Broker, BrokerOptions, TopicPolicy
from penstock.broker.channel import NOT_IN_FLIGHT, Channel
from penstock.broker.handout import DELIVERY_BYTES_MAX
from penstock.broker.lanes import Lane, Moved
from penstock.errors import DiskFull
from penstock.protocol.block import NUMBER_BITS, NUMBER_MASK, Block, form_frames, gather
from penstock.protocol.journal import Batch, decode_batch, encode_batch, find_batches
from tests.property.budget import LONG, budget
from tests.property.channel_model import (
    Again,
    Asleep,
    Fresh,
    Held,
    Key,
    Model,
    Replayed,
    replayed,
)
from tests.unit.broker.rig import SECOND, Consumer, commit, refuse

pytestmark = pytest.mark.timeout(3600 if LONG else 120)

CACHE_BYTES = 1500
MESSAGE_BYTES_MAX = 90_100
MAX_TIMEOUT = 65 * SECOND
DELAY_TAG = 999
LANES = {"0/0": 0, "0/5": 2**40 - 12, "1/0": 0}
WRITTEN = "1/0"
NAMES = ["left", "right"]
WHO = ["ann", "bob", "cat"]

channels = st.sampled_from(NAMES)
who = st.sampled_from(WHO)
lanes = st.sampled_from([*LANES])
outcomes = st.sampled_from(["commit", "commit", "commit", "commit", "wait", "full"])
picks = st.lists(st.integers(0, 30), min_size=1, max_size=8)


class Dice(Broker):
    """A broker whose chance is counted."""

    missed = 0

    def chance(self, percent: int) -> bool:
        hit = super().chance(percent)
        self.missed += not hit
        return hit


class Client(Consumer):
    """A consumer that shows each delivery to the machine."""

    def __init__(self, rig: "Channels", channel: str, name: str, timeout: int, rate: int) -> None:
        super().__init__(name, timeout_ns=timeout, sample_rate=rate)
        self.rig, self.channel = rig, channel

    def _deliver(self, parts: list[bytes], count: int) -> None:
        assert sum(map(len, parts)) <= DELIVERY_BYTES_MAX + MESSAGE_BYTES_MAX
        super()._deliver(parts, count)
        self.rig.on_delivery(self)


class Channels(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.wall, self.monotonic = 1000 * SECOND, 5 * SECOND
        self.latest = self.wall
        self.stored: dict[str, bytes] = {}
        self.disk: dict[str, list[Block]] = {key: [] for key in LANES}
        self.ids_given: set[int] = set()
        self.where: dict[int, Key] = {}  # message id -> log and seq
        self.bodies: dict[int, bytes] = {}
        self.counter = 0
        self.waiting: dict[str, list[bytes]] = {key: [] for key in LANES}
        self.moved_number = 0
        self.jumped: set[Key] = set()  # emptied from the topic while it was paused
        self.models = {name: Model(MAX_TIMEOUT) for name in NAMES}
        self.marks: dict[str, dict[int, int]] = {name: {} for name in NAMES}
        self.journals: dict[str, list[Batch]] = {name: [] for name in NAMES}
        self.eager = True
        self.clients: dict[tuple[str, str], Client] = {}
        self.starts = dict(LANES)
        self.broker = Dice(
            BrokerOptions(max_timeout_ns=MAX_TIMEOUT, cache_bytes_max=CACHE_BYTES), 1
        )
        self.topic = self.broker.make_topic("t", self.wall, TopicPolicy(partitions=2))
        self.broker.add_lane(self.topic, "0/5", [self.broker.take_tag()])
        self._begin()
        for key, start in LANES.items():
            self.lane(key).restore(start, start, start, 0, 0)
        for name in NAMES:
            self.topic.channel(name, self.wall)

    @initialize(ready=st.integers(1, 9), eager=st.booleans(), key=lanes)
    def somebody_is_there(self, ready: int, eager: bool, key: str) -> None:
        """``eager``: as in a broker under little load, whatever can go out goes out at once."""
        self.eager = eager
        self.somebody_comes(ready)
        self.publish(key, [3, 3, 200, 3, 3, 3, 3, 3], "commit")
        self.publish_moved("0/0", 2, "commit")
        self.settle()

    def somebody_comes(self, ready: int) -> None:
        self.subscribe("left", "ann", 60, 0, ready)
        self.subscribe("left", "bob", 10, 0, 3)
        self.subscribe("right", "cat", 60, 0, 12)

    def _begin(self) -> None:
        for lane in self.topic.lanes():
            lane.unreserved = lane.key != WRITTEN
        self.wanted: list[tuple[Channel, Lane, int]] = []

    # -- what there is

    def lane(self, key: str) -> Lane:
        return next(lane for lane in self.topic.lanes() if lane.key == key)

    def channel(self, name: str) -> Channel:
        return self.topic.channels[name]

    def limits(self) -> dict[int, int]:
        """No cursor passes these while the topic is paused."""
        paused = self.topic.paused
        return {
            lane.log: lane.durable_end if paused is None else paused[lane.key]
            for lane in self.topic.lanes()
        }

    # -- publishing

    @rule(
        key=lanes,
        sizes=st.lists(st.sampled_from([3, 3, 3, 200, 90_000]), min_size=1, max_size=6),
        then=outcomes,
    )
    def publish(self, key: str, sizes: list[int], then: str) -> None:
        bodies = [b"%06d" % (self.counter + i) + b"." * size for i, size in enumerate(sizes)]
        self.counter += len(bodies)
        self.waiting[key] += bodies
        self.lane(key).publish(bodies, sum(map(len, bodies)), self.wall)
        self._then(key, then)

    @rule(key=st.sampled_from(["0/0", WRITTEN]), count=st.integers(1, 4), then=outcomes)
    def publish_moved(self, key: str, count: int, then: str) -> None:
        """As a partition does with what was due: frames with ids of the delay lane."""
        bodies = [b"%06d" % (self.counter + i) for i in range(count)]
        self.counter += count
        self.waiting[key] += bodies
        numbers = [(DELAY_TAG << NUMBER_BITS) | (self.moved_number + 2 * i) for i in range(count)]
        self.moved_number += 2 * count
        frames = [form_frames(n, [(5, [body])])[1] for n, body in zip(numbers, bodies)]
        moved = Moved(frames, numbers, (self.wall, numbers[-1] & NUMBER_MASK))
        self.lane(key).publish(frames, sum(map(len, frames)), self.wall, moved=moved)
        self._then(key, then)

    def _then(self, key: str, then: str) -> None:
        if then == "commit":
            self.commit(key)
        elif then == "full":
            refuse(self.lane(key), DiskFull("no room"))
            self.waiting[key] = []

    def commit(self, key: str) -> None:
        lane = self.lane(key)
        blocks = commit(lane, self.wall)
        assert [one.body_at(i) for one in blocks for i in range(one.count)] == self.waiting[key]
        self.waiting[key] = []
        for block in blocks:
            assert not self.disk[key] or block.base >= self.disk[key][-1].end
            self.disk[key].append(block)
            for index, number in enumerate(block.id_list()):
                assert number not in self.ids_given
                self.ids_given.add(number)
                self.where[number] = (lane.log, block.seq_at(index))
                self.bodies[number] = block.body_at(index)
                for name in NAMES:
                    self.models[name].state[self.where[number]] = self._fresh(name, number)

    def _fresh(self, name: str, number: int) -> Fresh:
        mark = self.marks[name].get(number >> NUMBER_BITS, 0)
        emptied = (number & NUMBER_MASK) < mark or self.where[number] in self.jumped
        return Fresh(doomed=emptied)

    # -- handing out

    @rule()
    def turn(self) -> None:
        dirty, self.broker.dirty_channels = self.broker.dirty_channels, []
        for channel in dirty:
            self.pump(channel)

    def pump(self, channel: Channel) -> None:
        missed = self.broker.missed
        channel.pump(self.wall, self.monotonic)
        wants, self.broker.wants = self.broker.wants, []
        self.wanted += [want for want in dict.fromkeys(wants) if want not in self.wanted]
        for progress in channel.progress:
            self.models[channel.name].passed(
                progress.lane.log, progress.cursor, self.broker.missed - missed
            )

    def on_delivery(self, client: Client) -> None:
        model = self.models[client.channel]
        subscriber = client.subscriber
        assert not self.channel(client.channel).paused
        limits = self.limits()
        sampled = any(one.sample_rate for one in self.channel(client.channel).subscribers)
        for number, attempts, body in client.take():
            assert body == self.bodies[number]
            key = self.where[number]
            assert model.state[key] != Fresh() or key[1] < limits[key[0]], "behind the pause mark"
            assert len(model.held_by(subscriber.name)) < subscriber.ready
            model.delivered(
                subscriber.name,
                key,
                attempts,
                self.monotonic,
                subscriber.timeout_ns,
                sampled=sampled,
            )

    @precondition(lambda self: self.wanted)
    @rule(index=st.integers(0, 5), joined=st.booleans())
    def bring(self, index: int, joined: bool) -> None:
        """What the runtime's reader does when a block was wanted."""
        channel, lane, seq = self.wanted.pop(min(index, len(self.wanted) - 1))
        blocks = [one for one in self.disk[lane.key] if one.end > seq]
        blocks = gather(blocks) if joined else blocks[:1]
        for block in reversed(blocks):
            self.broker.cache.add(lane.shelf, block)
        first = min([lane.durable_end, *[one.base for one in blocks]])
        if first > seq:
            lane.note_hole(seq, first)
        self.pump(channel)

    def come_to_rest(self) -> None:
        for _ in range(300):
            if self.broker.dirty_channels:
                self.turn()
            elif self.wanted:
                self.bring(0, joined=len(self.wanted) % 2 == 0)
            else:
                return
        raise AssertionError("it never comes to rest")

    @rule()
    def settle(self) -> None:
        """Without a further word, everything that can be handed out is handed out."""
        self.come_to_rest()
        limits = self.limits()
        for name in NAMES:
            taking = [
                client
                for (channel, _), client in self.clients.items()
                if channel == name and client.subscriber.credit > 0
            ]
            if taking and not self.channel(name).paused:
                assert self.models[name].ready(limits) == []
            # what was emptied in the delay lane and moved since counts until somebody passes it
            doomed = [*self.models[name].state.values()].count(Fresh(doomed=True))
            ready = len(self.models[name].ready(limits))
            assert ready <= self.channel(name).depth() <= ready + doomed

    # -- consumers

    @rule(
        name=channels,
        who=who,
        timeout=st.sampled_from([10, 60]),
        rate=st.sampled_from([0, 0, 0, 50]),
        ready=st.integers(0, 12),
    )
    def subscribe(self, name: str, who: str, timeout: int, rate: int, ready: int) -> None:
        if (name, who) not in self.clients:
            client = Client(self, name, who, timeout * SECOND, rate)
            self.clients[name, who] = client
            self.channel(name).subscribe(client.subscriber)
            self.channel(name).set_ready(client.subscriber, ready)

    @rule(name=channels, who=who)
    def unsubscribe(self, name: str, who: str) -> None:
        client = self.clients.pop((name, who), None)
        if client is not None:
            self.channel(name).unsubscribe(client.subscriber, self.wall)
            self.models[name].leave(who)
            assert client.subscriber.in_flight == 0

    @rule(name=channels, who=who, count=st.integers(0, 12), blocked=st.sampled_from([False, True]))
    def credit(self, name: str, who: str, count: int, blocked: bool) -> None:
        """RDY, from a peer that stops reading or reads again."""
        client = self.clients.get((name, who))
        if client is not None:
            client.subscriber.blocked = blocked
            self.channel(name).set_ready(client.subscriber, count)

    def client(self, name: str, who: str) -> Client | None:
        """That one, or somebody else of the channel."""
        there = [one for (channel, _), one in self.clients.items() if channel == name]
        return self.clients.get((name, who)) or next(iter(there), None)

    def _choose(self, client: Client, picks: list[int], run: bool) -> list[int]:
        """Ids as a client might send them: its own, somebody else's, done ones, made-up ones."""
        if run:
            start = self._choose(client, picks[:1], run=False)[0]
            return [start + i for i in range(len(picks) + 1)]
        held = set(self.models[client.channel].held_by(client.subscriber.name))
        mine = [number for number, key in self.where.items() if key in held]
        known = sorted(mine) * 3 + [*self.where][-9:] + [-1, 12345]
        return [known[pick % len(known)] for pick in picks]

    def _reason(self, client: Client, number: int) -> str | None:
        """Why the client can't settle this, or None."""
        key = self.where.get(number)
        if key is None:
            return NOT_IN_FLIGHT
        return self.models[client.channel].settle(client.subscriber.name, key)

    @rule(name=channels, who=who, picks=picks, run=st.booleans())
    def finish(self, name: str, who: str, picks: list[int], run: bool) -> None:
        client = self.client(name, who)
        if client is None:
            return
        ids = self._choose(client, picks, run)
        expected = []
        for index, number in enumerate(ids):
            reason = self._reason(client, number)
            if reason is None:
                del self.models[name].state[self.where[number]]
            else:
                expected.append((index, reason))
        assert self.channel(name).finish(client.subscriber, ids, self.wall) == expected

    @rule(name=channels, who=who, picks=picks, delay=st.sampled_from([0, 5, 30]))
    def requeue(self, name: str, who: str, picks: list[int], delay: int) -> None:
        client = self.client(name, who)
        if client is None:
            return
        for number in self._choose(client, picks, run=False):
            reason = self._reason(client, number)
            got = self.channel(name).requeue(client.subscriber, number, delay * SECOND, self.wall)
            assert got == reason
            if reason is None:
                wake = self.wall + delay * SECOND if delay else None
                self.models[name].requeue(self.where[number], wake)

    @rule(name=channels, who=who, picks=picks)
    def touch(self, name: str, who: str, picks: list[int]) -> None:
        client = self.client(name, who)
        if client is None:
            return
        for number in self._choose(client, picks, run=False):
            reason = self._reason(client, number)
            got = self.channel(name).touch(client.subscriber, number, self.monotonic)
            assert got == reason
            if reason is None:
                timeout = client.subscriber.timeout_ns
                self.models[name].touch(self.where[number], self.monotonic, timeout)

    # -- time

    @rule(seconds=st.sampled_from([1, 4, 9, 10, 31, 61]), step=st.sampled_from([0, 0, 0, -20, 15]))
    def time_goes_by(self, seconds: int, step: int) -> None:
        """Also a wall clock that is set by hand."""
        self.monotonic += seconds * SECOND
        self.wall += (seconds + step) * SECOND
        self.latest = max(self.latest, self.wall)
        broker = self.broker
        while broker.alarms and broker.alarms[0][0] <= self.monotonic:
            target = broker.alarms[0][2]
            del broker.alarms[0]
            broker.alarms.sort()
            target.on_alarm(self.wall, self.monotonic)
        due = [target for at, _, target in broker.wakes if at <= self.wall]
        broker.wakes = [entry for entry in broker.wakes if entry[0] > self.wall]
        for target in due:
            target.on_alarm(self.wall, self.monotonic)
        for model in self.models.values():
            model.ring(self.wall, self.monotonic)
        assert len(broker.alarms) + len(broker.wakes) < 200

    # -- by hand

    @rule(name=channels, what=st.sampled_from(["pause", "unpause", "empty"]), all_=st.booleans())
    def by_hand(self, name: str, what: str, all_: bool) -> None:
        if what == "empty":
            self._empty_topic() if all_ else self._empty_channel(name)
        elif not all_:
            self.topic.pause_channel(name, what == "pause")
        elif what == "pause":
            self.topic.pause()
        else:
            self.topic.unpause()

    def _empty_channel(self, name: str) -> None:
        mark = self.moved_number
        self.marks[name][DELAY_TAG] = mark
        self.channel(name).empty(self.wall, [(DELAY_TAG, mark)])
        model = self.models[name]
        model.empty(self.limits())
        for number, key in self.where.items():
            if model.state.get(key) == Fresh():
                model.state[key] = self._fresh(name, number)

    def _empty_topic(self) -> None:
        """What came while it was paused is dropped: nobody has seen it."""
        if self.topic.paused is not None:
            before = self.limits()
            self.topic.empty()
            gone = {
                key
                for key in self.where.values()
                if before[key[0]] <= key[1] < self.limits()[key[0]]
            }
            self.jumped |= gone
            for model in self.models.values():
                for key in gone & model.state.keys():
                    model.state[key] = Fresh(doomed=True)

    # -- the journal, and crashes

    def _collect(self, name: str) -> None:
        """What the runtime writes now and then, here after every step."""
        batch = self.channel(name).take_records()
        if batch.records or batch.names:
            self._write(name, batch)

    def _write(self, name: str, batch: Batch) -> None:
        stored = encode_batch(batch)
        [(start, end, _, _)] = find_batches(stored)
        self.journals[name].append(decode_batch(stored, start, end))

    @rule(name=channels)
    def snapshot(self, name: str) -> None:
        """From here on a restart needs nothing that came before."""
        self._collect(name)
        self._write(name, restore.snapshot(self.channel(name), self.wall))

    def replayed(self, journal: list[Batch]) -> Replayed:
        """What the journal says, its cursors past what is known to be missing."""
        state, cursors, marks = replayed(journal, self.starts_of())
        lanes_by_log = {lane.log: lane for lane in self.topic.lanes()}
        past = {log: lanes_by_log[log].past_holes(at) for log, at in cursors.items()}
        return state, past, marks

    def starts_of(self) -> dict[int, int]:
        return {self.lane(key).log: start for key, start in self.starts.items()}

    @rule(
        lost=st.sampled_from([0, 0, 1, 2, 3, 5, 8, 100]),
        lost_blocks=st.sampled_from([0, 0, 1, 2]),
        clean=st.booleans(),
        ready=st.integers(1, 9),
    )
    def crash(self, lost: int, lost_blocks: int, clean: bool, ready: int) -> None:
        """The broker is gone; what it had written is what the next one finds. ``clean``: it
        stopped in order."""
        if clean:
            for lane in self.topic.lanes():
                self.broker.return_unused(lane)
        reservations = {}
        for key, value in self.broker.state_changes:
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value
        for key, value in self.stored.items():
            if key.startswith("seq/"):
                reservations[int(key[4:])] = int(value)
        for name in NAMES:
            self._collect(name)
            if not clean and lost:
                del self.journals[name][-lost:]
        if lost_blocks and not clean:
            for block in self.disk[WRITTEN][-lost_blocks:]:
                for number in block.id_list():
                    for model in self.models.values():
                        model.state.pop(self.where[number], None)
                    del self.where[number]
            del self.disk[WRITTEN][-lost_blocks:]
        self.clients.clear()
        self.broker = Dice(self.broker.options, 1)
        self.broker.restore(
            {key: value for key, value in self.stored.items() if not key.startswith("seq/")}
        )
        self.topic = self.broker.topics["t"] = self.broker.topic_from("t")
        self._begin()
        self.waiting = {key: [] for key in LANES}
        self._load(reservations)
        self.somebody_comes(ready)

    def _load(self, reservations: Mapping[int, int]) -> None:
        """The steps of the runtime's loading."""
        for lane in self.topic.lanes():
            blocks = self.disk[lane.key]
            start = self.starts[lane.key]
            end = blocks[-1].end if blocks else start
            lane.restore(start, end, end, 0, reservations.get(lane.log, 0))
            at = start
            for block in blocks:
                if block.base > at:
                    lane.note_hole(at, block.base)
                at = block.end
        expected = {}
        for name in NAMES:
            channel = self.topic.open_channel(name)
            expected[name] = replayed(self.journals[name], self.starts_of())
            restore.replay(channel, self.journals[name])
            for progress in channel.progress:
                progress.lane.skip_to(progress.cursor)
        for name in NAMES:
            channel = self.topic.channels[name]
            restore.resume(channel)
            channel.watch_wakes()
            state, cursors, marks = expected[name]
            self.marks[name] = marks
            assert channel.empty_marks == marks
            old = self.models[name]
            self.models[name] = model = Model(MAX_TIMEOUT)
            for number, key in self.where.items():
                if key in state:
                    model.state[key] = state[key]
                elif key[1] >= cursors[key[0]]:
                    model.state[key] = self._fresh(name, number)
                if old.state.get(key, Fresh(doomed=True)) != Fresh(doomed=True):
                    assert key in model.state, "lost"
            for progress in channel.progress:
                assert progress.cursor >= cursors[progress.lane.log]
            if channel.sleeping_count() + channel.ready_count():
                channel.mark_dirty()

    # -- what must hold at all times

    @invariant()
    def holds(self) -> None:
        if self.eager:
            self.settle()
        self._agree()
        self._the_journals_know()

    def _agree(self) -> None:
        for name in NAMES:
            channel = self.topic.channels[name]
            channel.verify()
            state = self.models[name].state
            seen: dict[Key, Held | Again | Asleep] = {}
            for progress in channel.progress:
                log = progress.lane.log
                assert progress.cursor <= max(progress.lane.durable_end, progress.lane.start)
                for lease in progress.leases.leases:
                    for seq in lease.seqs():
                        holder = cast("object", getattr(lease.holder, "name", None))
                        assert isinstance(holder, str)
                        seen[log, seq] = Held(
                            holder, lease.attempts, lease.handed_at_ns, lease.deadline_ns
                        )
                for seq, attempts in progress.retry.items():
                    seen[log, seq] = Again(attempts)
                for seq, (wake, attempts) in progress.sleeping.items():
                    seen[log, seq] = Asleep(wake, attempts)
                for key, now in state.items():
                    assert (
                        key[0] != log or not isinstance(now, Fresh) or (key[1] >= progress.cursor)
                    )
                lowest = [key[1] for key in seen if key[0] == log]
                assert progress.floor == min([progress.cursor, *lowest])
            foreign = {(where.lane.log, seq) for where, seq in channel.foreign.values()}
            assert foreign <= seen.keys()
            assert seen == {key: now for key, now in state.items() if not isinstance(now, Fresh)}

    def _the_journals_know(self) -> None:
        for name in NAMES:
            self._collect(name)
            self._knows(name, self.journals[name])
            self._knows(name, [restore.snapshot(self.channel(name), self.wall)])

    def _knows(self, name: str, journal: list[Batch]) -> None:
        """A channel restored from this journal would be where this one is."""
        state, cursors, marks = self.replayed(journal)
        assert marks == self.marks[name]
        for progress in self.channel(name).progress:
            lane = progress.lane
            assert lane.past_holes(progress.cursor) >= cursors[lane.log]
        for key, now in self.models[name].state.items():
            if isinstance(now, Held):
                assert state.pop(key) == Again(now.attempts)
            elif isinstance(now, Fresh):
                assert key[1] >= cursors[key[0]]
            elif isinstance(now, Again):
                # or asleep until a time that has come once
                entry = state.pop(key)
                assert entry.attempts == now.attempts
                assert isinstance(entry, Again) or entry.wake <= self.latest
            else:
                assert state.pop(key) == now
        done = self.where.values() - self.models[name].state.keys()
        back = [key for key in done if key in state or key[1] >= cursors[key[0]]]
        assert not back, "they would come back"


Channels.TestCase.settings = budget(200, 40)
TestChannel = Channels.TestCase
