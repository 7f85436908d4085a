"""The state file: whole batches, compaction, full and failing disks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.file.state import decode_state, encode_state
from penstock.storage.port import State

Opener = Callable[..., FileEngine]


def save(state: State, **values: bytes) -> None:
    for key, value in values.items():
        state.put(key, value)
    state.write()
    state.sync()


def flip(path: Path, at: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[at] ^= 1
    path.write_bytes(stored)


def test_version_1_is_written_as_it_was() -> None:
    """If this fails, the format changed, and older directories cannot be opened any more."""
    kept = encode_state([("kä", b"value"), ("gone", None)], 7)
    assert kept[:4] == b"PST1"
    assert kept[8:] == (
        b"\x18\x00\x00\x00"
        b"\x07\x00\x00\x00\x00\x00\x00\x00"
        b"\x03\x00\x05\x00\x00\x00k\xc3\xa4value"
        b"\x04\x00\xff\xff\xff\xffgone"
    )
    assert [*decode_state(kept)] == [("kä", b"value"), ("gone", None)]


def test_what_is_put_together_is_kept_together(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    state = opener().state
    save(state, a=b"1")
    first = (data / "state").stat().st_size
    for key in "bcd":
        state.put(key, b"2" * 10)
    state.write()
    second = (data / "state").stat().st_size
    for cut in (first, first + 1, second - 1):
        copy = killed()
        (copy / "state").write_bytes((copy / "state").read_bytes()[:cut])
        assert dict(opener(copy).state.items("")) == {"a": b"1"}
    assert len(dict(opener(killed()).state.items(""))) == 4


def test_damage_in_what_was_synced_is_loud(opener: Opener, killed: Callable[[], Path]) -> None:
    state = opener().state
    save(state, a=b"1")
    save(state, b=b"2")
    for at in (25, 60):
        copy = killed()
        flip(copy / "state", at)
        stored = (copy / "state").read_bytes()
        with pytest.raises(CorruptionError, match="does not know its topics"):
            opener(copy)
        assert (copy / "state").read_bytes() == stored


def test_an_outdated_file_is_compacted(opener: Opener, data: Path) -> None:
    engine = opener()
    for number in range(300):
        save(engine.state, a=bytes([number % 256]) * 10_000, b=b"stays")
    assert (data / "state").stat().st_size < 2_200_000
    engine.close()
    assert dict(opener().state.items("")) == {"a": bytes([299 % 256]) * 10_000, "b": b"stays"}


def test_an_outdated_file_is_compacted_when_opened(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    state = opener().state
    failpoint.arm("state.compact.write:1+=enospc")
    for number in range(200):
        save(state, a=b"%d" % number * 5_000)
    assert (data / "state").stat().st_size > 2_000_000
    assert not (data / "state.new").exists()
    failpoint.arm("")
    copy = killed()
    assert opener(copy).state.get("a") == b"199" * 5_000
    assert (copy / "state").stat().st_size < 16_000


def test_a_full_disk_takes_nothing_away(opener: Opener, killed: Callable[[], Path]) -> None:
    state = opener().state
    failpoint.arm("state.write:1+=enospc")
    state.put("a", b"1")
    with pytest.raises(DiskFull, match="kept in memory"):
        state.write()
    assert state.get("a") == b"1"
    assert opener(killed()).state.get("a") is None
    failpoint.arm("")
    state.put("b", b"2")
    state.write()
    assert dict(opener(killed()).state.items("")) == {"a": b"1", "b": b"2"}


def test_state_may_use_the_reserve(opener: Opener, data: Path) -> None:
    engine = opener(options=FileOptions(reserve_bytes=1 << 20))
    failpoint.arm("state.write=enospc")
    save(engine.state, a=b"1")
    assert not engine.accepts_publishes()
    assert (data / "reserve").stat().st_size < 1 << 20


@pytest.mark.parametrize("place", ["state.write", "state.written", "state.sync", "state.synced"])
def test_state_takes_no_more_writes_after_an_error(
    opener: Opener, killed: Callable[[], Path], place: str
) -> None:
    state = opener().state
    save(state, a=b"1")
    failpoint.arm(f"{place}=eio")
    with pytest.raises(LogFrozen):
        save(state, b=b"2")
    with pytest.raises(LogFrozen):
        state.write()
    with pytest.raises(LogFrozen):
        state.sync()
    failpoint.arm("")
    assert opener(killed()).state.get("a") == b"1"


def test_many_topics_are_opened_and_listed_by_prefix(opener: Opener) -> None:
    engine = opener()
    for number in range(5000):
        engine.state.put(f"topic/{number:05d}", b"v" * 200)
    engine.close()
    state = opener().state
    assert len([*state.items("topic/")]) == 5000
    assert [key for key, _ in state.items("topic/0123")] == [f"topic/0123{n}" for n in range(10)]
