"""Handing out: what is ready in a channel's lanes becomes leases and slices for one subscriber.

One ``Handout`` serves one subscriber in one turn. Fresh messages are leased from the cursor on,
over block borders while seqs follow each other, and go out as slices of their blocks. What was
requeued or timed out goes first, frame by frame, with its number of attempts. A block that is not
in memory ends the lane's turn: it is noted as wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.lease import Lease
from penstock.broker.progress import Progress
from penstock.broker.subscriber import Subscriber
from penstock.protocol.block import NUMBER_BITS, NUMBER_MASK, Block, with_attempts
from penstock.protocol.journal import DELIVERED, SKIPPED

if TYPE_CHECKING:
    from penstock.broker.channel import Channel

DELIVERY_BYTES_MAX = 256 * 1024  # to one subscriber in one turn, the last message not counted


class Handout:
    """What one subscriber gets in one turn."""

    __slots__ = (
        "channel",
        "deadline_ns",
        "left",
        "monotonic_ns",
        "now_ns",
        "parts",
        "room",
        "taker",
    )

    def __init__(
        self, channel: Channel, taker: Subscriber, count: int, now_ns: int, monotonic_ns: int
    ) -> None:
        self.channel = channel
        self.taker = taker
        self.left = count
        self.room = DELIVERY_BYTES_MAX
        self.now_ns = now_ns
        self.monotonic_ns = monotonic_ns
        self.deadline_ns = monotonic_ns + taker.timeout_ns
        self.parts: list[bytes] = []

    def fresh(self, progress: Progress) -> None:
        """Lease from the cursor on."""
        lane = progress.lane
        end = progress.end
        low = at = progress.cursor
        taker = self.taker
        while self.left > 0 and self.room > 0 and at < end:
            block = lane.find(at)
            if block is None:
                past = lane.past_holes(at)
                if past == at:
                    self.channel.host.wants.append((self.channel, lane, at))
                    break
                self.lease(progress, low, at, 1)
                low = at = min(past, end)
                continue
            first = block.index_of(at)
            last = min(first + self.left, block.index_of(end))
            size = block.bytes_between(first, last)
            if size > self.room:
                last = _fitting(block, first, last, self.room)
                size = block.bytes_between(first, last)
            self.room -= size
            if block.seqs is None and block.ids is None and not taker.sample_rate:
                self.parts.append(block.frames_between(first, last))
                self.left -= last - first
                at = block.base + last
            else:
                self.lease(progress, low, at, 1)
                self._one_by_one(progress, block, first, last)
                low = at = block.end if last == block.count else block.seq_at(last)
        self.lease(progress, low, at, 1)
        progress.cursor = at

    def _one_by_one(self, progress: Progress, block: Block, first: int, last: int) -> None:
        """Blocks with ids or seqs of their own, or a subscriber that takes a sample."""
        channel = self.channel
        rate = self.taker.sample_rate
        foreign = block.ids is not None
        low = high = block.seq_at(first)
        for index in range(first, last):
            seq = block.seq_at(index)
            number = block.id_at(index)
            mark = channel.empty_marks.get(number >> NUMBER_BITS)
            skipped = mark is not None and (number & NUMBER_MASK) < mark
            if not skipped and rate and not channel.host.chance(rate):
                skipped = True
            if skipped or seq != high:
                self.lease(progress, low, high, 1, foreign)
                low = high = seq
            if skipped:
                channel.record((SKIPPED, progress.lane.log, seq, seq + 1, 0, self.now_ns, 0))
                low = high = seq + 1
                continue
            high = seq + 1
            if foreign:
                channel.foreign[number] = (progress, seq)
            self.parts.append(block.frame_at(index))
            self.left -= 1
        self.lease(progress, low, high, 1, foreign)

    def again(self, progress: Progress) -> None:
        """Hand out what was requeued or timed out, the longest waiting first."""
        lane = progress.lane
        taken: list[tuple[int, int, bool]] = []
        gone: list[int] = []
        for seq, attempts in progress.retry.items():
            if len(taken) >= self.left or self.room <= 0:
                break
            block = lane.find(seq)
            if block is None:
                if lane.past_holes(seq) != seq:
                    gone.append(seq)  # written, never synced, and the power went
                    continue
                self.channel.host.wants.append((self.channel, lane, seq))
                break
            index = block.index_of(seq)
            if block.ids is not None:
                self.channel.foreign[block.ids[index]] = (progress, seq)
            frame = with_attempts(block.frame_at(index), attempts + 1)
            self.room -= len(frame)
            self.parts.append(frame)
            taken.append((seq, attempts + 1, block.ids is not None))
        for seq in gone:
            del progress.retry[seq]
            self.channel.record((SKIPPED, lane.log, seq, seq + 1, 0, self.now_ns, 0))
        start = 0
        for i, (seq, attempts, foreign) in enumerate(taken):
            del progress.retry[seq]
            if i + 1 == len(taken) or taken[i + 1] != (seq + 1, attempts, foreign):
                self.lease(progress, taken[start][0], seq + 1, attempts, foreign)
                start = i + 1
        self.left -= len(taken)

    def lease(
        self, progress: Progress, low: int, high: int, attempts: int, foreign: bool = False
    ) -> None:
        """Put [low, high) under one lease (nothing when it is empty)."""
        if low == high:
            return
        taker = self.taker
        lease = Lease(low, high, taker, attempts, self.monotonic_ns, self.deadline_ns, foreign)
        progress.leases.add(lease)
        self.channel.watch(lease, progress)
        self.channel.record(
            (DELIVERED, progress.lane.log, low, high, attempts, self.now_ns, taker.number)
        )


def _fitting(block: Block, first: int, last: int, room: int) -> int:
    """The last index so that [first, index) fits into ``room`` bytes, at least one message."""
    low, high = first + 1, last
    while low < high:
        middle = (low + high + 1) // 2
        if block.bytes_between(first, middle) <= room:
            low = middle
        else:
            high = middle - 1
    return low
