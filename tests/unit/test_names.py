"""The rules for names, at their edges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.names import is_ephemeral, is_valid_name, is_valid_name_bytes


@pytest.mark.parametrize(
    "name", ["a", ".", "..", "A-b_c.9", "x" * 64, "a#ephemeral", "x" * 54 + "#ephemeral"]
)
def test_valid(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 65,
        "x" * 55 + "#ephemeral",
        "#ephemeral",
        "a#ephemera",
        "a#ephemeral#ephemeral",
        "a b",
        "a\n",
        "a/b",
        "ä",
        "٣",
    ],
)
def test_invalid(name: str) -> None:
    assert not is_valid_name(name)


@given(st.text(st.sampled_from("aZ9._-#ephemral \n/é"), max_size=70))
def test_bytes_and_text_agree(name: str) -> None:
    assert is_valid_name_bytes(name.encode()) == is_valid_name(name)


def test_ephemeral() -> None:
    assert is_ephemeral("a#ephemeral")
    assert not is_ephemeral("ephemeral")
