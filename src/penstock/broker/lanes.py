"""A lane: one log inside a partition, as the core sees it. A priority's ready lane, or the delay
lane.

On a message's way this is where it gets its seq and becomes part of a block. Publishes only collect
(``publish``); at the end of the loop turn the committer takes what collected as blocks (``form``),
writes them, and reports back (``committed`` or ``failed``). All publishes of one commit turn share
one ``Turn``, which is what doors wait for. Seqs of blocks that failed are never given again: holes
are legal.

Invariants:
    durable_end <= next_seq, and both only grow
    nothing at or above durable_end is handed to a channel
    next_seq <= reserved_end for a lane that is not synced
    a block never straddles a multiple of 2**40 seqs: its ids have one tag
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from penstock.broker.cache import BlockCache, BlockShelf
from penstock.errors import OperatingError
from penstock.protocol.block import (
    DELAY_LANE,
    FRAME_HEAD_BYTES,
    NUMBER_BITS,
    NUMBER_MASK,
    Block,
    form_frames,
)

BLOCK_BYTES_MAX = 1 << 20  # a cold read takes whole blocks: larger ones would cost memory
RESERVATION = 1_000_000


class Waiter(Protocol):
    """Whoever is owed an answer when a turn is over (a door's connection)."""

    def turn_over(self) -> None: ...


class Turn:
    """One commit turn of one lane: what its publishers wait for."""

    __slots__ = ("error", "first_id", "over", "waiters")

    def __init__(self) -> None:
        self.over = False
        self.error: OperatingError | None = None
        self.first_id = 0
        self.waiters: list[Waiter] = []

    def end(self, error: OperatingError | None = None) -> None:
        self.over = True
        self.error = error
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.turn_over()


class Moved:
    """Frames on their way from the delay lane to a ready lane, with their ids and the new
    watermark."""

    __slots__ = ("frames", "ids", "mark")

    def __init__(self, frames: list[bytes], ids: list[int], mark: tuple[int, int]) -> None:
        self.frames = frames
        self.ids = ids
        self.mark = mark


Pending = tuple[int, Sequence[bytes], Sequence[int] | None, Moved | None]
"""(publish timestamp, bodies, wakes or None, moved or None)"""


class LaneOwner(Protocol):
    """Who follows a lane's commits: its topic, or for a delay lane its partition."""

    def on_forming(self, lane: Lane) -> None: ...

    def on_durable(self, lane: Lane, blocks: Sequence[Block]) -> None: ...

    def on_failed(self, lane: Lane) -> None: ...


class LaneHost(Protocol):
    """What a lane asks of the broker around it."""

    uncommitted_bytes: int
    refusal: OperatingError | None  # nothing more fits on the disk
    cache: BlockCache
    dirty_lanes: list[Lane]

    def renew_tag(self, lane: Lane) -> None:
        """Raises OperatingError when all are used."""

    def reserve(self, lane: Lane) -> None: ...

    def next_commit(self) -> int: ...


class Lane:
    """Seqs, pending publishes and the durable end of one log."""

    __slots__ = (
        "appended_at_ns",
        "durable_end",
        "hole_ends",
        "host",
        "lane",
        "newest_hole",
        "next_seq",
        "owner",
        "partition",
        "pending",
        "pending_bytes",
        "refusal",
        "reserved_end",
        "shelf",
        "start",
        "state_needed",
        "stored",
        "synced_end",
        "tags",
        "topic",
        "turn",
        "unreserved",
    )

    def __init__(
        self,
        host: LaneHost,
        owner: LaneOwner,
        topic: str,
        partition: int,
        lane: int,
        tags: list[int],
    ) -> None:
        self.host = host
        self.owner = owner
        self.topic = topic
        self.partition = partition
        self.lane = lane
        self.tags = tags
        self.start = 0
        self.next_seq = 0
        self.durable_end = 0
        self.synced_end = 0
        self.reserved_end = 0
        self.state_needed = 0  # the version of the state that must be safe before its blocks are
        self.unreserved = True  # synced lanes need no reservation
        self.stored = True  # memory lanes go on while the disk is full
        self.appended_at_ns = 0
        self.pending: list[Pending] = []
        self.pending_bytes = 0
        self.turn = Turn()
        self.refusal: OperatingError | None = None
        self.shelf = BlockShelf()
        self.hole_ends: dict[int, int] = {}
        self.newest_hole: int | None = None

    def __repr__(self) -> str:
        return f"Lane({self.topic}/{self.key}, {self.durable_end}/{self.next_seq})"

    @property
    def key(self) -> str:
        """Its name inside the topic."""
        return lane_key(self.partition, self.lane)

    @property
    def log(self) -> int:
        """The log's first tag: its name in journals."""
        return self.tags[0]

    def publish(
        self,
        bodies: Sequence[bytes],
        size: int,
        now_ns: int,
        wakes: Sequence[int] | None = None,
        moved: Moved | None = None,
    ) -> Turn:
        """Collect bodies for the next block. ``size`` is their bytes in all. Raises what refuses
        them."""
        if self.refusal is not None:
            raise self.refusal
        if self.host.refusal is not None and self.stored:
            raise self.host.refusal
        if not self.pending:
            self.host.dirty_lanes.append(self)
        self.pending.append((now_ns, bodies, wakes, moved))
        self.pending_bytes += size
        self.host.uncommitted_bytes += size
        return self.turn

    def form(self, now_ns: int) -> tuple[list[Block], Turn, int]:
        """Everything pending as blocks, the turn that waits for them, and their bytes. Raises what
        refuses them: then they are pending still."""
        self.appended_at_ns = now_ns = max(now_ns, self.appended_at_ns)
        first = self.next_seq
        try:
            blocks = self._blocks(self.pending, now_ns)
        except OperatingError:
            self.note_hole(first, self.next_seq)
            raise
        self.owner.on_forming(self)
        self.pending = []
        size, self.pending_bytes = self.pending_bytes, 0
        turn, self.turn = self.turn, Turn()
        turn.first_id = blocks[0].id_at(0)
        return blocks, turn, size

    def _blocks(self, pending: Sequence[Pending], now_ns: int) -> list[Block]:
        blocks: list[Block] = []
        run: list[Pending] = []
        run_bytes = 0
        for entry in pending:
            entry_bytes = sum(map(len, entry[1])) if len(pending) > 1 else 0
            if run and (
                run_bytes + entry_bytes > BLOCK_BYTES_MAX
                or entry[3] is not None
                or run[-1][3] is not None
                or (entry[2] is None) != (run[-1][2] is None)
            ):
                blocks.append(self._block(run, now_ns))
                run, run_bytes = [], 0
            run.append(entry)
            run_bytes += entry_bytes
        blocks.append(self._block(run, now_ns))
        return blocks

    def _block(self, run: Sequence[Pending], now_ns: int) -> Block:
        count = sum([len(entry[1]) for entry in run])
        base = self._take_seqs(count)
        tag = self.tags[base >> NUMBER_BITS]
        first = run[0]
        moved = first[3]
        if moved is None:
            ends, frames = form_frames(
                (tag << NUMBER_BITS) | (base & NUMBER_MASK), [(entry[0], entry[1]) for entry in run]
            )
            times = [entry[0] for entry in run]
            earliest, latest = min(times), max(times)
        else:
            ends = array("I", accumulate(map(len, moved.frames)))
            frames = b"".join(moved.frames)
            stamps = [int.from_bytes(frame[8:16], "big", signed=True) for frame in moved.frames]
            earliest, latest = min(stamps), max(stamps)
        wakes: array[int] | None = None
        if first[2] is not None:
            wakes = array("q", [wake for entry in run for wake in entry[2] or ()])
        return Block(
            tag=tag,
            lane=self.lane,
            base=base,
            ends=ends,
            frames=frames,
            appended_at_ns=now_ns,
            published_first_ns=earliest,
            published_last_ns=latest,
            commit=self.host.next_commit(),
            synced_end=self.synced_end,
            ids=None if moved is None else array("Q", moved.ids),
            wakes=wakes,
            mark=None if moved is None else moved.mark,
        )

    def _take_seqs(self, count: int) -> int:
        base = self.next_seq
        if (base >> NUMBER_BITS) != ((base + count - 1) >> NUMBER_BITS):
            self.note_hole(base, base := ((base >> NUMBER_BITS) + 1) << NUMBER_BITS)
        self.next_seq = base + count
        if (base >> NUMBER_BITS) >= len(self.tags):
            self.host.renew_tag(self)
        if not self.unreserved and self.next_seq > self.reserved_end:
            self.host.reserve(self)
        return base

    def committed(self, blocks: Sequence[Block], size: int) -> None:
        """The blocks have reached their durability: channels may have them."""
        self.host.uncommitted_bytes -= size
        cache = self.host.cache
        for block in blocks:
            cache.add(self.shelf, block)
        self.durable_end = blocks[-1].end
        self.owner.on_durable(self, blocks)

    def failed(
        self, blocks: Sequence[Block], size: int, error: OperatingError, lasting: bool
    ) -> None:
        """The blocks were not kept. ``lasting``: the log takes no more until it is opened again."""
        self.host.uncommitted_bytes -= size
        self.note_hole(blocks[0].base, blocks[-1].end)
        if lasting:
            self.refusal = error
        self.owner.on_failed(self)

    def refuse_pending(self, error: OperatingError) -> None:
        """What collected for the next commit turn is not kept."""
        self.owner.on_forming(self)
        self.pending = []
        self.host.uncommitted_bytes -= self.pending_bytes
        self.pending_bytes = 0
        turn, self.turn = self.turn, Turn()
        self.owner.on_failed(self)
        turn.end(error)

    def note_hole(self, start: int, end: int) -> None:
        """There is nothing in [start, end): cursors jump over it."""
        if self.newest_hole is not None and self.hole_ends[self.newest_hole] == start:
            start = self.newest_hole  # failures in a row are one hole
        self.hole_ends[start] = end
        self.newest_hole = start

    def messages_between(self, low: int, high: int) -> int:
        """How many messages there can be in [low, high)."""
        count = high - low
        if self.hole_ends:
            at = low
            for start, end in sorted(self.hole_ends.items()):
                start, end = max(start, at), min(end, high)
                if end > start:
                    count -= end - start
                    at = end
        return count

    def forget_below(self, start: int) -> None:
        """The log begins later now: what was below is freed."""
        self.start = max(self.start, start)
        for low in [low for low, high in self.hole_ends.items() if high <= start]:
            if low != self.newest_hole:
                del self.hole_ends[low]

    def past_holes(self, seq: int) -> int:
        """The first seq from there on that is in no hole. (A cursor may stand within one: a hole
        grows, and a pause mark stops cursors anywhere.)"""
        if self.hole_ends:
            for low, high in sorted(self.hole_ends.items()):
                if low <= seq < high:
                    seq = high
        return seq

    def restore(
        self,
        start: int,
        end: int,
        synced_end: int,
        appended_at_ns: int,
        reserved_end: int,
    ) -> None:
        """Take up a log where it ended, or behind all seqs that may have been seen: a broker that
        stopped in order has given the rest of its reservation back."""
        self.start = start
        self.next_seq = end
        self.synced_end = synced_end
        self.appended_at_ns = appended_at_ns
        self.reserved_end = reserved_end
        self.skip_to(reserved_end)
        self.durable_end = self.next_seq

    def skip_to(self, seq: int) -> None:
        """Give no seq below ``seq`` any more."""
        if seq > self.next_seq:
            self.note_hole(self.next_seq, seq)
            self.next_seq = self.durable_end = seq

    def holds(self, seq: int) -> bool:
        """Whether a message of that seq can still be there, as far as is known after loading."""
        return self.start <= seq == self.past_holes(seq)

    def find(self, seq: int) -> Block | None:
        """The block with that seq if it is in memory."""
        return self.host.cache.find(self.shelf, seq)

    def marks(self) -> list[tuple[int, int]]:
        """Which ids there are by now: (tag, the end of its numbers)."""
        return [
            (tag, min(self.next_seq - (epoch << NUMBER_BITS), 1 << NUMBER_BITS))
            for epoch, tag in enumerate(self.tags)
        ]

    def id_of(self, seq: int) -> int:
        return (self.tags[seq >> NUMBER_BITS] << NUMBER_BITS) | (seq & NUMBER_MASK)


def lane_key(partition: int, lane: int) -> str:
    return f"{partition}/delay" if lane == DELAY_LANE else f"{partition}/{lane}"


def frames_bytes(bodies: Sequence[bytes]) -> int:
    """What bodies take as frames."""
    return sum(map(len, bodies)) + FRAME_HEAD_BYTES * len(bodies)
