"""Redo files: what one fdatasync made durable for many logs is there after the power went."""

import shutil
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from penstock import failpoint
from penstock.errors import CorruptionError, DiskFull, LogFrozen
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileLog, FileOptions
from penstock.storage.file.redo import FILES_MAX, MAGIC, RECORD
from tests.support.blocks import block

Opener = Callable[..., FileEngine]
TOPICS = ("a", "b", "c")
SMALL = FileOptions(reserve_bytes=0, redo_bytes=300)


def logs_of(engine: FileEngine) -> list[FileLog]:
    return [engine.log(topic, 0, 0) for topic in TOPICS]


def commit(engine: FileEngine, logs: list[FileLog]) -> list[int]:
    """A block more to each."""
    for log in logs:
        log.append(block(log.bounds().end))
    ends = engine.commit(logs)
    assert ends == [log.bounds().end for log in logs]
    return [log.bounds().end for log in logs]


def redo_files(path: Path) -> list[Path]:
    return sorted(path.glob("redo_*"))


def after_power_cut(before: Path, now: Path) -> Path:
    """The directory as it was synced ``before``, with the redo files of ``now``: everything else
    that was written since is lost."""
    for file in redo_files(now):
        shutil.copy(file, before)
    return before


def ends(engine: FileEngine) -> list[int]:
    return [log.bounds().end for log in logs_of(engine)]


