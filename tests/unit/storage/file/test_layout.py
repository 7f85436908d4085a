"""Names of files and directories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.block import DELAY_LANE
from penstock.storage.file.layout import (
    decoded,
    encoded,
    index_name,
    journal_name,
    parse_journal,
    parse_lane,
    parse_segment,
    segment_name,
)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("orders", "orders"),
        (".", "%2E"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("a.b-c_d", "a.b-c_d"),
        ("x#ephemeral", "x%23ephemeral"),
        ("a/b", "a%2Fb"),
        ("%2E", "%252E"),
    ],
)
def test_a_name_is_safe_as_part_of_a_path(name: str, part: str) -> None:
    assert encoded(name) == part
    assert decoded(part) == name


@given(st.text(min_size=1))
def test_no_two_names_share_a_path(name: str) -> None:
    part = encoded(name)
    assert decoded(part) == name
    assert "/" not in part and part not in {".", ".."} and not part.startswith(".")


@given(
    st.integers(-(2**31), 2**31 - 1) | st.just(DELAY_LANE),
    st.integers(0, 2**63),
    st.integers(0, 99),
)
def test_a_segments_name_says_what_it_is(lane: int, base: int, generation: int) -> None:
    name = segment_name(lane, base, generation)
    assert parse_segment(name) == (lane, base, generation)
    assert parse_lane(name) == lane
    assert index_name(name).endswith(".index")
    assert parse_segment(index_name(name)) is None


def test_names_are_as_documented() -> None:
    assert segment_name(0, 7) == "ready_0_00000000000000000007.seg"
    assert segment_name(-3, 7, 2) == "ready_-3_00000000000000000007.g2.seg"
    assert segment_name(DELAY_LANE, 7) == "delay_00000000000000000007.seg"
    assert journal_name(12) == "journal_12"


def test_what_is_no_name_of_ours_is_let_alone() -> None:
    for name in ("ready_0_7.seg", "ready_x_00000000000000000007.seg", "lost+found", "journal_x"):
        assert (parse_segment(name), parse_lane(name), parse_journal(name)) == (None, None, None)
    assert parse_lane("ready_5.manifest") == parse_lane("ready_5.synced") == 5
    assert parse_journal("journal_3") == 3
