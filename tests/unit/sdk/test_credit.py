"""RDY's arithmetic: all of max_in_flight is used, and never more of it is promised."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.sdk.credit import grants, shares

counts = st.lists(st.integers(0, 30), min_size=1, max_size=8)


@given(st.integers(1, 100), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 7))
def test_shares_use_what_there_is_as_evenly_as_limits_allow(
    total: int, limits: list[int], turn: int
) -> None:
    split = shares(total, limits, turn)
    assert len(split) == len(limits)
    assert all(0 <= share <= limit for share, limit in zip(split, limits))
    assert sum(split) == min(total, sum(limits))
    unlimited = [share for share, limit in zip(split, limits) if share < limit]
    if unlimited:
        assert max(split) - min(unlimited) <= 1


def test_with_fewer_credits_than_connections_each_gets_its_turn() -> None:
    seen: set[int] = set()
    for turn in range(0, 10, 2):
        split = shares(2, [2500] * 5, turn % 5)
        assert sorted(split) == [0, 0, 0, 1, 1]
        seen |= {index for index, share in enumerate(split) if share}
    assert seen == {0, 1, 2, 3, 4}


def test_shares_by_example() -> None:
    assert shares(10, []) == []
    assert shares(10, [2500, 2500, 2500]) == [4, 3, 3]
    assert shares(10, [1, 2500, 2500]) == [1, 5, 4]
    assert shares(5000, [2500]) == [2500]


@given(st.data(), st.integers(1, 60), counts, st.integers(0, 7))
def test_grants_never_promise_twice(
    data: st.DataObject, total: int, held: list[int], turn: int
) -> None:
    size = len(held)
    in_flight = data.draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))
    targets = shares(total, [2500] * size, turn)
    granted = grants(total, targets, held, in_flight)
    assert all(grant <= target for grant, target in zip(granted, targets))
    could_be = sum(map(max, granted, in_flight))
    unavoidable = sum(map(max, (min(t, h) for t, h in zip(targets, held)), in_flight))
    assert could_be <= max(total, unavoidable)
    # When everything has been settled, the next round arrives at the target.
    assert grants(total, targets, granted, [0] * size) == targets
