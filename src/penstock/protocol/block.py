"""The block: all that was published to one log in one commit turn, and what it looks like as bytes.

The same bytes go to disk, to consumers' sockets and to Spark. Inside a block every message already
is the NSQ message frame that a consumer receives, beside a column of end offsets; delivering many
fresh messages is one slice, and turning a block into columns needs no loop. This module forms,
encodes and decodes blocks; it opens no file and knows no topic.

Layout on disk, format version 1 (little-endian, except the frames, which are as on NSQ's wire)::

    off size
      0   4  magic "PSB1"
      4   4  CRC-32 (zlib's) of bytes 8 .. length
      8   4  length: the whole block, this header included
     12   2  format version
     14   2  flags: which columns are there, how the frames are compressed
     16   4  log tag (24 bits used)
     20   4  lane: a priority (int32), or DELAY_LANE
     24   8  base: seq of the first message
     32   4  count of messages
     36   4  bytes of columns (end offsets included)
     40   4  bytes of frames as stored
     44   4  bytes of frames plain
     48   8  append time, ns; never decreasing in a log (index, seek by time, rolling, retention)
     56   8  smallest publish timestamp, ns (pruning only)
     64   8  largest publish timestamp, ns (pruning only)
     72   8  the log's synced end as known when this block was written
     80   8  commit number: one sequence over all logs of a broker
     88   8  end: seq behind the last message (base + count unless there is a seq column)
     96      end offsets u32 x count, into the plain frames
             seqs   u64 x count         FLAG_SEQS: where they are not base + i
             ids    u64 x count         FLAG_IDS: where they are not the tag's number + i
             wakes  i64 x count         FLAG_WAKES: the delay lane's wake times, ns
             mark   i64 wake, u64 seq   FLAG_MARK: the delay lane has moved up to here
             attributes u32 x count end offsets, then the bytes    FLAG_ATTRIBUTES
             frames

    one frame (big-endian): u32 size (30 + body) | u32 type 2 | i64 publish timestamp, ns |
                            u16 attempts 1 | 16 hex characters of id | body

To change the format: add a version constant and its decoder beside this one, keep decoding all
older versions, write only the newest, add a stored sample of the old one to
``tests/unit/protocol/samples``, and say so under Upgrading in CHANGELOG.md. A column can be added
within version 1 only behind a flag that old readers refuse (they refuse unknown flags).
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from zlib import crc32

from penstock.errors import CorruptionError
from penstock.limits import ATTEMPTS_MAX

MAGIC = b"PSB1"
VERSION = 1
HEADER = Struct("<4sIIHHIiQIIIIqqqQQQ")
HEADER_BYTES = HEADER.size
BRIEF = Struct("<4sIIHH8xQ16xq16xQ8xQ")
"""What checking a block needs of its header: magic, CRC, length, version, flags, base, append time,
synced end, end."""
STEP = Struct("<4s4xI36xq32xQ")
"""What stepping over a block needs of its header: magic, length, append time, end."""
CHECKED_FROM = 8

FLAG_SEQS = 1
FLAG_IDS = 2
FLAG_WAKES = 4
FLAG_MARK = 8
FLAG_ATTRIBUTES = 16
FLAG_CODEC = 0x0F00  # how the messages are compressed; 0, the only one of version 1, is not at all
KNOWN_FLAGS = FLAG_SEQS | FLAG_IDS | FLAG_WAKES | FLAG_MARK | FLAG_ATTRIBUTES

DELAY_LANE = -(2**31)  # not a priority: the log of messages that wait for their due time
NUMBER_BITS = 40
NUMBER_MASK = (1 << NUMBER_BITS) - 1
TAG_MAX = (1 << 24) - 1

FRAME_HEAD_BYTES = 34
FRAME_PREFIX = Struct(">IIqH")
FRAME_TYPE_MESSAGE = 2
MARK = Struct("<qQ")
LITTLE = sys.byteorder == "little"


class Block:
    """Messages of one log under consecutive seqs (or those of ``seqs``), decoded."""

    __slots__ = (
        "appended_at_ns",
        "attributes",
        "base",
        "commit",
        "count",
        "end",
        "ends",
        "frames",
        "ids",
        "lane",
        "mark",
        "published_first_ns",
        "published_last_ns",
        "seqs",
        "synced_end",
        "tag",
        "wakes",
    )

    def __init__(
        self,
        *,
        tag: int,
        lane: int,
        base: int,
        ends: array[int],
        frames: bytes,
        appended_at_ns: int,
        published_first_ns: int,
        published_last_ns: int,
        commit: int = 0,
        synced_end: int = 0,
        seqs: array[int] | None = None,
        ids: array[int] | None = None,
        wakes: array[int] | None = None,
        mark: tuple[int, int] | None = None,
        attributes: Sequence[bytes] | None = None,
    ) -> None:
        self.tag = tag
        self.lane = lane
        self.base = base
        self.count = len(ends)
        self.end = base + self.count if seqs is None else seqs[-1] + 1
        self.ends = ends
        self.frames = frames
        self.appended_at_ns = appended_at_ns
        self.published_first_ns = published_first_ns
        self.published_last_ns = published_last_ns
        self.commit = commit
        self.synced_end = synced_end
        self.seqs = seqs
        self.ids = ids
        self.wakes = wakes
        self.mark = mark
        self.attributes = attributes

    def __repr__(self) -> str:
        return f"Block({self.tag}/{self.lane} [{self.base}, {self.end}), {len(self.frames)} bytes)"

    def __eq__(self, other: object) -> bool:
        """Same messages under the same seqs; where and how they are stored does not count."""
        if not isinstance(other, Block):
            return NotImplemented
        return (
            self.base == other.base
            and self.ends == other.ends
            and self.frames == other.frames
            and self.seqs == other.seqs
            and self.id_list() == other.id_list()
            and self.wakes == other.wakes
            and self.mark == other.mark
            and [*(self.attributes or ())] == [*(other.attributes or ())]
            and self.lane == other.lane
            and self.appended_at_ns == other.appended_at_ns
        )

    __hash__ = None  # type: ignore[assignment]  # compared by value, never a key

    def index_of(self, seq: int) -> int:
        """Index of the first message at or above ``seq`` (``count`` when all lie below)."""
        if self.seqs is None:
            return min(max(seq - self.base, 0), self.count)
        return bisect_left(self.seqs, seq)

    def seq_at(self, index: int) -> int:
        return self.base + index if self.seqs is None else self.seqs[index]

    def id_at(self, index: int) -> int:
        if self.ids is not None:
            return self.ids[index]
        return (self.tag << NUMBER_BITS) | (self.seq_at(index) & NUMBER_MASK)

    def id_list(self) -> list[int]:
        return [self.id_at(i) for i in range(self.count)]

    def frames_between(self, first: int, last: int) -> bytes:
        """The frames of messages ``first`` .. ``last`` (indexes, the latter not included)."""
        start = self.ends[first - 1] if first else 0
        if not start and last == self.count:
            return self.frames
        return self.frames[start : self.ends[last - 1]]

    def frame_at(self, index: int) -> bytes:
        return self.frames[self.ends[index - 1] if index else 0 : self.ends[index]]

    def body_at(self, index: int) -> bytes:
        start = self.ends[index - 1] if index else 0
        return self.frames[start + FRAME_HEAD_BYTES : self.ends[index]]

    def bytes_between(self, first: int, last: int) -> int:
        if last <= first:
            return 0
        return self.ends[last - 1] - (self.ends[first - 1] if first else 0)


def with_attempts(frame: bytes, attempts: int) -> bytes:
    """The frame as it goes out again: the same bytes with another number of attempts."""
    return b"%b%b%b" % (frame[:16], min(attempts, ATTEMPTS_MAX).to_bytes(2, "big"), frame[18:])


def form_frames(
    first_id: int, groups: Sequence[tuple[int, Sequence[bytes]]]
) -> tuple[array[int], bytes]:
    """Lay bodies out as frames, ids counting up from ``first_id``; ``groups`` are (timestamp,
    bodies).

    One pass without a Python-level loop per message: this is half of what a publish costs.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    total = sum([len(bodies) for _, bodies in groups])
    numbers = array("Q", range(first_id, first_id + total))
    if LITTLE:
        numbers.byteswap()
    digits = numbers.tobytes().hex().encode()
    ids = iter([digits[i : i + 16] for i in range(0, 16 * total, 16)])
    pack = FRAME_PREFIX.pack
    for timestamp, bodies in groups:
        lengths = [*map(len, bodies)]
        prefixes = {n: pack(n + 30, FRAME_TYPE_MESSAGE, timestamp, 1) for n in {*lengths}}
        # bodies first: zip stops at the first exhausted iterable without taking an id
        for body, prefix, number in zip(bodies, map(prefixes.__getitem__, lengths), ids):
            parts += (prefix, number, body)
        sizes += lengths
    ends = array("I", accumulate([n + FRAME_HEAD_BYTES for n in sizes]))
    return ends, b"".join(parts)


