"""A log on disk where the disk fails, and what stands in its files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen
from penstock.protocol.block import Block, encode
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileLog, FileOptions
from penstock.storage.file.segment import Segment, decode_synced_end
from tests.support.blocks import block, chain

Opener = Callable[..., FileEngine]

SMALL = FileOptions(
    segment_bytes_max=1000,
    index_step_bytes=200,
    checkpoint_bytes=300,
    files_open_max=3,
    reserve_bytes=0,
)
LANE = "ready_0"


def put(log: FileLog, *blocks: Block) -> None:
    for one in blocks:
        log.append(one)
    log.write()


def everything(log: FileLog) -> list[Block]:
    found: list[Block] = []
    seq = log.bounds().start
    while taken := log.read(seq, 1000):
        found += taken
        seq = taken[-1].end
    return found


@pytest.fixture
def directory(data: Path) -> Path:
    return data / "topics" / "t" / "0"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


# --- the disk is full ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["log.write", "log.create"])
def test_a_full_disk_keeps_nothing_of_a_write_and_the_log_goes_on(
    opener: Opener, directory: Path, place: str
) -> None:
    log = opener().log("t", 0, 0)
    if place == "log.write":
        put(log, block(0))
    before = log.bounds()
    failpoint.arm(f"{place}=enospc")
    log.append(block(1))
    log.append(block(2))
    with pytest.raises(DiskFull, match="Nothing of this publish was kept"):
        log.write()
    assert log.bounds()._replace(appended_at_ns=0) == before._replace(appended_at_ns=0)
    assert sum(path.stat().st_size for path in segments(directory)) == before.bytes
    log.write()
    put(log, block(5))
    assert log.sync() == 6
    assert everything(log) == ([block(0)] if place == "log.write" else []) + [block(5)]


def test_a_full_disk_in_the_middle_of_a_write_over_several_segments(
    opener: Opener, directory: Path
) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    put(log, *chain(2, size=300))
    sizes = {path.name: path.stat().st_size for path in segments(directory)}
    failpoint.arm("log.write:3=enospc")
    with pytest.raises(DiskFull):
        put(log, *chain(9, base=2, size=300))
    assert {path.name: path.stat().st_size for path in segments(directory)} == sizes
    assert log.bounds().end == 2
    put(log, *chain(9, base=20, size=300))
    assert everything(log) == [*chain(2, size=300), *chain(9, base=20, size=300)]


def test_what_is_appended_after_a_refused_write_is_written_by_the_next(opener: Opener) -> None:
    log = opener().log("t", 0, 0)
    failpoint.arm("log.write=enospc")
    log.append(block(0))
    with pytest.raises(DiskFull):
        log.write()
    log.append(block(3))
    assert log.bounds().end == 4
    log.write()
    assert everything(log) == [block(3)]


def test_publishes_are_refused_until_there_is_room(data: Path) -> None:
    now = 100.0
    engine = FileEngine(str(data), FileOptions(reserve_bytes=0), now=lambda: now)
    log = engine.log("t", 0, 0)
    failpoint.arm("log.write=enospc")
    assert engine.accepts_publishes()
    with pytest.raises(DiskFull):
        put(log, block(0))
    assert not engine.accepts_publishes()
    now += 0.5
    assert not engine.accepts_publishes()  # the disk is asked once a second
    now += 0.6
    assert engine.accepts_publishes()
    engine.close()


@pytest.mark.parametrize("place", ["synced_end.write", "checkpoint.write", "manifest.write"])
def test_notes_wait_for_room_and_a_sync_does_not(opener: Opener, place: str) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    failpoint.arm(f"{place}:1+=enospc")
    put(log, *chain(30, size=100))
    assert log.sync() == 30
    failpoint.arm("")
    put(log, *chain(30, base=30, size=100))
    assert log.sync() == 60
    assert everything(log) == chain(60, size=100)


# --- the disk fails ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["log.write", "log.written", "log.create"])
def test_a_log_takes_no_more_writes_after_an_error(opener: Opener, place: str) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    put(log, *chain(3))
    log.sync()
    failpoint.arm(f"{place}=eio")
    with pytest.raises(LogFrozen, match="takes no more writes"):
        put(log, block(10))
    for act in (log.write, log.sync, lambda: log.drop_below(1)):
        with pytest.raises(LogFrozen):
            act()
    assert everything(log) == chain(3)
    log.close()
    again = engine.log("t", 0, 0)
    assert not again.bounds().clean
    assert everything(again) == chain(3)
    put(again, block(11))
    assert again.sync() == 12


def test_a_close_that_fails_is_not_a_good_end(opener: Opener) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    put(log, *chain(3))
    failpoint.arm("checkpoint.rename=eio")
    with pytest.raises(LogFrozen):
        log.close()
    again = engine.log("t", 0, 0)
    assert not again.bounds().clean
    assert everything(again) == chain(3)


@pytest.mark.parametrize("place", ["log.sync", "log.synced", "manifest.write", "checkpoint.write"])
def test_a_sync_that_fails_is_never_tried_again(opener: Opener, place: str) -> None:
    engine = opener(options=SMALL)
    log = engine.log("t", 0, 0)
    put(log, *chain(3))
    assert log.sync() == 3
    failpoint.arm(f"{place}=eio")
    put(log, *chain(30, base=3, size=100))
    with pytest.raises(LogFrozen):
        log.sync()
    failpoint.arm("")
    with pytest.raises(LogFrozen):
        log.sync()
    log.close()
    again = engine.log("t", 0, 0)
    assert not again.bounds().clean
    assert everything(again) == [*chain(3), *chain(30, base=3, size=100)]
    assert again.sync() == 33
    assert again.bounds().synced_end == 33


def test_short_writes_are_gone_on_with(opener: Opener) -> None:
    log = opener().log("t", 0, 0)
    failpoint.arm("log.write=short")
    put(log, *chain(3))
    assert everything(log) == chain(3)


# --- what was never synced may be torn -----------------------------------------------------------


@pytest.fixture
def torn(opener: Opener, directory: Path, killed: Callable[[], Path]) -> Callable[[], Path]:
    """Three synced blocks and three that were only written; a copy as a kill leaves it."""

    def make() -> Path:
        log = opener().log("t", 0, 0)
        put(log, *chain(3))
        log.sync()
        put(log, *chain(3, base=3))
        copy = killed() / directory.relative_to(directory.parents[2])
        assert copy.is_dir()
        return copy

    return make


BLOCK_BYTES = 96 + 4 + 34 + 10


@pytest.mark.parametrize("cut", [1, 50, BLOCK_BYTES + 1, 3 * BLOCK_BYTES - 1])
def test_a_torn_tail_is_cut_and_reported(
    opener: Opener, torn: Callable[[], Path], cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = segments(torn())
    stored = path.read_bytes()
    path.write_bytes(stored[:-cut])
    log = opener(path.parents[3]).log("t", 0, 0)
    kept = 6 - 1 - cut // BLOCK_BYTES
    bounds = log.bounds()
    assert bounds.cut_bytes == BLOCK_BYTES - cut % BLOCK_BYTES
    assert (bounds.end, bounds.synced_end, bounds.clean) == (kept, 3, False)
    assert everything(log) == chain(kept)
    assert "cut a torn tail" in caplog.text
    assert path.stat().st_size == kept * BLOCK_BYTES
    put(log, block(6))
    assert log.sync() == 7


def test_what_lies_behind_a_tear_goes_with_it(opener: Opener, torn: Callable[[], Path]) -> None:
    (path,) = segments(torn())
    stored = bytearray(path.read_bytes())
    stored[3 * BLOCK_BYTES + 100] ^= 1
    path.write_bytes(stored)
    log = opener(path.parents[3]).log("t", 0, 0)
    assert log.bounds().cut_bytes == 3 * BLOCK_BYTES
    assert everything(log) == chain(3)


def test_later_segments_go_with_a_tear(
    opener: Opener, directory: Path, killed: Callable[[], Path]
) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    put(log, *chain(30))
    copy = killed()
    paths = sorted(copy.rglob("*.seg"))
    assert len(paths) > 3
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    log = opener(copy, SMALL).log("t", 0, 0)
    kept = log.bounds().end
    assert everything(log) == chain(kept)
    assert 0 < kept < 14
    assert len([*copy.rglob("*.seg")]) == 2


def test_what_a_kill_left_unsynced_is_written_once_more(
    opener: Opener, torn: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = segments(torn())
    engine = opener(path.parents[3])
    written: list[tuple[int, bytes]] = []
    disk = engine._disk

    def spy(handle: int, pieces: list[bytes], offset: int) -> int:
        written.append((offset, b"".join(pieces)))
        return len(written[-1][1])

    monkeypatch.setattr(disk, "pwritev", spy)
    log = engine.log("t", 0, 0)
    assert written == [(3 * BLOCK_BYTES, path.read_bytes()[3 * BLOCK_BYTES :])]
    monkeypatch.undo()
    assert log.sync() == 6


# --- damage below the synced end is loud ---------------------------------------------------------


def flip(path: Path, at: int) -> bytes:
    stored = bytearray(path.read_bytes())
    stored[at] ^= 1
    path.write_bytes(stored)
    return bytes(stored)


@pytest.fixture
def synced(opener: Opener, killed: Callable[[], Path]) -> Path:
    """Ten synced blocks, each synced by itself, without a checkpoint; as a kill leaves them."""
    log = opener().log("t", 0, 0)
    for one in chain(10):
        put(log, one)
        log.sync()
    (path,) = segments(killed() / "topics" / "t" / "0")
    return path


def test_a_damaged_block_below_the_synced_end_stops_the_log(opener: Opener, synced: Path) -> None:
    stored = flip(synced, 4 * BLOCK_BYTES + 100)
    with pytest.raises(CorruptionError, match=f"offset {4 * BLOCK_BYTES}: what follows seq 4"):
        opener(synced.parents[3]).log("t", 0, 0)
    assert synced.read_bytes() == stored


def test_blocks_behind_the_damage_are_witnesses_enough(opener: Opener, synced: Path) -> None:
    (synced.parent / f"{LANE}.synced").unlink()
    stored = flip(synced, 4 * BLOCK_BYTES + 100)
    with pytest.raises(CorruptionError):
        opener(synced.parents[3]).log("t", 0, 0)
    assert synced.read_bytes() == stored


def test_without_any_witness_damage_at_the_end_is_a_torn_tail(opener: Opener, synced: Path) -> None:
    (synced.parent / f"{LANE}.synced").unlink()
    flip(synced, 9 * BLOCK_BYTES + 100)
    log = opener(synced.parents[3]).log("t", 0, 0)
    assert log.bounds().cut_bytes == BLOCK_BYTES
    assert everything(log) == chain(9)


def test_a_synced_end_that_is_missing_stops_the_log(opener: Opener, synced: Path) -> None:
    synced.write_bytes(synced.read_bytes()[: 8 * BLOCK_BYTES])
    with pytest.raises(CorruptionError, match="synced up to 10"):
        opener(synced.parents[3]).log("t", 0, 0)


def test_a_segment_shorter_than_its_checkpoint_stops_the_log(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    put(log, *chain(10))
    log.close()
    (path,) = segments(killed() / "topics" / "t" / "0")
    (path.parent / f"{LANE}.synced").unlink()
    path.write_bytes(path.read_bytes()[: 8 * BLOCK_BYTES])
    with pytest.raises(CorruptionError, match="its end is missing"):
        opener(path.parents[3]).log("t", 0, 0)


@pytest.fixture
def sealed(opener: Opener, killed: Callable[[], Path]) -> Path:
    """The directory of a log of several sealed segments."""
    log = opener(options=SMALL).log("t", 0, 0)
    put(log, *chain(30))
    log.sync()
    return killed() / "topics" / "t" / "0"


def test_a_sealed_segment_that_is_missing_or_short_stops_the_log(
    opener: Opener, sealed: Path
) -> None:
    path = segments(sealed)[1]
    stored = path.read_bytes()
    path.write_bytes(stored[:-1])
    engine = opener(sealed.parents[2], SMALL)
    with pytest.raises(CorruptionError, match=f"{len(stored) - 1} bytes of {len(stored)}"):
        engine.log("t", 0, 0)
    path.unlink()
    with pytest.raises(CorruptionError, match="is missing: it held seqs 6 to 11"):
        engine.log("t", 0, 0)
    path.write_bytes(stored)
    assert everything(engine.log("t", 0, 0)) == chain(30)


def test_a_damaged_manifest_stops_the_log(opener: Opener, sealed: Path) -> None:
    flip(sealed / f"{LANE}.manifest", 20)
    with pytest.raises(CorruptionError, match="manifest is damaged"):
        opener(sealed.parents[2], SMALL).log("t", 0, 0)


def test_damage_in_what_is_not_checked_at_the_start_is_seen_when_read(
    opener: Opener, sealed: Path
) -> None:
    flip(segments(sealed)[1], 2 * BLOCK_BYTES + 100)
    log = opener(sealed.parents[2], SMALL).log("t", 0, 0)
    assert log.read(6, 10_000) == chain(2, base=6)
    for seq in (8, 9):
        if seq == 8:
            with pytest.raises(CorruptionError, match=f"offset {2 * BLOCK_BYTES}"):
                log.read(seq, 1000)
        else:
            assert log.read(seq, 1) == [block(9, [b"x" * 10])]


@pytest.mark.parametrize("at", [24, 88, 8], ids=["base", "end", "length"])
def test_a_damaged_header_does_not_hide_its_block(opener: Opener, sealed: Path, at: int) -> None:
    """A walk steps over headers without their checksums: what it steps over wrongly must show."""
    path = segments(sealed)[1]
    stored = bytearray(path.read_bytes())
    start = 2 * BLOCK_BYTES + at
    # the length of two blocks leads exactly to another block
    stored[start : start + 2] = {8: (2 * BLOCK_BYTES).to_bytes(2, "little")}.get(at, b"\0\0")
    path.write_bytes(stored)
    log = opener(sealed.parents[2], FileOptions(index_step_bytes=10**6, reserve_bytes=0))
    found = log.log("t", 0, 0)
    with pytest.raises(CorruptionError):
        found.read(8, 1)


# --- what stands beside the segments -------------------------------------------------------------


def test_nothing_is_on_disk_before_the_first_write(opener: Opener, data: Path) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    log.append(block(0))
    log.sync()
    assert [*(data / "topics").iterdir()] == []
    assert engine.files_open == 0


def test_files_open_stay_bounded(opener: Opener) -> None:
    engine = opener(options=SMALL)
    logs = [engine.log(f"t{n}", 0, 0) for n in range(20)]
    for log in logs:
        put(log, *chain(20))
        log.sync()
    assert [everything(log) for log in logs] == [chain(20)] * 20
    assert engine.files_open <= 3


def test_outside_readers_find_the_synced_end_in_a_file(opener: Opener, directory: Path) -> None:
    log = opener().log("t", 0, 0)
    put(log, *chain(3))
    assert not (directory / f"{LANE}.synced").exists()
    log.sync()
    put(log, *chain(2, base=3))
    assert decode_synced_end((directory / f"{LANE}.synced").read_bytes()) == (3, 0, 3 * BLOCK_BYTES)


def test_recovery_begins_behind_the_checkpoint(
    opener: Opener, killed: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = FileOptions(checkpoint_blocks=10, reserve_bytes=0)
    log = opener(options=options).log("t", 0, 0)
    for at in range(25):
        put(log, *chain(1, base=at))
        log.sync()
    engine = opener(killed(), options)
    reads: list[tuple[int, int]] = []
    disk = engine._disk
    pread = disk.pread

    def spy(handle: int, length: int, offset: int) -> bytes:
        reads.append((offset, length))
        return pread(handle, length, offset)

    monkeypatch.setattr(disk, "pread", spy)
    log = engine.log("t", 0, 0)
    assert log.bounds().end == 25
    assert reads[-1] == (20 * BLOCK_BYTES, 5 * BLOCK_BYTES)


def test_a_lost_checkpoint_costs_time_and_nothing_else(opener: Opener, sealed: Path) -> None:
    for path in sealed.glob("*.index"):
        path.unlink()
    log = opener(sealed.parents[2], SMALL).log("t", 0, 0)
    assert log.bounds().end == log.bounds().synced_end == 30
    assert [log.read(seq, 1) for seq in range(30)] == [[one] for one in chain(30)]


def test_a_lost_manifest_costs_time_and_nothing_else(opener: Opener, sealed: Path) -> None:
    (sealed / f"{LANE}.manifest").unlink()
    log = opener(sealed.parents[2], SMALL).log("t", 0, 0)
    assert everything(log) == chain(30)
    put(log, *chain(1, base=30))
    log.sync()
    assert (sealed / f"{LANE}.manifest").exists()


def test_without_a_manifest_a_segment_that_is_missing_still_stops_the_log(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    """A reservation makes holes between segments, too: the blocks behind this one know better."""
    log = opener(options=SMALL).log("t", 0, 0)
    for one in chain(30):
        put(log, one)
        log.sync()
    copy = killed()
    directory = copy / "topics" / "t" / "0"
    (directory / f"{LANE}.manifest").unlink()
    segments(directory)[1].unlink()
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(CorruptionError, match="what follows seq 6 is damaged or missing"):
        opener(copy, SMALL).log("t", 0, 0)
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_what_a_drop_left_behind_is_removed(opener: Opener, data: Path, directory: Path) -> None:
    engine = opener(options=SMALL)
    log = engine.log("t", 0, 0)
    put(log, *chain(30))
    log.sync()
    left = {path: path.read_bytes() for path in segments(directory)[:2]}
    left |= {path.with_suffix(".index"): b"" for path in left}
    assert log.drop_below(14) == 12
    assert not any(path.exists() for path in left)
    log.close()
    left |= {
        directory / f"{LANE}_00000000000000000024.index.new": b"",
        directory / "notes": b"kept",
    }
    left |= {directory / "ready_01_00000000000000000000.index": b"of another log"}
    for path, stored in left.items():
        path.write_bytes(stored)
    log = engine.log("t", 0, 0)
    assert log.bounds().start == 12
    assert everything(log) == chain(18, base=12)
    kept = {path.name for path in left if path.exists()}
    assert kept == {"notes", "ready_01_00000000000000000000.index"}


def test_a_drop_that_finds_no_room_keeps_all(opener: Opener) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    put(log, *chain(30))
    log.sync()
    failpoint.arm("manifest.write:1+=enospc")
    with pytest.raises(DiskFull, match="they are kept"):
        log.drop_below(14)
    assert everything(log) == chain(30)
    failpoint.arm("")
    assert log.drop_below(14) == 12


def test_segments_roll_with_the_hour_if_asked(opener: Opener, directory: Path) -> None:
    hour = 3600 * 10**9
    log = opener(options=FileOptions(segment_seconds=3600, reserve_bytes=0)).log("t", 0, 0)
    put(log, *[block(n, at_ns=10 * hour + n * hour // 4) for n in range(10)])
    assert [int(path.stem[-20:]) for path in segments(directory)] == [0, 4, 8]


def test_a_read_that_a_drop_overtakes_goes_on_with_what_follows(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    put(log, *chain(30))
    log.sync()
    read = log._finder.read

    def drop_before_reading(segment: Segment, seq: int, bytes_max: int) -> list[Block]:
        monkeypatch.undo()
        log.drop_below(14)
        return read(segment, seq, bytes_max)

    monkeypatch.setattr(log._finder, "read", drop_before_reading)
    assert log.read(3, 1)[0] == chain(30)[12]


@pytest.mark.parametrize("source", [0, 2])
def test_a_block_that_was_written_to_another_one_s_place_hides_nothing_in_silence(
    opener: Opener, killed: Callable[[], Path], source: int
) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    put(log, *chain(10, size=100))
    log.sync()  # seals all segments but the last: opening does not read them
    root = killed()
    path = segments(root / "topics" / "t" / "0")[0]
    stored = path.read_bytes()
    size = sum(map(len, encode(chain(1, size=100)[0])))
    assert len(stored) >= 3 * size
    path.write_bytes(stored[:size] + stored[source * size :][:size] + stored[2 * size :])
    log = opener(root).log("t", 0, 0)
    found = log.read(0, 1)
    for bytes_max in (1, 1000):
        assert log.read(0, bytes_max) == found == chain(1, size=100)
        with pytest.raises(CorruptionError, match="another block is in its place"):
            log.read(1, bytes_max)
