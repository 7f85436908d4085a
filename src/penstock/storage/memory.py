"""The memory engine: the same contract, kept in lists, gone when it is closed.

It serves ``memory://``, topics of durability ``memory``, ephemeral channels (they have no journal
that outlives the broker) and tests. Logs and journals that were closed can be opened again as long
as the engine lives: an idle topic that is unloaded keeps its messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise
from threading import Lock

from penstock.errors import OperatingError
from penstock.protocol.block import Block
from penstock.protocol.journal import BATCH, RECORD, Batch
from penstock.storage.port import Bounds, Log, State


class MemoryLog:
    """Blocks in a list; written is what readers see, synced is what they were told is safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: list[Block] = []
        self._blocks: list[Block] = []
        self._start = 0
        self._end = 0
        self._written_end = 0
        self._synced_end = 0
        self._bytes = 0
        self._appended_at_ns = 0

    def bounds(self) -> Bounds:
        with self._lock:
            return Bounds(
                start=self._start,
                end=self._end,
                synced_end=self._synced_end,
                clean=True,
                cut_bytes=0,
                bytes=self._bytes,
                appended_at_ns=self._appended_at_ns,
                droppable_end=self._blocks[-1].base if self._blocks else self._start,
                holes=tuple(
                    [
                        (left.end, right.base)
                        for left, right in pairwise(self._blocks)
                        if left.end < right.base
                    ]
                ),
            )

    def append(self, block: Block) -> None:
        with self._lock:
            assert block.base >= self._end, (block, self._end)
            assert block.appended_at_ns >= self._appended_at_ns, "append times never decrease"
            self._pending.append(block)
            self._end = block.end
            self._appended_at_ns = block.appended_at_ns

    def write(self) -> None:
        with self._lock:
            if not self._pending:
                return
            if not self._blocks:
                self._start = max(self._start, self._pending[0].base)
            self._blocks += self._pending
            self._bytes += sum([len(block.frames) for block in self._pending])
            self._written_end = self._pending[-1].end
            self._pending = []

    def sync(self) -> int:
        with self._lock:
            self._synced_end = self._written_end
            return self._synced_end

    def read(self, seq: int, bytes_max: int) -> list[Block]:
        with self._lock:
            at = bisect_right(self._blocks, seq, key=_end_of)
            taken = self._blocks[at : at + 1]
            size = sum([len(block.frames) for block in taken])
            for block in self._blocks[at + 1 : at + 1 + bytes_max]:
                size += len(block.frames)
                if size > bytes_max:
                    break
                taken.append(block)
            return taken

    def seek_time(self, appended_at_ns: int) -> int:
        with self._lock:
            at = bisect_left(self._blocks, appended_at_ns, key=_appended_at_of)
            return self._blocks[at].base if at < len(self._blocks) else self._written_end

    def drop_below(self, seq: int) -> int:
        with self._lock:
            # the last one stays, as in any log: it says where the log ends
            count = min(bisect_right(self._blocks, seq, key=_end_of), max(len(self._blocks) - 1, 0))
            if count:
                self._bytes -= sum([len(block.frames) for block in self._blocks[:count]])
                del self._blocks[:count]
                self._start = self._blocks[0].base
            return self._start

    def close(self) -> None:
        self.write()
        self.sync()


class MemoryJournal:
    """Batches in a list, with those before the newest snapshot as history."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: list[Batch] = []
        self._parts: list[list[Batch]] = [[]]
        self._bytes_since_snapshot = 0

    @property
    def bytes_since_snapshot(self) -> int:
        return self._bytes_since_snapshot

    def append(self, batch: Batch) -> None:
        with self._lock:
            self._pending.append(batch)

    def write(self) -> None:
        with self._lock:
            for batch in self._pending:
                if batch.snapshot:
                    if self._parts[-1]:
                        self._parts.append([])
                    self._bytes_since_snapshot = 0
                else:
                    self._bytes_since_snapshot += BATCH.size + RECORD.size * len(batch.records)
                self._parts[-1].append(batch)
            self._pending = []

    def sync(self) -> None:
        """Nothing survives the process, whatever is done here."""

    def recover(self) -> Iterator[Batch]:
        with self._lock:
            return iter(self._parts[-1][:])

    def history(self) -> Iterator[Batch]:
        with self._lock:
            return iter([batch for part in self._parts for batch in part])

    @property
    def has_history(self) -> bool:
        return len(self._parts) > 1

    def drop_before(self, at_ns: int, now_ns: int) -> None:
        with self._lock:
            while len(self._parts) > 1 and self._oldest_ns(now_ns) < at_ns:
                del self._parts[0]

    def _oldest_ns(self, now_ns: int) -> int:
        """Of the first part of the history; or of the next, when that one cannot be right."""
        newest = map(_newest_ns, self._parts[:-1])
        return next((at_ns for at_ns in newest if at_ns <= now_ns), now_ns)

    def close(self) -> None:
        self.write()


class MemoryState:
    """A dictionary, with its keys in order."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: dict[str, bytes] = {}
        self._keys: list[str] = []

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        with self._lock:
            first = bisect_left(self._keys, prefix)
            last = bisect_left(self._keys, f"{prefix}\U0010ffff", first)
            found = [(key, self._values[key]) for key in self._keys[first:last]]
        return iter(found)

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            if key not in self._values:
                insort(self._keys, key)
            self._values[key] = value

    def delete(self, key: str) -> None:
        with self._lock:
            if self._values.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def write(self) -> None:
        """There is nowhere to write to."""

    def sync(self) -> None:
        """Nothing survives the process, whatever is done here."""


class MemoryEngine:
    """Logs, journals and state of one broker, for as long as it runs."""

    writes_inline = True

    def __init__(self) -> None:
        self.state: State = MemoryState()
        self._logs: dict[str, dict[tuple[int, int], MemoryLog]] = {}
        self._journals: dict[str, dict[str, MemoryJournal]] = {}

    def log(self, topic: str, partition: int, lane: int) -> MemoryLog:
        return self._logs.setdefault(topic, {}).setdefault((partition, lane), MemoryLog())

    def commit(self, logs: Sequence[Log]) -> list[int | OperatingError]:
        for log in logs:
            log.write()
        return [log.sync() for log in logs]

    def journal(self, topic: str, channel: str) -> MemoryJournal:
        return self._journals.setdefault(topic, {}).setdefault(channel, MemoryJournal())

    def lanes(self, topic: str, partition: int) -> Sequence[int]:
        return sorted(
            [
                lane
                for (of_partition, lane), log in self._logs.get(topic, {}).items()
                if of_partition == partition and log.bounds().end
            ]
        )

    def drop_topic(self, topic: str) -> None:
        self._logs.pop(topic, None)
        self._journals.pop(topic, None)

    def drop_channel(self, topic: str, channel: str) -> None:
        self._journals.get(topic, {}).pop(channel, None)

    def accepts_publishes(self) -> bool:
        return True

    def chore(self) -> None:
        """Nothing comes up."""

    def close(self) -> None:
        self.state = MemoryState()
        self._logs = {}
        self._journals = {}


def _end_of(block: Block) -> int:
    return block.end


def _appended_at_of(block: Block) -> int:
    return block.appended_at_ns


def _newest_ns(part: list[Batch]) -> int:
    return max([record[5] for batch in part for record in batch.records], default=0)
