"""Durations and sizes: what is read, what is refused, and that showing and reading are a pair."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.units import parse_duration_ms, parse_size, show_duration, show_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("250ms", 250),
        ("60s", 60_000),
        ("1m30s", 90_000),
        ("1h0m0.5s", 3_600_500),
        (".5s", 500),
        ("1.s", 1_000),
        ("15m", 900_000),
        ("1500us", 2),
        ("1ns", 1),
    ],
)
def test_reads_durations_as_go_writes_them(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "60", "s", "1 m", "-1s", "1d", "1s2", "s1", "1e3s", "١s"])
def test_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


@given(st.integers(0, 10**10))
def test_a_shown_duration_reads_as_itself(ms: int) -> None:
    assert parse_duration_ms(show_duration(ms)) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5KiB", 1536),
        ("2k", 2048),
        ("1kB", 1000),
        ("1GiB", 1 << 30),
        ("12b", 12),
    ],
)
def test_reads_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "12 parsecs", "-1", "1.5", "0.3KiB", "1,5MiB"])
def test_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_a_shown_size_reads_as_itself(size: int) -> None:
    assert parse_size(show_size(size)) == size
