"""The storage port: what the broker asks of an engine, and nothing more.

Four small things: a *log* (blocks in seq order), a *journal* per channel (typed batches), a
*state* (small values by key), and the *engine* that makes them. Engines persist; they decide
nothing. The contract suite in ``tests/contract`` is the specification: every engine passes the
same one.

Who calls what: ``append`` and ``put`` only buffer and are called on the event loop. ``write`` and
``sync`` may block; the committer calls them on a disk thread, or ``write`` on the loop where the
engine says that it only touches the page cache (``writes_inline``). For one log (journal, state)
write and sync never run twice at once, but append may run while they do: what is appended after
``write`` began belongs to the next one. ``read`` and ``seek_time`` may run on any thread at any
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from penstock.errors import OperatingError
from penstock.protocol.block import Block
from penstock.protocol.journal import Batch


class Bounds(NamedTuple):
    """What a log holds: seqs ``start`` .. ``end``, of which those below ``synced_end`` survive
    power loss.

    ``clean`` says whether the log was closed properly last time. ``cut_bytes`` is what recovery
    had to cut from a torn tail. ``bytes`` is the space it takes. ``holes`` are seq ranges [low,
    high) between start and end that were never given to a message; a block behind a hole begins a
    new segment, so a log knows them all. What ``drop_below`` can free ends at ``droppable_end``.
    """

    start: int
    end: int
    synced_end: int
    clean: bool
    cut_bytes: int
    bytes: int
    appended_at_ns: int
    droppable_end: int
    holes: tuple[tuple[int, int], ...] = ()


class Log(Protocol):
    """One lane of one partition: blocks in seq order, appended behind, dropped in front."""

    def bounds(self) -> Bounds: ...

    def append(self, block: Block) -> None:
        """Buffer a block; its base is at or above the end (holes are legal)."""

    def write(self) -> None:
        """Hand everything appended so far to the operating system.

        Raises DiskFull when there is no room: nothing of it is kept, the log's end is what it was
        before those appends, and the log goes on. Raises LogFrozen on any other failure, and from
        then on.
        """

    def sync(self) -> int:
        """Make everything written before this call durable; returns the synced end.

        Raises LogFrozen when the device reports an error; the log then takes no more writes until
        reopened.
        """

    def read(self, seq: int, bytes_max: int) -> list[Block]:
        """Written blocks from the one that holds ``seq`` (or the next above it), at least one if
        there is any, further ones up to ``bytes_max``. Raises CorruptionError on damage."""

    def seek_time(self, appended_at_ns: int) -> int:
        """Seq of the first block appended at or after that time (the end when there is none)."""

    def drop_below(self, seq: int) -> int:
        """Free what lies wholly below ``seq``, by whole segments; returns the new start."""

    def close(self) -> None:
        """Write, sync and note a clean end."""


class Journal(Protocol):
    """What happened in one channel; restored from, inspected, and read by Spark as a table."""

    def append(self, batch: Batch) -> None: ...

    def write(self) -> None:
        """As Log.write, but uses the reserved space where the disk is full: consumers can go on
        finishing."""

    def sync(self) -> None: ...

    def recover(self) -> Iterator[Batch]:
        """The newest snapshot and every batch after it, in order. Call once, before the first
        append."""

    def history(self) -> Iterator[Batch]:
        """All that is kept, oldest first, without disturbing the writer."""

    @property
    def bytes_since_snapshot(self) -> int: ...

    @property
    def has_history(self) -> bool:
        """Whether there is anything that ``drop_before`` can free."""

    def drop_before(self, at_ns: int, now_ns: int) -> None:
        """Free history whose newest record is older than that, never what recovery needs. Records
        later than now are of a clock that was ahead: they are as old as what follows them."""

    def close(self) -> None: ...


class State(Protocol):
    """Small values by key: which topics and channels there are, tags, reservations, marks."""

    def get(self, key: str) -> bytes | None: ...

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]: ...

    def put(self, key: str, value: bytes) -> None: ...

    def delete(self, key: str) -> None: ...

    def write(self) -> None: ...

    def sync(self) -> None: ...


class Engine(Protocol):
    """Makes logs, journals and state; owns the place they are kept in (a locked directory, a
    database)."""

    writes_inline: bool
    state: State

    def log(self, topic: str, partition: int, lane: int) -> Log:
        """Open or create; an opened log has been recovered. Raises CorruptionError when it is
        damaged below its synced end (the bytes are kept, nothing is cut)."""

    def commit(self, logs: Sequence[Log]) -> Sequence[int | OperatingError]:
        """Write and sync several logs, for less than each by itself. What became of each: its
        synced end, or its error, which is no other's. Called off the loop."""

    def journal(self, topic: str, channel: str) -> Journal: ...

    def lanes(self, topic: str, partition: int) -> Sequence[int]:
        """Lanes that have a log there."""

    def drop_topic(self, topic: str) -> None:
        """Free all that a topic had. Its logs and journals have been closed."""

    def drop_channel(self, topic: str, channel: str) -> None: ...

    def accepts_publishes(self) -> bool:
        """False while the disk is too full: first the reserved space must be whole."""

    def chore(self) -> Callable[[], None] | None:
        """Work that has come up and may block: it is asked for a few times a second, and called
        off the loop, one at a time."""

    def close(self) -> None: ...
