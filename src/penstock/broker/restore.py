"""A channel from its journal, and its journal's snapshot from the channel.

Replaying the newest snapshot and every batch after it brings a channel to where the journal says it
was; what was in flight then is ready again, with its attempts. The last records before a crash may
be missing: then messages are handed out again, never lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify

from penstock.broker.channel import Channel
from penstock.broker.lease import Lease, LeaseTable
from penstock.broker.progress import Progress
from penstock.protocol.journal import (
    CURSOR,
    DELIVERED,
    EMPTIED,
    FINISHED,
    REQUEUED,
    SKIPPED,
    SLEPT,
    TIMED_OUT,
    Batch,
    Record,
)


def replay(channel: Channel, batches: Iterable[Batch]) -> None:
    """Off the loop, while nobody else knows the channel."""
    for batch in batches:
        if batch.snapshot:
            for progress in channel.progress:
                _clear(progress)
                progress.cursor = progress.lane.start
            channel.empty_marks.clear()
        channel.last_number = max([channel.last_number, *batch.names])
        for record in batch.records:
            _replay(channel, record)
    for progress in channel.progress:
        for lease in progress.leases.leases:
            for seq in lease.seqs():
                progress.retry[seq] = lease.attempts
        progress.leases = LeaseTable()


def resume(channel: Channel) -> None:
    """When the lanes' ends are known, off the loop as well: nothing outstanding that no log holds
    any more, no cursor inside a hole, and sleepers in the order in which they wake."""
    for progress in channel.progress:
        lane = progress.lane
        for gone in [seq for seq in progress.retry if not lane.holds(seq)]:
            del progress.retry[gone]
        for gone in [seq for seq in progress.sleeping if not lane.holds(seq)]:
            del progress.sleeping[gone]
        progress.cursor = lane.past_holes(max(progress.cursor, lane.start))
        for seq, (wake_ns, _) in progress.sleeping.items():
            channel.wakes.append((wake_ns, seq, progress.order, progress))
    heapify(channel.wakes)


def snapshot(channel: Channel, now_ns: int) -> Batch:
    """Records that bring an empty channel to this state, and the names they use."""
    records: list[Record] = [
        (EMPTIED, log, mark, 0, 0, now_ns, 1) for log, mark in channel.empty_marks.items()
    ]
    for progress in channel.progress:
        log = progress.lane.log
        records.append((CURSOR, log, progress.cursor, progress.cursor, 0, now_ns, 0))
        for lease in progress.leases.leases:
            number = lease.holder.number if lease.holder is not None else 0
            records += [
                (DELIVERED, log, low, high, lease.attempts, now_ns, number)
                for low, high in lease.ranges()
            ]
        records += [
            (REQUEUED, log, seq, seq + 1, attempts, now_ns, 0)
            for seq, attempts in progress.retry.items()
        ]
        records += [
            (SLEPT, log, seq, seq + 1, attempts, now_ns, wake_ns)
            for seq, (wake_ns, attempts) in progress.sleeping.items()
        ]
    names = {number: name for name, number in channel.client_numbers.items()}
    return Batch(records, names, snapshot=True)


def _clear(progress: Progress) -> None:
    progress.leases = LeaseTable()
    progress.retry.clear()
    progress.sleeping.clear()


def _replay(channel: Channel, record: Record) -> None:
    kind, log, low, high, attempts, _, value = record
    if kind == EMPTIED and value:
        channel.empty_marks[log] = low
        return
    progress = channel.progress_in(log)
    if progress is None:
        return  # a lane that is gone
    if kind == CURSOR:
        progress.cursor = low
        return
    if kind == EMPTIED:
        _clear(progress)
        progress.cursor = max(progress.cursor, low)
        return
    _release(progress, low, high, for_good=kind in {FINISHED, SKIPPED})
    progress.cursor = max(progress.cursor, high)
    if kind == DELIVERED:
        progress.leases.add(Lease(low, high, None, attempts, 0, 0))
    elif kind in (REQUEUED, TIMED_OUT):
        for seq in range(low, high):
            progress.retry[seq] = attempts
    elif kind == SLEPT:
        for seq in range(low, high):
            progress.sleeping[seq] = (value, attempts)
    else:
        assert kind in (FINISHED, SKIPPED), record


def _release(progress: Progress, low: int, high: int, *, for_good: bool) -> None:
    """Take [low, high) out of whatever it was in; ``for_good`` if it will not be leased again."""
    at = low
    table = progress.leases
    high = min(high, progress.cursor)  # nothing is outstanding above
    while at < high:
        lease = table.find(at)
        if lease is None:
            progress.retry.pop(at, None)
            progress.sleeping.pop(at, None)
            at += 1
        elif at == lease.low and not lease.holes and lease.high <= high:
            at = lease.high
            table.remove(lease)
        else:
            if for_good:
                table.take(lease, at)
            else:
                table.cut_out(lease, at)
            at += 1