def encode(block: Block) -> tuple[bytes, bytes]:
    """The block as stored, in two pieces (header with columns; frames): no frame is copied."""
    columns = [_stored(block.ends)]
    flags = 0
    if block.seqs is not None:
        flags |= FLAG_SEQS
        columns.append(_stored(block.seqs))
    if block.ids is not None:
        flags |= FLAG_IDS
        columns.append(_stored(block.ids))
    if block.wakes is not None:
        flags |= FLAG_WAKES
        columns.append(_stored(block.wakes))
    if block.mark is not None:
        flags |= FLAG_MARK
        columns.append(MARK.pack(*block.mark))
    if block.attributes is not None:
        flags |= FLAG_ATTRIBUTES
        columns.append(_stored(array("I", accumulate(map(len, block.attributes)))))
        columns.extend(block.attributes)
    column_bytes = b"".join(columns)
    plain = len(block.frames)
    fields = (
        HEADER_BYTES + len(column_bytes) + plain,
        VERSION,
        flags,
        block.tag,
        block.lane,
        block.base,
        block.count,
        len(column_bytes),
        plain,
        plain,
        block.appended_at_ns,
        block.published_first_ns,
        block.published_last_ns,
        block.synced_end,
        block.commit,
        block.end,
    )
    checked = HEADER.pack(MAGIC, 0, *fields)[CHECKED_FROM:]
    crc = crc32(block.frames, crc32(column_bytes, crc32(checked)))
    return b"%b%b%b%b" % (MAGIC, crc.to_bytes(4, "little"), checked, column_bytes), block.frames


