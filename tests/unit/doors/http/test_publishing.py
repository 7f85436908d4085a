"""Bodies of /mpub, as lines and as sized messages."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.http.publishing import split_binary, split_text
from penstock.http.answers import Refused


def binary(*bodies: bytes, count: int | None = None) -> bytes:
    head = struct.pack(">i", len(bodies) if count is None else count)
    return head + b"".join(struct.pack(">i", len(one)) + one for one in bodies)


@pytest.mark.parametrize(
    ("body", "bodies"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"a", [b"a"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"\na\n\nb\r\n", [b"a", b"b\r"]),
    ],
)
def test_a_line_is_a_message(body: bytes, bodies: list[bytes]) -> None:
    assert split_text(body, 10) == bodies


def test_a_line_that_is_too_long() -> None:
    assert split_text(b"x" * 10, 10) == [b"x" * 10]
    with pytest.raises(Refused, match="MSG_TOO_BIG"):
        split_text(b"a\n" + b"x" * 11, 10)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1))
def test_sized_messages_come_out_as_they_went_in(bodies: list[bytes]) -> None:
    assert split_binary(binary(*bodies), 20, 1 << 20) == bodies


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (binary(count=0), "BAD_BODY"),
        (binary(count=-1), "BAD_BODY"),
        (binary(b"a", count=1_000_000), "BAD_BODY"),
        (binary(b"a", b"b", count=1), "BAD_BODY"),
        (binary(b"a", count=2), "BAD_MESSAGE"),
        (binary(b"a")[:-1], "BAD_MESSAGE"),
        (binary(b""), "BAD_MESSAGE"),
        (binary(b"x" * 21), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, -1), "BAD_MESSAGE"),
        (struct.pack(">i", 1) + b"\0\0", "BAD_MESSAGE"),
    ],
)
def test_sizes_and_counts_must_be_true(body: bytes, code: str) -> None:
    with pytest.raises(Refused) as refused:
        split_binary(body, 20, 1000)
    assert (refused.value.status, refused.value.code) == (413, code)
