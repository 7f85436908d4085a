"""The table of leases against a dict of who holds what."""

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.lease import Lease, LeaseTable
from tests.property.budget import budget

SEQS = st.integers(0, 15)
HOLDERS = st.sampled_from([0, 0, 0, 1])


class Owner:
    """Somebody who can hold a lease."""

    def __init__(self, number: int) -> None:
        self.number = number


class LeaseTables(RuleBasedStateMachine):
    """``held`` says who holds each seq, and under which lease."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = [Owner(number) for number in range(2)]
        self.table = LeaseTable()
        self.held: dict[int, tuple[Owner, Lease]] = {}

    def _free(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The parts of [low, high) that a new lease may cover: it never covers another's range."""
        spans = [(lease.low, lease.high) for lease in self.table.leases]
        start = low
        for seq in range(low, high + 1):
            if seq == high or any(first <= seq < last for first, last in spans):
                if seq > start:
                    yield start, seq
                start = seq + 1

    @rule(low=SEQS, size=st.integers(1, 12), who=HOLDERS)
    def add(self, low: int, size: int, who: int) -> None:
        owner = self.owners[who]
        for first, last in self._free(low, low + size):
            lease = Lease(first, last, owner, 1, 0, 0)
            self.table.add(lease)
            self.held |= dict.fromkeys(range(first, last), (owner, lease))

    @rule(seq=SEQS)
    def take(self, seq: int) -> None:
        lease = self.table.find(seq)
        assert (lease is not None) == (seq in self.held)
        if lease is not None:
            assert lease is self.held.pop(seq)[1]
            self.table.take(lease, seq)

    @rule(seq=SEQS)
    def cut_out(self, seq: int) -> None:
        if seq in self.held:
            owner, lease = self.held.pop(seq)
            pieces = self.table.cut_out(lease, seq) or [lease]
            for piece in pieces:
                self.held |= {one: (owner, piece) for one in piece.seqs() if one in self.held}

    @rule(low=SEQS, size=st.integers(1, 10), who=HOLDERS)
    def take_range(self, low: int, size: int, who: int) -> None:
        owner = self.owners[who]
        expected = low
        while expected < low + size and self.held.get(expected, (None,))[0] is owner:
            del self.held[expected]
            expected += 1
        assert self.table.take_range(low, low + size, owner) == expected

    @rule(seq=SEQS)
    def remove(self, seq: int) -> None:
        lease = self.table.find(seq)
        if lease is not None:
            self.table.remove(lease)
            self.held = {key: value for key, value in self.held.items() if value[1] is not lease}

    @invariant()
    def agrees(self) -> None:
        self.table.verify()
        listed = {seq: lease for lease in self.table.leases for seq in lease.seqs()}
        assert listed == {seq: lease for seq, (_, lease) in self.held.items()}
        for lease in self.table.leases:
            ranges = lease.ranges()
            assert [seq for low, high in ranges for seq in range(low, high)] == [*lease.seqs()]
            assert all(left[1] < right[0] for left, right in pairwise(ranges))
        if self.table.lows:
            assert self.table.lows[0] == min(self.held)


LeaseTables.TestCase.settings = budget(100, 30)
TestLeaseTable = LeaseTables.TestCase