def length_of(stored: bytes | memoryview, at: int = 0) -> int:
    """Length of the block that starts at ``at``; 0 when no block starts there."""
    if len(stored) - at < HEADER_BYTES or stored[at : at + 4] != MAGIC:
        return 0
    length = int.from_bytes(stored[at + 8 : at + 12], "little")
    return length if length >= HEADER_BYTES else 0


def decode(stored: bytes | memoryview, at: int = 0) -> Block:
    """The block at ``at``; raises CorruptionError on anything that was not written whole."""
    length = length_of(stored, at)
    if not length or length > len(stored) - at:
        raise CorruptionError("no whole block here")
    fields = HEADER.unpack_from(stored, at)
    (_, crc, _, version, flags, tag, lane, base, count, columns_bytes, kept, plain) = fields[:12]
    if crc32(memoryview(stored)[at + CHECKED_FROM : at + length]) != crc:
        raise CorruptionError(f"checksum of block at seq {base} does not match")
    if version != VERSION or flags & ~KNOWN_FLAGS:
        raise CorruptionError(
            f"block at seq {base} has format {version}/{flags:#x}: written by a newer Penstock"
        )
    if HEADER_BYTES + columns_bytes + kept != length or kept != plain or not count:
        raise CorruptionError(f"lengths of block at seq {base} contradict each other")
    view = memoryview(stored)
    offset = at + HEADER_BYTES

    def column(code: str, width: int) -> array[int]:
        nonlocal offset
        taken = view[offset : offset + width * count]
        if len(taken) != width * count:
            raise CorruptionError(f"a column of block at seq {base} is cut short")
        offset += width * count
        return _loaded(code, taken)

    ends = column("I", 4)
    seqs = column("Q", 8) if flags & FLAG_SEQS else None
    ids = column("Q", 8) if flags & FLAG_IDS else None
    wakes = column("q", 8) if flags & FLAG_WAKES else None
    mark: tuple[int, int] | None = None
    if flags & FLAG_MARK:
        if at + length - offset < MARK.size:
            raise CorruptionError(f"the mark of block at seq {base} is cut short")
        mark = MARK.unpack_from(view, offset)
        offset += MARK.size
    attributes: list[bytes] | None = None
    if flags & FLAG_ATTRIBUTES:
        bounds = column("I", 4)
        attributes = []
        start = 0
        for end in bounds:
            if end < start:
                raise CorruptionError(f"attributes of block at seq {base} end before they begin")
            attributes.append(bytes(view[offset + start : offset + end]))
            start = end
        offset += start
    frames_at = at + HEADER_BYTES + columns_bytes
    end = base + count if seqs is None else seqs[-1] + 1
    if offset != frames_at or ends[-1] != plain or fields[17] != end:
        raise CorruptionError(f"columns of block at seq {base} contradict its header")
    return Block(
        tag=tag,
        lane=lane,
        base=base,
        ends=ends,
        frames=bytes(view[frames_at : frames_at + kept]),
        appended_at_ns=fields[12],
        published_first_ns=fields[13],
        published_last_ns=fields[14],
        synced_end=fields[15],
        commit=fields[16],
        seqs=seqs,
        ids=ids,
        wakes=wakes,
        mark=mark,
        attributes=attributes,
    )


