"""A channel: a cursor into every lane of its topic, plus the exceptions. The same thing as a
consumer group.

For each lane a channel keeps (``Progress``):

    cursor    the next seq never handed out
    leases    ranges in flight
    retry     seqs that are ready again (requeued, timed out), with their attempts, the longest
              waiting first
    sleeping  seqs requeued with a delay, with their wake time and attempts

Everything below the cursor that is in none of these is done (finished, skipped, dropped). So what
is kept is what is outstanding, which credit bounds, and not what is finished, which nothing
bounds; the floor (all below is finished) is the lowest outstanding seq, or the cursor.

On a message's way: the runtime calls ``pump`` when the channel is dirty (a lane's durable end
moved, credit came back); it leases what is ready and hands slices of blocks to subscribers.
``finish``, ``requeue`` and ``touch`` settle. What happened goes to ``records`` (see
protocol.journal), which the runtime writes; replaying them (``restore.replay``) restores the
channel. When a block is not in memory the channel notes it in ``wants`` and goes on when somebody
has brought it to the cache. When the journal cannot keep up, the channel hands out nothing until it
has: what there is to record stays within what is in flight.

Invariants (``verify``; the simulation, the tests and PENSTOCK_VERIFY=1 call it):
    each seq below the cursor is in at most one of leases, retry, sleeping
    nothing at or above the cursor is in any of them
    cursor <= the lane's durable end, or the topic's pause mark where that is lower
    a subscriber's in_flight is the sum of what its leases have left
    each lease's deadline and each sleeper's wake time is watched, and an alarm set for the first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from penstock.broker.handout import Handout
from penstock.broker.lanes import Lane
from penstock.broker.lease import NO_HOLES, Lease, LeaseTable
from penstock.broker.progress import Progress
from penstock.broker.subscriber import Subscriber
from penstock.names import is_ephemeral
from penstock.protocol.block import NUMBER_BITS, NUMBER_MASK
from penstock.protocol.journal import (
    EMPTIED,
    FINISHED,
    REQUEUED,
    SKIPPED,
    SLEPT,
    TIMED_OUT,
    Batch,
    Record,
    joined,
)

RECORDS_MAX = 100_000  # some 20 MB; the journal usually takes them every few hundredths of a second
GATHERING_NS = 20_000_000  # so long the first consumers to arrive leave their parts to the next
ALARM_MESSAGES_MAX = 2000  # timed out and woken in one turn: well under 2 ms
NOT_IN_FLIGHT = "ID not in flight"
NOT_OWNER = "client does not own message"


class Alarmed(Protocol):
    """Who asked to be called at a time."""

    def on_alarm(self, now_ns: int, monotonic_ns: int) -> None: ...


class ChannelHost(Protocol):
    """What a channel asks of the broker around it."""

    dirty_channels: list[Channel]
    dirty_journals: list[Channel]
    wants: list[tuple[Channel, Lane, int]]

    def alarm(self, monotonic_ns: int, target: Alarmed) -> None: ...

    def wake(self, wall_ns: int, target: Alarmed) -> None: ...

    def chance(self, percent: int) -> bool: ...


class Channel:
    """One consumer group of one topic."""

    def __init__(self, host: ChannelHost, topic: str, name: str, max_timeout_ns: int) -> None:
        self.host = host
        self.topic = topic
        self.name = name
        self.max_timeout_ns = max_timeout_ns
        self.paused = False
        self.gone = False
        self.state_needed = 0  # the version of the state that must be safe before it has consumers
        self.ephemeral = is_ephemeral(name)
        self.backlog_max: int | None = None  # ephemeral channels jump forward beyond it
        self.progress: list[Progress] = []  # in the order they are drained
        self.by_tag: dict[int, tuple[Progress, int]] = {}
        self.empty_marks: dict[int, int] = {}  # a delay lane's tag -> numbers below it are skipped
        self.foreign: dict[int, tuple[Progress, int]] = {}  # in flight under ids of another log
        self.subscribers: deque[Subscriber] = deque()
        self.client_numbers: dict[str, int] = {}  # of those who are subscribed
        self.last_number = 0
        self.new_names: dict[int, str] = {}
        self.records: list[Record] = []
        self.deadlines: list[tuple[int, int, Lease, Progress]] = []
        self.lease_count = 0
        self.wakes: list[tuple[int, int, int, Progress]] = []
        self.alarm_at_ns = 0
        self.wake_at_ns = 0
        self.gathers_until_ns = 0  # subscribers arrive, and others may be about to
        self.dirty = False
        self.journal_dirty = False
        self.held_up = False  # until the journal has taken the records
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dropped_count = 0
        self.turn_rotation = 0
        self.again_first = False

    def __repr__(self) -> str:
        return f"Channel({self.topic}/{self.name})"

    # -- lanes

    def add_lane(self, lane: Lane, cursor: int) -> Progress:
        """Follow a lane from ``cursor`` on; partitions take turns, higher priorities come first."""
        progress = Progress(lane, cursor, len(self.progress))
        self.progress.append(progress)
        self.progress.sort(key=lambda other: (-other.lane.lane, other.lane.partition))
        self.note_tags(progress)
        return progress

    def note_tags(self, progress: Progress) -> None:
        for epoch, tag in enumerate(progress.lane.tags):
            self.by_tag[tag] = (progress, epoch << NUMBER_BITS)

    def progress_in(self, log: int) -> Progress | None:
        found = self.by_tag.get(log)
        return found[0] if found is not None else None

    def mark_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.host.dirty_channels.append(self)

    def record(self, record: Record) -> None:
        self.records.append(record)
        if not self.journal_dirty:
            self.journal_dirty = True
            self.host.dirty_journals.append(self)

    # -- subscribers

    def subscribe(self, subscriber: Subscriber) -> None:
        number = self.client_numbers.get(subscriber.name)
        if number is None:
            self.last_number = number = self.last_number + 1
            self.client_numbers[subscriber.name] = number
            self.new_names[number] = subscriber.name
        subscriber.number = number
        self.subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber, now_ns: int) -> None:
        """The subscriber is gone; what it had in flight is ready again at once."""
        if subscriber not in self.subscribers:
            return
        self.subscribers.remove(subscriber)
        if not any(one.number == subscriber.number for one in self.subscribers):
            del self.client_numbers[subscriber.name]
            if not subscriber.message_count:
                self.new_names.pop(subscriber.number, None)  # no record speaks of it
        if subscriber.in_flight:
            for progress in self.progress:
                for lease in [one for one in progress.leases.leases if one.holder is subscriber]:
                    self._give_back(progress, lease, REQUEUED, now_ns)
        self.mark_dirty()

    def set_ready(self, subscriber: Subscriber, count: int) -> None:
        subscriber.ready = count
        if subscriber.credit > 0:
            self.mark_dirty()

    # -- handing out

    def pump(self, now_ns: int, monotonic_ns: int) -> None:
        """Hand what is ready to the subscribers with credit, a fair share each."""
        self.dirty = False
        if self.paused or self.gone:
            return
        if len(self.records) > RECORDS_MAX:
            self.held_up = True
            return
        if self.backlog_max is not None:
            self._drop_beyond(self.backlog_max, now_ns)
        for progress in self.progress:
            if progress.jumps:
                self._jump(progress, now_ns)
        takers = [one for one in self.subscribers if one.ready > one.in_flight and not one.blocked]
        if not takers:
            return
        ready = self.ready_count()
        if not ready:
            return
        self.subscribers.rotate(-1)
        share = -(-ready // len(takers))
        gathering = self.gathers_until_ns > 0
        part = self._part(ready) if gathering else 0
        more = False
        for taker in takers:
            room = taker.ready - taker.in_flight
            if gathering:
                room = min(room, part - taker.in_flight)
                if room <= 0:
                    continue
            handout = Handout(self, taker, room if room < share else share, now_ns, monotonic_ns)
            taken = self._hand_out(handout)
            more = more or taken > 0 or handout.room <= 0
        if more and self.ready_count():
            # some took less than their share, or more than one turn's bytes are waiting
            self.mark_dirty()

    def arrive(self, subscriber: Subscriber, monotonic_ns: int) -> None:
        """A subscriber asks for messages for the first time. Consumers start together, and what
        waits is not all for the one whose RDY is heard first: for a moment none holds more than its
        part among all that are subscribed."""
        subscriber.arrived = True
        if len(self.subscribers) > 1:
            self.gathers_until_ns = monotonic_ns + GATHERING_NS
            self.host.alarm(self.gathers_until_ns, self)

    def _part(self, ready: int) -> int:
        held = sum([one.in_flight for one in self.subscribers])
        return -(-(ready + held) // len(self.subscribers))

    def ready_count(self) -> int:
        """Messages that could be handed out now."""
        return sum([one.fresh_count() + len(one.retry) for one in self.progress])

    def _hand_out(self, handout: Handout) -> int:
        taker = handout.taker
        wanted = handout.left
        self.again_first = not self.again_first
        for progress in self._drain_order():
            # in turns: what is requeued for ever must not keep the others waiting, nor they it
            if progress.retry and self.again_first:
                handout.again(progress)
            while handout.left > 0 and handout.room > 0 and progress.cursor < progress.end:
                handout.fresh(progress)
                if not progress.jumps or not self._jump(progress, handout.now_ns):
                    break
            if progress.retry and handout.left > 0 and handout.room > 0:
                handout.again(progress)
            if handout.left <= 0 or handout.room <= 0:
                break
        taken = wanted - handout.left
        if taken:
            taker.in_flight += taken
            taker.message_count += taken
            self.message_count += taken
            taker.deliver(handout.parts, taken)
        return taken

    def _jump(self, progress: Progress, now_ns: int) -> bool:
        """Over what was emptied while the topic was paused, if the cursor has come there."""
        start = progress.jump()
        if 0 <= start < progress.cursor:
            self.record((SKIPPED, progress.lane.log, start, progress.cursor, 0, now_ns, 0))
        return start >= 0

    def _drain_order(self) -> Sequence[Progress]:
        """Priorities high to low; within one, partitions in turn."""
        if len(self.progress) < 2:
            return self.progress
        self.turn_rotation += 1
        turn = self.turn_rotation
        count = len(self.progress)
        return sorted(
            self.progress,
            key=lambda one: (-one.lane.lane, (one.lane.partition + turn) % count),
        )

    def watch(self, lease: Lease, progress: Progress) -> None:
        """Note the deadline. Leases that are finished or have another deadline since leave the heap
        from its top, or all at once when most are."""
        deadlines = self.deadlines
        while deadlines and _is_over(deadlines[0]):
            heappop(deadlines)
        if len(deadlines) > 64 and len(deadlines) > 4 * sum(
            [len(one.leases.leases) for one in self.progress]
        ):
            deadlines[:] = [entry for entry in deadlines if not _is_over(entry)]
            heapify(deadlines)
        self.lease_count += 1
        heappush(deadlines, (lease.deadline_ns, self.lease_count, lease, progress))
        if not self.alarm_at_ns or lease.deadline_ns < self.alarm_at_ns:
            self.alarm_at_ns = lease.deadline_ns
            self.host.alarm(lease.deadline_ns, self)

    # -- settling

    def finish(
        self, subscriber: Subscriber, ids: Sequence[int], now_ns: int
    ) -> list[tuple[int, str]]:
        """End messages for good; returns what failed as (index in ``ids``, why)."""
        count = len(ids)
        first = ids[0]
        failures: list[tuple[int, str]] = []
        where = self.by_tag.get(first >> NUMBER_BITS)
        done = 0
        if where is not None and (count == 1 or ids == [*range(first, first + count)]):
            progress, epoch = where
            low = epoch | (first & NUMBER_MASK)
            high = progress.leases.take_range(low, low + count, subscriber)
            if high > low:
                done = high - low
                self.record((FINISHED, progress.lane.log, low, high, 0, now_ns, subscriber.number))
        if done < count:
            done += self._finish_each(subscriber, ids, done, now_ns, failures)
        if done:
            subscriber.in_flight -= done
            subscriber.finished += done
            self.finish_count += done
            if not self.dirty and subscriber.ready > subscriber.in_flight:
                self.dirty = True
                self.host.dirty_channels.append(self)
        return failures

    def _finish_each(
        self,
        subscriber: Subscriber,
        ids: Sequence[int],
        start: int,
        now_ns: int,
        failures: list[tuple[int, str]],
    ) -> int:
        done: list[tuple[int, int]] = []
        for index in range(start, len(ids)):
            number = ids[index]
            found = self._in_flight(subscriber, number)
            if isinstance(found, str):
                failures.append((index, found))
                continue
            progress, lease, seq = found
            progress.leases.take(lease, seq)
            self.foreign.pop(number, None)
            done.append((progress.lane.log, seq))
        for log, low, high in joined(done):
            self.record((FINISHED, log, low, high, 0, now_ns, subscriber.number))
        return len(done)

    def _in_flight(self, subscriber: Subscriber, number: int) -> tuple[Progress, Lease, int] | str:
        where = self.foreign.get(number)
        if where is not None:
            progress, seq = where
        else:
            by_tag = self.by_tag.get(number >> NUMBER_BITS)
            if by_tag is None:
                return NOT_IN_FLIGHT
            progress, epoch = by_tag
            seq = epoch | (number & NUMBER_MASK)
        lease = progress.leases.find(seq)
        if lease is None or (where is None and lease.foreign):
            return NOT_IN_FLIGHT
        if lease.holder is not subscriber:
            return NOT_OWNER
        return progress, lease, seq

    def requeue(
        self, subscriber: Subscriber, number: int, delay_ns: int, now_ns: int
    ) -> str | None:
        """Give one message back, ready after ``delay_ns``; returns why not, if not."""
        found = self._in_flight(subscriber, number)
        if isinstance(found, str):
            return found
        progress, lease, seq = found
        self._cut_out(progress, lease, seq)
        self.foreign.pop(number, None)
        subscriber.in_flight -= 1
        subscriber.requeued += 1
        self.requeue_count += 1
        log = progress.lane.log
        if delay_ns <= 0:
            progress.retry[seq] = lease.attempts
            self.record((REQUEUED, log, seq, seq + 1, lease.attempts, now_ns, 0))
        else:
            self._sleep(progress, seq, lease.attempts, now_ns + delay_ns)
            self.record((SLEPT, log, seq, seq + 1, lease.attempts, now_ns, now_ns + delay_ns))
        self.mark_dirty()
        return None

    def touch(self, subscriber: Subscriber, number: int, monotonic_ns: int) -> str | None:
        """Give one message its full timeout again, within the longest a message may take."""
        found = self._in_flight(subscriber, number)
        if isinstance(found, str):
            return found
        progress, lease, seq = found
        deadline_ns = min(
            monotonic_ns + subscriber.timeout_ns, lease.handed_at_ns + self.max_timeout_ns
        )
        if deadline_ns == lease.deadline_ns:
            return None
        if lease.left == 1:
            lease.deadline_ns = deadline_ns
            self.watch(lease, progress)  # its older entry in the heap is passed over
            return None
        self._cut_out(progress, lease, seq)
        own = Lease(
            seq,
            seq + 1,
            lease.holder,
            lease.attempts,
            lease.handed_at_ns,
            deadline_ns,
            lease.foreign,
        )
        progress.leases.add(own)
        self.watch(own, progress)
        return None

    def _cut_out(self, progress: Progress, lease: Lease, seq: int) -> None:
        for piece in progress.leases.cut_out(lease, seq):
            self.watch(piece, progress)

    def _sleep(self, progress: Progress, seq: int, attempts: int, wake_ns: int) -> None:
        progress.sleeping[seq] = (wake_ns, attempts)
        heappush(self.wakes, (wake_ns, seq, progress.order, progress))
        self.watch_wakes()

    def watch_wakes(self) -> None:
        if self.wakes and (not self.wake_at_ns or self.wakes[0][0] < self.wake_at_ns):
            self.wake_at_ns = self.wakes[0][0]
            self.host.wake(self.wake_at_ns, self)

    def _give_back(self, progress: Progress, lease: Lease, kind: int, now_ns: int) -> None:
        """A whole lease ends unfinished: all that was outstanding is ready again."""
        progress.leases.remove(lease)
        holder = lease.holder
        if isinstance(holder, Subscriber):
            holder.in_flight -= lease.left
        for low, high in lease.ranges():
            for seq in range(low, high):
                progress.retry[seq] = lease.attempts
            self.record((kind, progress.lane.log, low, high, lease.attempts, now_ns, 0))
        lease.left = 0
        lease.holes = NO_HOLES

    # -- time

    def on_alarm(self, now_ns: int, monotonic_ns: int) -> None:
        """Time out leases, wake sleepers (a turn's worth), and ask to be called again for the
        next."""
        deadlines = self.deadlines
        room = ALARM_MESSAGES_MAX
        while (
            deadlines and room > 0 and (deadlines[0][0] <= monotonic_ns or _is_over(deadlines[0]))
        ):
            over = _is_over(deadlines[0])
            _, _, lease, progress = heappop(deadlines)
            if over:
                continue
            room -= lease.left
            self.timeout_count += lease.left
            self._give_back(progress, lease, TIMED_OUT, now_ns)
            self.mark_dirty()
        wakes = self.wakes
        while wakes and room > 0 and wakes[0][0] <= now_ns:
            room -= 1
            wake_ns, seq, _, progress = heappop(wakes)
            entry = progress.sleeping.get(seq)
            if entry is None or entry[0] != wake_ns:
                continue
            del progress.sleeping[seq]
            progress.retry[seq] = entry[1]
            self.mark_dirty()
        # one that an earlier alarm has overtaken asks for no other: they would multiply
        if self.alarm_at_ns <= monotonic_ns:
            self.alarm_at_ns = 0
            if deadlines:
                self.alarm_at_ns = deadlines[0][0]
                self.host.alarm(self.alarm_at_ns, self)
        if self.wake_at_ns <= now_ns:
            self.wake_at_ns = 0
        self.watch_wakes()
        if self.gathers_until_ns and self.gathers_until_ns <= monotonic_ns:
            self.gathers_until_ns = 0
            self.mark_dirty()

    # -- by hand

    def empty(self, now_ns: int, delay_marks: Iterable[tuple[int, int]]) -> None:
        """Forget everything up to the end: ready, in flight, sleeping, and what waits in delay
        lanes."""
        for progress in self.progress:
            for lease in progress.leases.leases:
                if isinstance(lease.holder, Subscriber):
                    lease.holder.in_flight -= lease.left
                lease.left = 0
            progress.leases = LeaseTable()
            progress.retry.clear()
            progress.sleeping.clear()
            progress.cursor = max(progress.cursor, progress.bound)
            progress.jump()
            self.record((EMPTIED, progress.lane.log, progress.cursor, 0, 0, now_ns, 0))
        for tag, mark in delay_marks:
            self.empty_marks[tag] = mark
            self.record((EMPTIED, tag, mark, 0, 0, now_ns, 1))
        self.foreign.clear()
        self.wakes.clear()
        self.deadlines.clear()
        self.mark_dirty()

    def delete(self) -> None:
        """It is deleted; what it had goes at once, for an alarm may hold on to it for long."""
        self.gone = True
        for progress in self.progress:
            progress.leases = LeaseTable()
            progress.retry.clear()
            progress.sleeping.clear()
        self.foreign.clear()
        self.wakes.clear()
        self.deadlines.clear()
        self.records.clear()

    def _drop_beyond(self, backlog_max: int, now_ns: int) -> None:
        """An ephemeral channel never holds more than this: the oldest go and are counted."""
        for progress in self.progress:
            behind = progress.end - progress.cursor
            if behind > backlog_max:
                start = progress.cursor
                progress.cursor = progress.end - backlog_max
                self.dropped_count += progress.cursor - start
                self.record((SKIPPED, progress.lane.log, start, progress.cursor, 0, now_ns, 0))

    def depth(self) -> int:
        """nsqd's depth: ready and never handed out, or ready again."""
        return self.ready_count()

    def in_flight_count(self) -> int:
        return sum([lease.left for one in self.progress for lease in one.leases.leases])

    def sleeping_count(self) -> int:
        return sum([len(one.sleeping) for one in self.progress])

    def take_records(self) -> Batch:
        """What happened since the last call, for the journal."""
        records, self.records = self.records, []
        names, self.new_names = self.new_names, {}
        self.journal_dirty = False
        if self.held_up:
            self.held_up = False
            self.mark_dirty()
        return Batch(records, names)

    # -- checking

    def verify(self) -> None:
        self._verify_outstanding()
        self._verify_watched()

    def _verify_watched(self) -> None:
        deadlines = {(id(lease), at_ns) for at_ns, _, lease, _ in self.deadlines}
        wakes = {(at_ns, seq, id(progress)) for at_ns, seq, _, progress in self.wakes}
        for progress in self.progress:
            for lease in progress.leases.leases:
                assert (id(lease), lease.deadline_ns) in deadlines, (self, lease)
                assert 0 < self.alarm_at_ns <= lease.deadline_ns, (self, lease)
            for seq, (wake_ns, _) in progress.sleeping.items():
                assert (wake_ns, seq, id(progress)) in wakes, (self, seq)
                assert 0 < self.wake_at_ns <= wake_ns, (self, seq)

    def _verify_outstanding(self) -> None:
        held: dict[int, int] = {}
        for progress in self.progress:
            progress.leases.verify()
            seen: set[int] = set()
            for lease in progress.leases.leases:
                outstanding = set(lease.seqs())
                assert not outstanding & seen, (self, lease)
                seen |= outstanding
                held[id(lease.holder)] = held.get(id(lease.holder), 0) + lease.left
            assert not seen & progress.retry.keys(), self
            seen |= progress.retry.keys()
            assert not seen & progress.sleeping.keys(), self
            seen |= progress.sleeping.keys()
            assert all(seq < progress.cursor for seq in seen), self
            assert progress.cursor <= max(progress.lane.durable_end, progress.lane.start), self
        for subscriber in self.subscribers:
            assert subscriber.in_flight == held.get(id(subscriber), 0), (self, subscriber.name)


def _is_over(entry: tuple[int, int, Lease, Progress]) -> bool:
    """A deadline that means nothing any more: its lease is finished, or was touched since."""
    return entry[2].left <= 0 or entry[2].deadline_ns != entry[0]
