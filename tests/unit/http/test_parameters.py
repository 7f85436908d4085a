"""Queries as Go reads them, and what they name."""

from __future__ import annotations

import pytest

from penstock.http.answers import Refused
from penstock.http.parameters import (
    defer_ms_of,
    parse_query,
    topic_and_channel_of,
    topic_of,
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (b"", {}),
        (b"topic=a", {"topic": "a"}),
        (b"topic=a&topic=b", {"topic": "a"}),
        (b"&&topic=a&", {"topic": "a"}),
        (b"topic", {"topic": ""}),
        (b"topic=a%23ephemeral", {"topic": "a#ephemeral"}),
        (b"a+b=c+d", {"a b": "c d"}),
        (b"x=a=b", {"x": "a=b"}),
        (b"x=%ff", {"x": "\ufffd"}),
    ],
)
def test_a_query_is_read(query: bytes, found: dict[str, str]) -> None:
    assert parse_query(query) == found


@pytest.mark.parametrize("query", [b"topic=%", b"topic=%2", b"topic=%zz", b"a=1;b=2"])
def test_a_broken_query_is_refused(query: bytes) -> None:
    with pytest.raises(Refused, match="INVALID_REQUEST"):
        parse_query(query)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "MISSING_ARG_TOPIC"),
        ({"topic": ""}, "INVALID_TOPIC"),
        ({"topic": "$"}, "INVALID_TOPIC"),
    ],
)
def test_a_topic_must_be_named(given: dict[str, str], code: str) -> None:
    with pytest.raises(Refused, match=code):
        topic_of(given)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({}, "MISSING_ARG_TOPIC"),
        ({"topic": "$"}, "INVALID_ARG_TOPIC"),
        ({"topic": "t"}, "MISSING_ARG_CHANNEL"),
        ({"topic": "t", "channel": "c" * 65}, "INVALID_ARG_CHANNEL"),
    ],
)
def test_a_topic_and_a_channel_must_be_named(given: dict[str, str], code: str) -> None:
    with pytest.raises(Refused, match=code):
        topic_and_channel_of(given)


@pytest.mark.parametrize(("text", "delay_ms"), [("0", 0), ("+5", 5), ("1000", 1000)])
def test_a_delay_is_in_milliseconds(text: str, delay_ms: int) -> None:
    assert defer_ms_of({"defer": text}, 1000) == delay_ms


def test_no_delay_is_none() -> None:
    assert defer_ms_of({}, 1000) == 0


@pytest.mark.parametrize("text", ["", "-1", "1001", "1.5", "1_0", " 1", "٣", "9" * 30])
def test_a_delay_that_is_none_or_too_long(text: str) -> None:
    with pytest.raises(Refused, match="INVALID_DEFER"):
        defer_ms_of({"defer": text}, 1000)
