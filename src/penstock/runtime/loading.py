"""Opening a topic that an earlier run left: logs recovered, journals replayed, sleepers found. Off
the loop. (What is new is opened here as well, on the loop: there is nothing to recover.)

The topic's objects are built on the loop from its document; the job fills them while nobody else
knows them; from ``go_live`` on, on the loop, all do. The order matters: lanes first (where seqs go
on), then channels (whose cursors may be ahead of a log that lost unsynced messages, but not of one
that syncs them all), then the delay lane (whose watermark stands in the delay journal or in blocks
of the ready lane after it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.broker.lanes import Lane
from penstock.broker.partition import Landed, Partition
from penstock.broker.restore import replay, resume
from penstock.broker.topic import Topic
from penstock.errors import CorruptionError, OperatingError
from penstock.protocol.journal import DELIVERED, MOVED, Batch, Record
from penstock.runtime.journals import Keeper, journal_name
from penstock.storage.port import Engine, Journal, Log

SCAN_BYTES = 4 << 20


class Loaded:
    """What the job opened."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.logs: dict[Lane, Log] = {}
        self.journals: dict[Keeper, Journal] = {}
        self.cut_bytes = 0


def load(topic: Topic, engine: Engine, reserved: Mapping[int, int]) -> Loaded:
    """The disk's part. ``reserved`` are the ends of seq reservations by log. What fails leaves
    nothing open, so that the topic can be asked for again."""
    loaded = Loaded(topic)
    try:
        _load_all(loaded, engine, reserved)
    except BaseException:
        _close(loaded)
        raise
    return loaded


def open_new(
    topic: Topic, engine: Engine, lanes: Iterable[Lane], keepers: Iterable[Keeper]
) -> Loaded:
    """Logs and journals that nobody has written yet: nothing is on disk before their first write.
    What fails leaves nothing open."""
    loaded = Loaded(topic)
    try:
        for lane in lanes:
            loaded.logs[lane] = engine.log(topic.name, lane.partition, lane.lane)
        for keeper in keepers:
            name = journal_name(keeper)
            journal = loaded.journals[keeper] = engine.journal(topic.name, name)
            if any(True for _ in journal.recover()):
                # it belongs to nothing: the state its keeper was made with was never safe
                engine.drop_channel(topic.name, name)
                journal = loaded.journals[keeper] = engine.journal(topic.name, name)
                assert not any(True for _ in journal.recover())
    except BaseException:
        _close(loaded)
        raise
    return loaded


def _load_all(loaded: Loaded, engine: Engine, reserved: Mapping[int, int]) -> None:
    topic = loaded.topic
    for lane in topic.lanes():
        opened = loaded.logs[lane] = engine.log(topic.name, lane.partition, lane.lane)
        bounds = opened.bounds()
        synced_end = bounds.synced_end
        if bounds.end > synced_end:
            synced_end = opened.sync()  # what a killed broker wrote is about to be handed out
        loaded.cut_bytes += bounds.cut_bytes
        lane.restore(
            bounds.start,
            bounds.end,
            synced_end,
            bounds.appended_at_ns,
            reserved.get(lane.log, 0),
        )
        if not lane.stored:
            lane.start = lane.next_seq
        for low, high in bounds.holes:
            lane.note_hole(low, high)
    for name in topic.started:
        channel = topic.open_channel(name)
        journal = loaded.journals[channel] = engine.journal(topic.name, name)
        batches: Iterable[Batch] = journal.recover()
        if topic.durability == "synced":
            batches = _believed(loaded, name, batches)
        replay(channel, batches)
        journal.sync()  # as of the logs: what is finished must not come back with a power cut now
        for progress in channel.progress:
            progress.lane.skip_to(progress.cursor)
    for channel in topic.channels.values():
        resume(channel)
    for partition in topic.partitions:
        if partition.delay is not None:
            _load_delay(partition, loaded, engine)


def _believed(loaded: Loaded, channel: str, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Passes a journal's batches on. What was handed out of a log that syncs every commit is there,
    or the log has lost what it promised: when its files are gone, nothing else knows of it."""
    topic = loaded.topic
    logs = {lane.log: (lane.key, opened.bounds().end) for lane, opened in loaded.logs.items()}
    for batch in batches:
        for kind, log, _, high, *_ in batch.records:
            if kind == DELIVERED and high > logs.get(log, ("", high))[1]:
                key, end = logs[log]
                raise CorruptionError(
                    f"log {key} of topic {topic.name} ends at seq {end}, but channel {channel} was "
                    f"handed seqs up to {high - 1} of it: what was synced there is missing. Put "
                    "the log's files back from a backup, or move the channel's journal away to go "
                    "on without these messages"
                )
        yield batch


def _close(loaded: Loaded) -> None:
    everything: list[Journal | Log] = [*loaded.journals.values(), *loaded.logs.values()]
    for opened in everything:
        try:
            opened.close()
        except OperatingError:
            pass  # it says so itself; what kept the topic from being opened is told instead


def _load_delay(partition: Partition, loaded: Loaded, engine: Engine) -> None:
    journal = engine.journal(partition.topic, journal_name(partition))
    loaded.journals[partition] = journal
    partition.restore_marks([*journal.recover()])
    watermarks = [
        _watermark(partition, lane, loaded.logs[lane]) for lane in partition.ready.values()
    ]
    lowest = min([(mark.wake, mark.seq) for mark in watermarks])
    delay = partition.delay
    assert delay is not None
    opened = loaded.logs[delay]
    sleeping: list[tuple[int, int]] = []
    at = delay.start
    while at < delay.next_seq:
        blocks = opened.read(at, SCAN_BYTES)
        if not blocks:
            break
        for block in blocks:
            for index, wake in enumerate(block.wakes or ()):
                entry = (wake, block.seq_at(index))
                if entry > lowest:
                    sleeping.append(entry)
        at = blocks[-1].end
    partition.schedule.restore(sleeping, max([0, *[mark.wake for mark in watermarks]]))
    if watermarks[0].seq >= 0:
        partition.landed.append(watermarks[0])


def _watermark(partition: Partition, lane: Lane, opened: Log) -> Landed:
    """How far the delay lane has moved into this ready lane."""
    record: Record | None = partition.marks.get(lane.log)
    mark = (0, -1)
    at = lane.start
    if record is not None and record[0] == MOVED:
        mark = (record[6], record[2])
        at = max(at, record[3])
    begin = at
    while at < lane.next_seq:
        blocks = opened.read(at, SCAN_BYTES)
        if not blocks:
            break
        for block in blocks:
            if block.mark is not None:
                mark = max(mark, block.mark)
        at = blocks[-1].end
    return Landed(begin, at, *mark)


def go_live(loaded: Loaded) -> None:
    """On the loop: the topic is live from here on."""
    topic = loaded.topic
    if topic.unclaimed is None and not topic.channels:
        # only ephemeral channels had claimed it, and they are gone with what they had
        topic.note_unclaimed()
    for channel in topic.channels.values():
        channel.watch_wakes()
    for partition in topic.partitions:
        partition.watch()
