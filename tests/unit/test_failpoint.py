"""Failpoints: where the world can be made to break, and how."""

import errno
from collections.abc import Iterator

import pytest

from penstock import failpoint
from penstock.errors import ConfigError


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoint.arm("")


def test_nothing_happens_where_nothing_is_armed() -> None:
    assert not failpoint.hit("log.write")
    failpoint.arm("log.sync=eio")
    assert not failpoint.hit("log.write")


def test_a_trap_goes_off_at_its_count_and_once() -> None:
    failpoint.arm("log.write:3=eio")
    assert not failpoint.hit("log.write")
    assert not failpoint.hit("log.write")
    with pytest.raises(OSError, match=r"log\.write") as caught:
        failpoint.hit("log.write")
    assert caught.value.errno == errno.EIO
    assert not failpoint.hit("log.write")


def test_a_plus_makes_it_stay() -> None:
    failpoint.arm("log.write:2+=enospc")
    assert not failpoint.hit("log.write")
    for _ in range(3):
        with pytest.raises(OSError) as caught:
            failpoint.hit("log.write")
        assert caught.value.errno == errno.ENOSPC


def test_short_tells_the_writer_to_stop_half_way() -> None:
    failpoint.arm("log.write=short, state.write:2=short")
    assert failpoint.hit("log.write")
    assert not failpoint.hit("log.write")
    assert not failpoint.hit("state.write")
    assert failpoint.hit("state.write")


def test_a_stall_is_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("penstock.failpoint.time.sleep", slept.append)
    failpoint.arm("log.sync=stall:10")
    assert not failpoint.hit("log.sync")
    assert slept == [10.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("log.write", "no action ''"),
        ("log.write=explode", "no action 'explode'"),
        ("somewhere=kill", "no place 'somewhere'"),
        ("log.write:x=kill", "is not PLACE"),
        ("log.write=stall:long", "is not PLACE"),
    ],
)
def test_a_wrong_one_is_refused_before_anything_is_armed(text: str, said: str) -> None:
    failpoint.arm("log.sync=eio")
    with pytest.raises(ConfigError, match=said):
        failpoint.arm(f"log.write=eio,{text}")
    assert not failpoint.hit("log.write")
    with pytest.raises(OSError):
        failpoint.hit("log.sync")