def decode_run(stored: bytes, at: int, limit: int) -> tuple[list[Block], int]:
    """The block at ``at``, those behind it that end within ``limit``, and where the last one ends.

    The same as ``decode`` on each, at a third of the price for plain blocks: a backlog of messages
    that were published one by one is read here. Stops in front of damage, and of a block whose seqs
    do not follow (it was written to the wrong place): only the first raises.
    """
    first = decode(stored, at)
    expected = first.end
    at += length_of(stored, at)
    blocks = [first]
    view = memoryview(stored)
    unpack = HEADER.unpack_from
    last_header = min(limit, len(stored)) - HEADER_BYTES
    while at <= last_header:
        (
            magic,
            crc,
            length,
            version,
            flags,
            tag,
            lane,
            base,
            count,
            columns_bytes,
            kept,
            plain,
            appended_at_ns,
            published_first_ns,
            published_last_ns,
            synced_end,
            commit,
            end,
        ) = unpack(stored, at)
        behind = at + length
        if magic != MAGIC or length < HEADER_BYTES or behind > limit or behind > len(stored):
            break
        if base != expected:
            break
        expected = end
        frames_at = behind - kept
        if (
            flags
            or version != VERSION
            or end - base != count
            or columns_bytes != 4 * count
            or plain != kept
            or frames_at != at + HEADER_BYTES + columns_bytes
            or not count
            or crc32(view[at + CHECKED_FROM : behind]) != crc
        ):
            # it has columns, or is damaged
            try:
                blocks.append(decode(stored, at))
            except CorruptionError:
                break  # whoever asks for it next is told
            at = behind
            continue
        ends = array("I", stored[frames_at - columns_bytes : frames_at])
        if not LITTLE:
            ends.byteswap()
        if ends[-1] != plain:
            break
        # __init__ with its keywords would double the price of a block
        block = Block.__new__(Block)
        block.tag = tag
        block.lane = lane
        block.base = base
        block.count = count
        block.end = end
        block.ends = ends
        block.frames = stored[frames_at:behind]
        block.appended_at_ns = appended_at_ns
        block.published_first_ns = published_first_ns
        block.published_last_ns = published_last_ns
        block.commit = commit
        block.synced_end = synced_end
        block.seqs = block.ids = block.wakes = block.mark = block.attributes = None
        blocks.append(block)
        at = behind
    return blocks, at


def gather(blocks: Sequence[Block]) -> list[Block]:
    """Join neighbours (consecutive seqs, plain columns) so that a reader meets few large blocks."""
    out: list[Block] = []
    run: list[Block] = []
    for block in blocks:
        if run and not _joins(run[-1], block):
            out.append(_joined(run))
            run = []
        run.append(block)
    if run:
        out.append(_joined(run))
    return out


def _joins(left: Block, right: Block) -> bool:
    return (
        left.end == right.base
        and left.tag == right.tag
        and left.seqs is right.seqs is None
        and left.ids is right.ids is None
        and left.wakes is right.wakes is None
        and left.mark is right.mark is None
        and left.attributes is right.attributes is None
    )


def _joined(run: Sequence[Block]) -> Block:
    first, last = run[0], run[-1]
    if first is last:
        return first
    ends = array("I")
    at = 0
    for block in run:
        ends.extend(block.ends if not at else [at + end for end in block.ends])
        at += len(block.frames)
    return Block(
        tag=first.tag,
        lane=first.lane,
        base=first.base,
        ends=ends,
        frames=b"".join([block.frames for block in run]),
        appended_at_ns=first.appended_at_ns,
        published_first_ns=min([block.published_first_ns for block in run]),
        published_last_ns=max([block.published_last_ns for block in run]),
        commit=last.commit,
        synced_end=last.synced_end,
    )


def _stored(column: array[int]) -> bytes:
    if LITTLE:
        return column.tobytes()
    swapped = column[:]
    swapped.byteswap()
    return swapped.tobytes()


def _loaded(code: str, stored: memoryview) -> array[int]:
    column = array(code, bytes(stored))
    if not LITTLE:
        column.byteswap()
    return column


assert (
    HEADER_BYTES == BRIEF.size == STEP.size == 96
    and array("I").itemsize == 4
    and array("Q").itemsize == 8
)
