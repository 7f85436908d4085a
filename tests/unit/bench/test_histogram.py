"""Percentiles within 0.8 %, and histograms that add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.histogram import Histogram

DURATIONS = st.lists(st.integers(0, 10**13), min_size=1, max_size=200)


def histogram_of(durations: list[int]) -> Histogram:
    histogram = Histogram()
    for duration in durations:
        histogram.record(duration)
    return histogram


@given(durations=DURATIONS, percent=st.floats(1, 100))
def test_a_percentile_is_the_sorted_list_s_within_its_precision(
    durations: list[int], percent: float
) -> None:
    wanted = len(durations) * percent / 100
    exact = next(
        duration for rank, duration in enumerate(sorted(durations), start=1) if rank >= wanted
    )
    shown = histogram_of(durations).percentile_ns(percent)
    assert exact <= shown <= exact * 1.008


@given(one=DURATIONS, other=DURATIONS)
def test_added_histograms_equal_one_of_all(one: list[int], other: list[int]) -> None:
    both = histogram_of(one)
    both.add(histogram_of(other))
    whole = histogram_of(one + other)
    assert both.in_ms("x") == whole.in_ms("x")
    assert (both.total, both.max_ns) == (whole.total, whole.max_ns)


def test_a_batch_counts_as_its_messages() -> None:
    histogram = Histogram()
    histogram.record(1_000_000, 99)
    histogram.record(5_000_000)
    assert histogram.total == 100
    assert histogram.in_ms("ok")["ok_p99_ms"] < 1.01
    assert histogram.in_ms("ok")["ok_max_ms"] == 5.0


def test_an_empty_histogram_is_all_zero() -> None:
    assert set(Histogram().in_ms("ok").values()) == {0.0}


def test_a_clock_that_stepped_back_counts_as_nothing() -> None:
    histogram = Histogram()
    histogram.record(-5)
    assert (histogram.total, histogram.max_ns) == (1, 0)
