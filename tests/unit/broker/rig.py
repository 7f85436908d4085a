"""What the tests of the core share: blocks made by hand, and a disk that is a list.

A lane's disk keeps what was committed, as the engine would; ``bring`` does what the runtime's
reader does when a block is wanted that is not in memory.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate

from penstock.broker.lanes import Lane
from penstock.broker.subscriber import Subscriber
from penstock.errors import OperatingError
from penstock.protocol.block import FRAME_HEAD_BYTES, NUMBER_BITS, Block, form_frames

SECOND = 1_000_000_000
TIMEOUT = 60 * SECOND


def block(
    base: int, bodies: Sequence[bytes], *, tag: int = 7, ids: Sequence[int] | None = None
) -> Block:
    """A block of one publish; with ``ids`` as if it had been moved."""
    ends, frames = form_frames((tag << NUMBER_BITS) | base, [(1000, bodies)])
    if ids is not None:
        parts = [form_frames(number, [(1000, [body])])[1] for number, body in zip(ids, bodies)]
        ends = array("I", accumulate(map(len, parts)))
        frames = b"".join(parts)
    return Block(
        tag=tag,
        lane=0,
        base=base,
        ends=ends,
        frames=frames,
        appended_at_ns=1000,
        published_first_ns=1000,
        published_last_ns=1000,
        ids=None if ids is None else array("Q", ids),
    )


def commit(lane: Lane, now_ns: int = 1000) -> list[Block]:
    """The lane's commit turn, and all goes well."""
    blocks, turn, size = lane.form(now_ns)
    lane.committed(blocks, size)
    turn.end()
    return blocks


def refuse(lane: Lane, error: OperatingError, *, lasting: bool = False) -> list[Block]:
    """The lane's commit turn, and the disk keeps nothing of it."""
    blocks, turn, size = lane.form(1000)
    lane.failed(blocks, size, error, lasting)
    turn.end(error)
    return blocks


def messages_of(frames: bytes) -> list[tuple[int, int, bytes]]:
    """(id, attempts, body) of each message as it went to a consumer."""
    out: list[tuple[int, int, bytes]] = []
    at = 0
    while at < len(frames):
        end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
        attempts = int.from_bytes(frames[at + 16 : at + 18], "big")
        number = int(frames[at + 18 : at + FRAME_HEAD_BYTES], 16)
        out.append((number, attempts, frames[at + FRAME_HEAD_BYTES : end]))
        at = end
    return out


class Consumer:
    """A subscriber that keeps what it got."""

    def __init__(self, name: str = "c", *, timeout_ns: int = TIMEOUT, sample_rate: int = 0) -> None:
        self.got: list[tuple[int, int, bytes]] = []
        self.dropped = False
        self.subscriber = Subscriber(name, self._deliver, self._drop, timeout_ns, sample_rate)

    def _deliver(self, parts: list[bytes], count: int) -> None:
        messages = messages_of(b"".join(parts))
        assert len(messages) == count
        self.got += messages

    def _drop(self) -> None:
        self.dropped = True

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.got]

    @property
    def ids(self) -> list[int]:
        return [number for number, _, _ in self.got]

    def take(self) -> list[tuple[int, int, bytes]]:
        """What came since the last call."""
        got, self.got = self.got, []
        return got
