"""The block cache against a dict: what is found is right, what was just brought is there, and the
bytes are those of the blocks that are here."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.cache import BLOCK_OVERHEAD_BYTES, BlockCache, BlockShelf
from penstock.protocol.block import Block
from tests.property.budget import budget
from tests.unit.broker.rig import block

SHELVES = st.integers(0, 1)
SEQS = st.integers(0, 30)


class Caches(RuleBasedStateMachine):
    """``here`` lists blocks with their shelf, least recently used first."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(6 * (BLOCK_OVERHEAD_BYTES + 36))
        self.shelves = [BlockShelf(), BlockShelf()]
        self.here: list[tuple[int, Block]] = []

    def _model_of(self, shelf: int, seq: int) -> tuple[int, Block] | None:
        return next(
            (entry for entry in self.here if entry[0] == shelf and _holds(entry[1], seq)), None
        )

    @rule(shelf=SHELVES, base=SEQS, count=st.integers(1, 8), size=st.integers(1, 40))
    def add(self, shelf: int, base: int, count: int, size: int) -> None:
        new = block(base, [b"x" * size] * count)
        if any(
            where == shelf and one.base <= new.base and new.end <= one.end
            for where, one in self.here
        ):
            self.cache.add(self.shelves[shelf], new)
            return
        self.here = [
            (where, one)
            for where, one in self.here
            if where != shelf or one.end <= new.base or new.end <= one.base
        ]
        self.here.append((shelf, new))
        while len(self.here) > 1 and self._bytes() > self.cache.bytes_max:
            del self.here[0]
        self.cache.add(self.shelves[shelf], new)

    @rule(shelf=SHELVES, seq=st.integers(0, 40))
    def find(self, shelf: int, seq: int) -> None:
        expected = self._model_of(shelf, seq)
        found = self.cache.find(self.shelves[shelf], seq)
        assert found is (None if expected is None else expected[1])
        if expected is not None:
            self.here = [entry for entry in self.here if entry is not expected] + [expected]

    @rule(shelf=SHELVES)
    def forget(self, shelf: int) -> None:
        self.cache.forget(self.shelves[shelf])
        self.here = [entry for entry in self.here if entry[0] != shelf]

    def _bytes(self) -> int:
        return sum(len(one.frames) + BLOCK_OVERHEAD_BYTES for _, one in self.here)

    @invariant()
    def agrees(self) -> None:
        assert self.cache.bytes == self._bytes()
        assert [id(one) for _, one in self.here] == [*self.cache.entries]
        for number, shelf in enumerate(self.shelves):
            blocks = sorted(
                [one for where, one in self.here if where == number], key=lambda one: one.base
            )
            assert [id(one) for one in shelf.blocks] == [id(one) for one in blocks]
            assert shelf.bases == [one.base for one in blocks]


def _holds(one: Block, seq: int) -> bool:
    return one.base <= seq < one.end


Caches.TestCase.settings = budget(60, 30)
TestBlockCache = Caches.TestCase
