"""A journal on disk: torn tails, damage, full and failing disks."""

from collections.abc import Callable
from errno import EIO
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen, OperatingError
from penstock.protocol.journal import FINISHED, Batch
from penstock.storage.file.disk import RealDisk
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.journal import FileJournal
from penstock.storage.file.log import FileOptions

Opener = Callable[..., FileEngine]

ONE_BYTES = 28 + 40  # a batch of one record


def one(at_ns: int, *, snapshot: bool = False) -> Batch:
    return Batch([(FINISHED, 7, at_ns, at_ns + 1, 1, at_ns, 0)], {}, snapshot)


def wrote(engine: FileEngine, *batches: Batch) -> FileJournal:
    journal = engine.journal("t", "c")
    assert [*journal.recover()] == []
    for batch in batches:
        journal.append(batch)
        journal.write()
    return journal


def recovered(engine: FileEngine) -> list[Batch]:
    return [*engine.journal("t", "c").recover()]


@pytest.fixture
def directory(data: Path) -> Path:
    return data / "topics" / "t" / "channels" / "c"


def of(copy: Path, number: int) -> Path:
    return copy / "topics" / "t" / "channels" / "c" / f"journal_{number}"


def flip(path: Path, at: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[at] ^= 1
    path.write_bytes(stored)


def test_a_snapshot_begins_a_file(opener: Opener, directory: Path) -> None:
    journal = wrote(opener(), one(1), one(2, snapshot=True), one(3), one(4, snapshot=True))
    assert sorted(path.name for path in directory.iterdir()) == [f"journal_{n}" for n in (1, 2, 3)]
    assert journal.bytes_since_snapshot == 0


def test_nothing_is_on_disk_before_the_first_write(opener: Opener, data: Path) -> None:
    journal = wrote(opener())
    journal.append(one(1))
    journal.sync()
    journal.write()
    assert (data / "topics" / "t").exists()


@pytest.mark.parametrize("cut", [1, 40, ONE_BYTES - 1])
def test_a_torn_tail_is_cut(
    opener: Opener, killed: Callable[[], Path], cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrote(opener(), one(1), one(2)).sync()
    path = of(killed(), 1)
    path.write_bytes(path.read_bytes()[:-cut])
    engine = opener(path.parents[4])
    journal = engine.journal("t", "c")
    assert [*journal.recover()] == [one(1)]
    assert "cut a torn tail" in caplog.text
    journal.append(one(3))
    journal.close()
    assert recovered(engine) == [one(1), one(3)]


def test_damage_in_what_was_synced_is_loud(opener: Opener, killed: Callable[[], Path]) -> None:
    journal = wrote(opener(), one(1), one(2))
    journal.sync()
    journal.append(one(3))
    journal.write()
    path = of(killed(), 1)
    flip(path, ONE_BYTES + 30)
    stored = path.read_bytes()
    engine = opener(path.parents[4])
    with pytest.raises(CorruptionError, match=f"damaged at offset {ONE_BYTES}"):
        recovered(engine)
    assert path.read_bytes() == stored


def test_after_a_clean_end_damage_at_the_end_is_loud(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    wrote(opener(), one(1), one(2)).close()
    path = of(killed(), 1)
    flip(path, ONE_BYTES + 30)
    with pytest.raises(CorruptionError):
        recovered(opener(path.parents[4]))


def test_closing_again_and_again_adds_nothing(opener: Opener, directory: Path) -> None:
    engine = opener()
    wrote(engine, one(1)).close()
    size = (directory / "journal_1").stat().st_size
    for _ in range(3):
        journal = engine.journal("t", "c")
        assert [*journal.recover()] == [one(1)]
        journal.close()
    assert (directory / "journal_1").stat().st_size == size


@pytest.mark.parametrize("left", [0, 20, ONE_BYTES - 1])
def test_a_snapshot_that_never_became_whole_does_not_count(
    opener: Opener, killed: Callable[[], Path], left: int
) -> None:
    wrote(opener(), one(1, snapshot=True), one(2), one(3, snapshot=True), one(4))
    path = of(killed(), 2)
    path.write_bytes(path.read_bytes()[:left])
    engine = opener(path.parents[4])
    journal = engine.journal("t", "c")
    assert [*journal.recover()] == [one(1, snapshot=True), one(2)]
    journal.append(one(5, snapshot=True))
    journal.close()
    assert recovered(engine) == [one(5, snapshot=True)]


def test_a_full_disk_takes_nothing_away(opener: Opener, directory: Path) -> None:
    engine = opener()
    journal = wrote(engine, one(1))
    failpoint.arm("journal.write:1+=enospc")
    for at_ns in (2, 3):
        journal.append(one(at_ns))
        with pytest.raises(DiskFull, match="kept in memory and written once there is room"):
            journal.write()
    assert (directory / "journal_1").stat().st_size == ONE_BYTES
    assert not engine.accepts_publishes()
    failpoint.arm("")
    journal.append(one(4))
    journal.write()
    assert [*journal.history()] == [one(1), one(2), one(3), one(4)]


def test_on_a_full_disk_a_snapshot_replaces_what_waits_before_it(opener: Opener) -> None:
    journal = wrote(opener(), one(1))
    failpoint.arm("journal.write:1+=enospc")
    for batch in (one(2), one(3, snapshot=True), one(4)):
        journal.append(batch)
        with pytest.raises(DiskFull):
            journal.write()
    failpoint.arm("")
    journal.write()
    assert [*journal.history()] == [one(1), one(3, snapshot=True), one(4)]


def test_the_reserve_lets_consumers_finish_on_a_full_disk(opener: Opener, data: Path) -> None:
    engine = opener(options=FileOptions(reserve_bytes=1 << 20))
    journal = wrote(engine, one(1))
    failpoint.arm("journal.write=enospc")
    journal.append(one(2))
    journal.write()
    assert [*journal.history()] == [one(1), one(2)]
    assert (data / "reserve").stat().st_size < 1 << 20
    assert not engine.accepts_publishes()


@pytest.mark.parametrize("place", ["journal.write", "journal.written", "journal.create"])
def test_a_journal_takes_no_more_writes_after_an_error(opener: Opener, place: str) -> None:
    engine = opener()
    journal = wrote(engine, one(1, snapshot=True))
    failpoint.arm(f"{place}=eio")
    journal.append(one(2, snapshot=place == "journal.create"))
    with pytest.raises(LogFrozen, match="takes no more writes"):
        journal.write()
    for act in (journal.write, journal.sync):
        with pytest.raises(LogFrozen):
            act()
    journal.close()
    assert recovered(engine)[0] == one(1, snapshot=True)


def test_a_sync_that_fails_is_never_tried_again(opener: Opener) -> None:
    engine = opener()
    journal = wrote(engine, one(1))
    failpoint.arm("journal.sync=eio")
    for _ in range(2):
        with pytest.raises(LogFrozen):
            journal.sync()
    journal.close()
    assert recovered(engine) == [one(1)]


def test_history_reads_up_to_damage_in_an_older_file(opener: Opener, directory: Path) -> None:
    journal = wrote(opener(), one(1), one(2), one(3, snapshot=True), one(4))
    flip(directory / "journal_1", ONE_BYTES + 30)
    assert [*journal.history()] == [one(1), one(3, snapshot=True), one(4)]


def test_history_stays_until_the_snapshot_after_it_is_durable(
    opener: Opener, directory: Path
) -> None:
    journal = wrote(opener(), one(1), one(2, snapshot=True))
    journal.drop_before(1000, 2000)
    assert len([*directory.iterdir()]) == 2
    journal.sync()
    journal.drop_before(1000, 2000)
    assert [path.name for path in directory.iterdir()] == ["journal_2"]


def test_what_waits_for_room_counts_and_a_snapshot_takes_its_place(opener: Opener) -> None:
    journal = wrote(opener(), one(1))
    failpoint.arm("journal.write:1+=enospc")
    for at_ns in range(2, 12):
        journal.append(one(at_ns))
        with pytest.raises(DiskFull):
            journal.write()
    assert journal.bytes_since_snapshot == 11 * ONE_BYTES
    journal.append(one(12, snapshot=True))
    assert journal.bytes_since_snapshot == 0
    with pytest.raises(DiskFull):
        journal.write()
    journal.append(one(13))
    assert journal.bytes_since_snapshot == ONE_BYTES
    failpoint.arm("")
    journal.write()
    assert [*journal.history()] == [one(1), one(12, snapshot=True), one(13)]


def test_a_journal_whose_disk_failed_collects_no_more(opener: Opener) -> None:
    journal = wrote(opener(), one(1))
    failpoint.arm("journal.write=eio")
    journal.append(one(2))
    with pytest.raises(LogFrozen):
        journal.write()
    for at_ns in range(3, 10):
        journal.append(one(at_ns))
    assert journal.bytes_since_snapshot == ONE_BYTES


class StuckDisk(RealDisk):
    """One that removes nothing."""

    def unlink(self, path: str) -> None:
        raise OSError(EIO, "stuck", path)


def test_history_that_cannot_be_freed_is_an_error_of_the_disk(data: Path) -> None:
    engine = FileEngine(str(data), FileOptions(reserve_bytes=0), disk=StuckDisk())
    journal = wrote(engine, one(1), one(2, snapshot=True))
    journal.sync()
    with pytest.raises(OperatingError, match="cannot be freed"):
        journal.drop_before(10, 20)
    assert [*journal.history()][-1] == one(2, snapshot=True)
