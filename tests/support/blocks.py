"""Blocks for tests of storage: plain ones in one call, others with the columns asked for."""

from array import array
from collections.abc import Sequence

from penstock.protocol.block import Block, form_frames

TAG = 7


def block(
    base: int,
    bodies: Sequence[bytes] = (b"a",),
    *,
    at_ns: int = 0,
    lane: int = 0,
    tag: int = TAG,
    seqs: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    wakes: Sequence[int] | None = None,
    mark: tuple[int, int] | None = None,
    attributes: Sequence[bytes] | None = None,
) -> Block:
    """Messages from ``base`` on, appended and published at ``at_ns`` (the base when not given)."""
    at_ns = at_ns or base
    ends, frames = form_frames((tag << 40) | base, [(at_ns, bodies)])
    return Block(
        tag=tag,
        lane=lane,
        base=base,
        ends=ends,
        frames=frames,
        appended_at_ns=at_ns,
        published_first_ns=at_ns,
        published_last_ns=at_ns,
        seqs=None if seqs is None else array("Q", seqs),
        ids=None if ids is None else array("Q", ids),
        wakes=None if wakes is None else array("q", wakes),
        mark=mark,
        attributes=attributes,
    )


def chain(count: int, *, base: int = 0, size: int = 10, each: int = 1) -> list[Block]:
    """``count`` plain blocks of ``each`` messages, one behind the other."""
    return [block(base + n * each, [b"x" * size] * each) for n in range(count)]
