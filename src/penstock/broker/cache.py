"""Decoded blocks kept in memory: the hot tail of every log and what readers fetched, least
recently used out first, bounded by bytes over the whole broker.

A lane finds its blocks by seq (``BlockShelf``); the cache only counts bytes and says which goes.
Nothing is lost by leaving the cache: a block is here only when its log can give it again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from penstock.protocol.block import Block

BLOCK_OVERHEAD_BYTES = 400  # the object, its end column and its places on shelf and cache


class BlockShelf:
    """The cached blocks of one lane, sorted by base."""

    __slots__ = ("bases", "blocks")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.blocks: list[Block] = []

    def find(self, seq: int) -> Block | None:
        """The cached block whose range holds ``seq``."""
        index = bisect_right(self.bases, seq) - 1
        if index >= 0:
            block = self.blocks[index]
            if block.end > seq:
                return block
        return None

    def insert(self, block: Block) -> Sequence[Block] | None:
        """Put it in its place; returns the blocks that it takes the place of, None when one that
        is here has all of it. (A reader joins neighbours: what it brings may lie over what is
        here, and whoever asked for it must find it.)"""
        bases, blocks = self.bases, self.blocks
        if not bases or block.base >= blocks[-1].end:
            bases.append(block.base)
            blocks.append(block)
            return ()
        first = bisect_right(bases, block.base)
        if first and blocks[first - 1].end > block.base:
            first -= 1
            if blocks[first].end >= block.end:
                return None
        last = bisect_left(bases, block.end, first)
        replaced = blocks[first:last]
        bases[first:last] = [block.base]
        blocks[first:last] = [block]
        return replaced

    def remove(self, block: Block) -> None:
        index = bisect_right(self.bases, block.base) - 1
        if index >= 0 and self.blocks[index] is block:
            del self.bases[index], self.blocks[index]


class BlockCache:
    """Which blocks of all lanes stay in memory."""

    __slots__ = ("bytes", "bytes_max", "entries", "hits", "misses")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self.entries: OrderedDict[int, tuple[BlockShelf, Block]] = OrderedDict()

    def add(self, shelf: BlockShelf, block: Block) -> None:
        replaced = shelf.insert(block)
        if replaced is None:
            return
        entries = self.entries
        for old in replaced:
            del entries[id(old)]
            self.bytes -= len(old.frames) + BLOCK_OVERHEAD_BYTES
        entries[id(block)] = (shelf, block)
        self.bytes += len(block.frames) + BLOCK_OVERHEAD_BYTES
        while self.bytes > self.bytes_max and len(entries) > 1:
            _, (old_shelf, old) = entries.popitem(last=False)
            self.bytes -= len(old.frames) + BLOCK_OVERHEAD_BYTES
            old_shelf.remove(old)

    def find(self, shelf: BlockShelf, seq: int) -> Block | None:
        block = shelf.find(seq)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self.entries.move_to_end(id(block))
        return block

    def forget(self, shelf: BlockShelf) -> None:
        """Drop all blocks of a lane that is going away."""
        for block in shelf.blocks:
            del self.entries[id(block)]
            self.bytes -= len(block.frames) + BLOCK_OVERHEAD_BYTES
        shelf.bases.clear()
        shelf.blocks.clear()
