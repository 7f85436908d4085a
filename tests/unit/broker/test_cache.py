"""Blocks in memory: found by seq, least recently used out first."""

from penstock.broker.cache import BLOCK_OVERHEAD_BYTES, BlockCache, BlockShelf
from penstock.protocol.block import Block, gather
from tests.unit.broker.rig import block


def some(base: int, count: int = 10) -> Block:
    return block(base, [b"%d" % seq for seq in range(base, base + count)])


def test_a_shelf_finds_blocks_by_any_seq_in_them() -> None:
    shelf = BlockShelf()
    for base in (100, 20, 60, 0):
        assert not shelf.insert(some(base))
    assert shelf.bases == [0, 20, 60, 100]
    for base in (0, 20, 60, 100):
        for seq in (base, base + 5, base + 9):
            found = shelf.find(seq)
            assert found is not None
            assert found.base == base
    assert [shelf.find(seq) for seq in (-1, 10, 19, 30, 99, 110)] == [None] * 6


def test_what_is_here_already_is_not_kept_twice() -> None:
    shelf = BlockShelf()
    shelf.insert(some(0, 30))
    assert shelf.insert(some(0, 30)) is None
    assert shelf.insert(some(10, 10)) is None
    assert shelf.bases == [0]


def test_a_joined_block_takes_the_place_of_the_pieces_it_lies_over() -> None:
    cache = BlockCache(1 << 20)
    shelf = BlockShelf()
    pieces = [some(base) for base in (0, 10, 20, 30)]
    for piece in (pieces[1], pieces[2]):
        cache.add(shelf, piece)
    [joined] = gather(pieces)
    cache.add(shelf, joined)
    assert shelf.blocks == [joined]
    assert cache.find(shelf, 0) is joined
    assert cache.find(shelf, 39) is joined
    assert cache.bytes == len(joined.frames) + BLOCK_OVERHEAD_BYTES
    assert len(cache.entries) == 1


def test_a_block_that_laps_over_the_newest_one_replaces_it() -> None:
    cache = BlockCache(1 << 20)
    shelf = BlockShelf()
    cache.add(shelf, some(90, 40))
    cache.add(shelf, some(100, 40))
    assert shelf.bases == [100]
    assert cache.find(shelf, 95) is None
    assert len(cache.entries) == 1


def test_the_least_recently_used_goes_first_and_the_newest_stays() -> None:
    one = some(0)
    size = len(one.frames) + BLOCK_OVERHEAD_BYTES
    cache = BlockCache(3 * size + size // 2)
    left, right = BlockShelf(), BlockShelf()
    cache.add(left, one)
    cache.add(right, some(10))
    cache.add(left, some(20))
    assert cache.find(left, 5) is one
    cache.add(right, some(30))
    assert right.bases == [30]
    assert left.bases == [0, 20]
    cache.add(left, some(1000, 2000))
    assert left.bases == [1000]
    assert right.bases == []
    assert cache.find(left, 1500) is not None
    assert (cache.hits, cache.misses) == (2, 0)


def test_a_forgotten_shelf_gives_its_bytes_back() -> None:
    cache = BlockCache(1 << 20)
    left, right = BlockShelf(), BlockShelf()
    cache.add(left, some(0))
    cache.add(left, some(10))
    cache.add(right, some(0))
    cache.forget(left)
    assert cache.find(left, 0) is None
    assert cache.bytes == len(some(0).frames) + BLOCK_OVERHEAD_BYTES
    cache.forget(right)
    assert (cache.bytes, len(cache.entries)) == (0, 0)
