"""Waits double, stay bounded, differ between clients, and begin anew."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from penstock.backoff import Backoff, delay


def test_doubling_to_the_longest_and_anew() -> None:
    backoff = Backoff(0.1, 2.0, Random(1))
    waits = [backoff.next_delay() for _ in range(8)]
    for wait, full in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]):
        assert full / 2 <= wait <= full
    backoff.reset()
    assert backoff.next_delay() <= 0.1


def test_two_clients_do_not_wait_alike() -> None:
    assert Backoff(1, 60, Random(1)).next_delay() != Backoff(1, 60, Random(2)).next_delay()


@given(st.integers(-5, 70000))
def test_any_attempt_is_bounded(attempt: int) -> None:
    assert 1.0 <= delay(1.0, 600.0, attempt) <= 600.0
