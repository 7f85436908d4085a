"""A partition: one ready lane per priority in use, and a delay lane where something sleeps.

Due messages move from the delay lane to a ready lane here, in (wake, seq) order and with their
ids: the very frames, in blocks that carry the delay lane's watermark. One move at a time; when its
blocks are synced the watermark goes to the delay journal too, so that a restart need not look far
for it. A crash between the two costs a second look, never a second message. (Not before they are
synced: at a lower durability the ready lane may lose them, and they must move again.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.broker.channel import Alarmed
from penstock.broker.lanes import BLOCK_BYTES_MAX, Lane, LaneOwner, Moved, Turn
from penstock.broker.schedule import Schedule
from penstock.errors import OperatingError
from penstock.protocol.block import DELAY_LANE, Block
from penstock.protocol.journal import MOVED, Batch, Record

MOVE_BYTES_MAX = 4 << 20  # and the message that goes beyond: what one move holds in memory
MARK_STEP = 100_000  # messages in the ready lane that a start looks through at most, and a little
MOVE_RETRY_NS = 1_000_000_000  # after a move that the disk refused


class PartitionHost(Protocol):
    """What a partition asks of the broker around it."""

    delay_wants: list[tuple[Partition, Lane, int]]
    dirty_delays: list[Partition]

    def new_lane(self, owner: LaneOwner, topic: str, partition: int, lane: int) -> Lane: ...

    def delay_made(self, partition: Partition, lane: Lane) -> None:
        """Raises PenstockError when it cannot be kept."""

    def wake(self, wall_ns: int, target: Alarmed) -> None: ...


class Landed(NamedTuple):
    """A move whose blocks lie in the ready lane, somewhere in [begin, end), and its watermark."""

    begin: int
    end: int
    wake: int
    seq: int


class Partition:
    """The lanes of one partition of one topic."""

    def __init__(self, host: PartitionHost, owner: LaneOwner, topic: str, number: int) -> None:
        self.host = host
        self.owner = owner
        self.topic = topic
        self.number = number
        self.ready: dict[int, Lane] = {}
        self.delay: Lane | None = None
        self.schedule = Schedule()
        self.records: list[Record] = []
        self.marks: dict[int, Record] = {}  # ready log -> newest MOVED record
        self.landed: deque[Landed] = deque()  # not written down in `marks` yet
        self.wake_at_ns = 0
        self.move: _Move | None = None

    def add(self, lane: Lane) -> None:
        if lane.lane == DELAY_LANE:
            self.delay = lane
        else:
            self.ready[lane.lane] = lane

    def lanes(self) -> list[Lane]:
        return [*self.ready.values(), *([self.delay] if self.delay is not None else [])]

    def make_delay(self) -> Lane:
        """The delay lane comes with the first message that is delayed."""
        lane = self.host.new_lane(self, self.topic, self.number, DELAY_LANE)
        self.host.delay_made(self, lane)
        self.add(lane)
        self.note_mark(0)
        return lane

    def publish_delayed(self, bodies: Sequence[bytes], size: int, due_ns: int, now_ns: int) -> Turn:
        """Into the delay lane until ``due_ns``."""
        assert self.delay is not None
        wakes = [self.schedule.stamp(due_ns)] * len(bodies)
        turn = self.delay.publish(bodies, size, now_ns, wakes=wakes)
        self.schedule.published(wakes)
        return turn

    def delay_floor(self) -> int:
        """Everything in the delay lane below it has moved."""
        assert self.delay is not None
        return min(self.schedule.lowest_seq(), self.delay.durable_end)

    # -- the delay lane's commits

    def on_forming(self, lane: Lane) -> None:
        self.schedule.forming()

    def on_durable(self, lane: Lane, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.schedule.durable(block.base, block.wakes or ())
        self.schedule.commit_over()
        self.watch()

    def on_failed(self, lane: Lane) -> None:
        self.schedule.commit_over()
        self.watch()

    # -- moving

    def watch(self) -> None:
        """Ask to be called when the next message is due."""
        next_ns = self.schedule.next_wake()
        if next_ns and not self.move and (not self.wake_at_ns or next_ns < self.wake_at_ns):
            self.wake_at_ns = next_ns
            self.host.wake(next_ns, self)

    def on_alarm(self, now_ns: int, monotonic_ns: int) -> None:
        """Something may be due: begin a move unless one is under way."""
        if self.wake_at_ns <= now_ns:
            self.wake_at_ns = 0
        if self.move is None:
            entries = self.schedule.begin_move(now_ns)
            if entries:
                self.move = _Move(self, now_ns)
                self.go_on()
                return
        self.watch()

    def go_on(self) -> None:
        """Collect the frames that move, in their order; one that is not in memory is asked for, and
        this is called again."""
        move = self.move
        lane = self.delay
        if move is None or lane is None or move.sent:
            return
        moving = self.schedule.moving
        while move.taken < len(moving) and move.bytes < MOVE_BYTES_MAX:
            seq = moving[move.taken][1]
            block = lane.find(seq)
            if block is not None:
                move.add(moving[move.taken], block.frame_at(block.index_of(seq)))
            elif lane.past_holes(seq) == seq:
                self.host.delay_wants.append((self, lane, seq))
                return
            # else it was written, never synced, and the power went
            move.taken += 1
        move.send(self.ready[0], lane)

    def move_over(
        self, taken: int, error: OperatingError | None, landed: Landed | None, now_ns: int
    ) -> None:
        """The moved blocks are durable, or were refused: then all is as before and tried again."""
        self.schedule.end_move(taken if error is None else 0)
        self.move = None
        if error is not None:
            self.wake_at_ns = now_ns + MOVE_RETRY_NS
            self.host.wake(self.wake_at_ns, self)
            return
        if landed is not None:
            self.landed.append(landed)
            self.note_mark(now_ns)
        self.watch()

    def note_mark(self, now_ns: int) -> bool:
        """Write down the newest watermark, and up to where nobody need look for a newer one;
        returns whether that was news. What the ready lane may yet lose has not moved for good."""
        if self.delay is None:
            return False
        ready = self.ready[0]
        end = min(ready.synced_end, ready.durable_end)
        old = self.marks.get(ready.log)
        wake, seq = (old[6], old[2]) if old is not None else (0, 0)
        newer = old is None
        while self.landed and self.landed[0].end <= end:
            _, _, wake, seq = self.landed.popleft()
            newer = True
        if self.landed:
            end = min(end, self.landed[0].begin)
        elif self.move is not None and self.move.sent:
            end = min(end, self.move.begin)
        if not newer and old is not None and end - old[3] < MARK_STEP:
            return False
        record = (MOVED, ready.log, seq, end, 0, now_ns, wake)
        if not self.records:
            self.host.dirty_delays.append(self)
        self.records.append(record)
        self.marks[ready.log] = record
        return True

    def take_records(self) -> Batch:
        records, self.records = self.records, []
        return Batch(records, {})

    def snapshot(self) -> Batch:
        return Batch([*self.marks.values()], {}, snapshot=True)

    # -- restoring

    def restore_marks(self, batches: Sequence[Batch]) -> None:
        """Take the newest watermark of each ready lane from the delay journal."""
        for batch in batches:
            for record in batch.records:
                if record[0] == MOVED:
                    self.marks[record[1]] = record


class _Move:
    """One move under way: the frames collected so far, then the turn it waits for."""

    __slots__ = (
        "began_ns",
        "begin",
        "bytes",
        "entries",
        "frames",
        "last",
        "partition",
        "sent",
        "taken",
        "turn",
    )

    def __init__(self, partition: Partition, began_ns: int) -> None:
        self.partition = partition
        self.began_ns = began_ns
        self.taken = 0  # of the schedule's, in its order
        self.entries: list[tuple[int, int]] = []
        self.frames: list[bytes] = []
        self.bytes = 0
        self.sent = False
        self.begin = 0  # in the ready lane
        self.last = (0, 0)
        self.turn: Turn | None = None

    def add(self, entry: tuple[int, int], frame: bytes) -> None:
        self.entries.append(entry)
        self.frames.append(frame)
        self.bytes += len(frame)

    def send(self, ready: Lane, delay: Lane) -> None:
        """Into the ready lane, in pieces of at most a block, each with its watermark."""
        self.sent = True
        self.begin = ready.durable_end
        first = size = 0
        try:
            for index, (wake, seq) in enumerate(self.entries):
                size += len(self.frames[index])
                if size >= BLOCK_BYTES_MAX or index == len(self.entries) - 1:
                    frames = self.frames[first : index + 1]
                    ids = [delay.id_of(one) for _, one in self.entries[first : index + 1]]
                    moved = Moved(frames, ids, (wake, seq))
                    self.turn = ready.publish(frames, size, self.began_ns, moved=moved)
                    self.last = (wake, seq)
                    first, size = index + 1, 0
        except OperatingError as error:
            self._over(error, None)
            return
        self.frames = []
        if self.turn is None:
            self._over(None, None)  # nothing of it is there any more
        else:
            self.turn.waiters.append(self)

    def turn_over(self) -> None:
        assert self.turn is not None
        end = self.partition.ready[0].durable_end
        self._over(self.turn.error, Landed(self.begin, end, *self.last))

    def _over(self, error: OperatingError | None, landed: Landed | None) -> None:
        self.partition.move_over(self.taken, error, landed, self.began_ns)