def test_what_was_committed_together_survives_without_its_own_sync(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    engine = opener()
    before = killed()
    logs = logs_of(engine)
    for _ in range(3):
        commit(engine, logs)
    assert [log.bounds().synced_end for log in logs] == [3, 3, 3]
    path = after_power_cut(before, killed())
    again = opener(path)
    assert ends(again) == [3, 3, 3]
    assert not redo_files(path)
    assert len(redo_files(data)) == 1


def test_a_clean_stop_leaves_no_redo_file(opener: Opener, data: Path) -> None:
    engine = opener()
    commit(engine, logs_of(engine))
    assert redo_files(data)
    engine.close()
    assert not redo_files(data)
    again = opener()
    assert ends(again) == [1, 1, 1]
    assert again.log("d", 0, 0).bounds().clean


def test_a_full_redo_file_goes_when_its_logs_are_synced(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    engine = opener(data, SMALL)
    logs = logs_of(engine)
    commit(engine, logs)
    assert len(redo_files(data)) == 1
    chore = engine.chore()
    assert chore is not None
    chore()
    assert not redo_files(data)
    assert engine.chore() is None
    # each log has noted its synced end itself, for readers of the files
    assert len([*data.glob("topics/*/0/*.synced")]) == 3
    assert ends(opener(killed())) == [1, 1, 1]


def test_a_redo_file_that_cannot_go_is_kept(opener: Opener, data: Path) -> None:
    engine = opener(options=SMALL)
    logs = logs_of(engine)
    kept = commit(engine, logs)
    chore = engine.chore()
    assert chore is not None
    failpoint.arm("redo.caught_up=eio")
    chore()
    assert redo_files(data)
    assert engine.chore() is None
    engine.close()
    assert ends(opener()) == kept


def test_logs_sync_themselves_while_too_much_waits_to_be_cleared(
    opener: Opener, data: Path
) -> None:
    engine = opener(data, SMALL)
    logs = logs_of(engine)
    for _ in range(FILES_MAX + 2):
        commit(engine, logs)
    assert len(redo_files(data)) == FILES_MAX


def test_a_log_whose_sync_fails_keeps_its_redo_file(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    engine = opener(data, SMALL)
    before = killed()
    commit(engine, logs_of(engine))
    failpoint.arm("log.sync=eio")
    chore = engine.chore()
    assert chore is not None
    chore()
    failpoint.arm("")
    assert len(redo_files(data)) == 1
    assert engine.chore() is None
    engine.close()
    assert len(redo_files(data)) == 1
    assert ends(opener(after_power_cut(before, data))) == [1, 1, 1]


def test_a_topic_that_is_gone_does_not_come_back(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    engine = opener()
    before = killed()
    logs = logs_of(engine)
    commit(engine, logs)
    logs[1].close()
    engine.drop_topic("b")
    again = engine.log("b", 0, 0)  # of the same name, with seqs of its own
    assert commit(engine, [logs[0], again]) == [2, 1]
    path = after_power_cut(before, killed())
    assert ends(opener(path)) == [2, 1, 1]


def test_a_redo_file_that_fails_is_no_publishers_business(opener: Opener, data: Path) -> None:
    engine = opener()
    logs = logs_of(engine)
    failpoint.arm("redo.write=enospc")
    assert commit(engine, logs) == [1, 1, 1]
    assert commit(engine, logs) == [2, 2, 2]
    engine.close()
    assert not redo_files(data)
    assert ends(opener()) == [2, 2, 2]


def test_what_was_torn_was_never_answered(opener: Opener, killed: Callable[[], Path]) -> None:
    engine = opener()
    before = killed()
    logs = logs_of(engine)
    commit(engine, logs)
    commit(engine, logs)
    path = after_power_cut(before, killed())
    (file,) = redo_files(path)
    file.write_bytes(file.read_bytes()[:-5])
    assert ends(opener(path)) == [2, 2, 1]


def test_damage_below_what_was_synced_is_loud(opener: Opener, killed: Callable[[], Path]) -> None:
    engine = opener()
    before = killed()
    logs = logs_of(engine)
    commit(engine, logs)
    path = killed()
    first = redo_files(path)[0].stat().st_size
    commit(engine, logs)
    path = after_power_cut(before, killed())
    (file,) = redo_files(path)
    stored = bytearray(file.read_bytes())
    stored[first - 5] ^= 1
    file.write_bytes(stored)
    with pytest.raises(CorruptionError, match=r"redo_1 is damaged at offset \d+: publishes"):
        opener(path)
    assert file.read_bytes() == stored
    file.unlink()
    assert ends(opener(path)) == [0, 0, 0]


def test_a_newer_record_is_refused(opener: Opener, killed: Callable[[], Path]) -> None:
    engine = opener()
    commit(engine, logs_of(engine))
    path = killed()
    (file,) = redo_files(path)
    stored = bytearray(file.read_bytes())
    length = RECORD.unpack_from(stored)[2]
    stored[12] = 9
    stored[4:8] = crc32(bytes(stored[8:length])).to_bytes(4, "little")
    assert stored.startswith(MAGIC)
    file.write_bytes(stored)
    with pytest.raises(CorruptionError, match="written by a newer Penstock"):
        opener(path)
    assert file.exists()


def test_a_large_commit_has_a_sync_of_its_own(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    engine = opener()
    logs = logs_of(engine)
    logs[0].append(block(0, [b"x" * 200_000]))
    for log in logs[1:]:
        log.append(block(0))
    assert engine.commit(logs) == [1, 1, 1]
    (file,) = redo_files(data)
    assert file.stat().st_size < 2000


def test_a_log_that_failed_has_all_that_was_answered_when_it_is_opened_again(
    opener: Opener, data: Path
) -> None:
    engine = opener()
    logs = logs_of(engine)
    commit(engine, logs)
    logs[0].append(block(1))
    logs[0].write()
    failpoint.arm("log.sync=eio")
    with pytest.raises(LogFrozen):
        logs[0].sync()
    failpoint.arm("")
    logs[0].close()
    (segment,) = data.glob("topics/a/0/*.seg")
    segment.write_bytes(b"")  # what the page cache may make of it after an error
    assert engine.log("a", 0, 0).bounds().end == 1


def test_a_log_that_failed_and_was_opened_again_is_closed_well_at_the_end(
    opener: Opener, data: Path
) -> None:
    engine = opener()
    logs = logs_of(engine)
    commit(engine, logs)
    for log in logs[:2]:
        log.append(block(1))
        log.write()
        failpoint.arm("log.sync=eio")
        with pytest.raises(LogFrozen):
            log.sync()
        log.close()
    engine.drop_topic("b")
    again = engine.log("a", 0, 0)
    commit(engine, [again, logs[2]])
    engine.close()
    assert not redo_files(data)
    engine = opener()
    assert engine.log("a", 0, 0).bounds().clean


def test_a_log_that_found_no_room_at_its_close_keeps_its_redo_file(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    engine = opener()
    before = killed()
    logs = logs_of(engine)
    commit(engine, logs)
    logs[0].append(block(1))
    failpoint.arm("log.write=enospc")
    with pytest.raises(DiskFull):
        logs[0].close()
    engine.close()
    assert ends(opener(after_power_cut(before, data))) == [1, 1, 1]
