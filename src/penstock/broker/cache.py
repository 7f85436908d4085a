"""Decoded blocks kept in memory: the hot tail of every log and what readers fetched, least
recently used out first, bounded by bytes over the whole broker.

A lane finds its blocks by seq (``BlockShelf``); the cache only counts bytes and says which goes.
Nothing is lost by leaving the cache: a block is here only when its log can give it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

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

    def insert(self, block: Block) -> bool:
        """Put it in its place; False when that seq is here already."""
        bases = self.bases
        if not bases or block.base > bases[-1]:
            bases.append(block.base)
            self.blocks.append(block)
            return True
        index = bisect_right(bases, block.base)
        if index and self.blocks[index - 1].end > block.base:
            return False
        if index < len(bases) and bases[index] < block.end:
            return False
        bases.insert(index, block.base)
        self.blocks.insert(index, block)
        return True

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
        if not shelf.insert(block):
            return
        entries = self.entries
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
