"""A directory seen from outside: beside a writer, behind bad places, on a disk that fails."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.protocol.block import HEADER
from penstock.protocol.journal import DELIVERED, FINISHED, Batch
from penstock.storage.file.disk import RealDisk
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.file.survey import LogView, Survey
from penstock.storage.file.verify import (
    LogReport,
    check_journal,
    check_log,
    check_redo,
    check_state,
)
from tests.support.blocks import block, chain

Opener = Callable[..., FileEngine]

SMALL = FileOptions(
    segment_bytes_max=1000, index_step_bytes=200, checkpoint_bytes=300, reserve_bytes=0
)


def bases(survey: Survey, log: LogView, seq: int = 0) -> tuple[list[int], list[tuple[str, bool]]]:
    """Bases of the blocks from ``seq`` on, and the bad places."""
    bad: list[tuple[str, bool]] = []
    found = survey.blocks(log, seq, lambda *told: bad.append(told), lambda _: None)
    return [placed.block.base for _, placed in found], bad


def checked(survey: Survey) -> LogReport:
    return check_log(survey, survey.log("t", 0, 0), lambda _: None)


def segments(data: Path) -> list[Path]:
    return sorted((data / "topics/t/0").glob("*.seg"))


@pytest.fixture
def filled(opener: Opener, data: Path) -> Path:
    """Twenty blocks, each synced, in a few segments; closed in order."""
    engine = opener(options=SMALL)
    log = engine.log("t", 0, 0)
    for one in chain(20):
        log.append(one)
        log.write()
        log.sync()
    engine.state.put("topic/t", b"{}")
    engine.close()
    return data


# --- what is there


def test_what_is_written_is_seen_at_once_and_what_is_synced_is_told_apart(
    opener: Opener, data: Path
) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    for one in chain(10):
        log.append(one)
        log.write()
    survey = Survey(str(data))
    view = survey.log("t", 0, 0)
    assert bases(survey, view) == ([*range(10)], [])
    assert (view.start, view.synced_end, survey.end_of(view)) == (0, 0, 10)
    log.sync()
    view = survey.log("t", 0, 0)
    assert (view.start, view.synced_end, survey.end_of(view)) == (0, 10, 10)
    assert checked(survey).damage == checked(survey).notes == []


@pytest.mark.parametrize("seq", [0, 1, 7, 19, 20, 99])
def test_blocks_from_a_seq_on(filled: Path, seq: int) -> None:
    survey = Survey(str(filled))
    assert bases(survey, survey.log("t", 0, 0), seq) == ([*range(seq, 20)], [])


def test_segments_that_are_dropped_meanwhile_are_no_damage(opener: Opener, data: Path) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    for one in chain(20):
        log.append(one)
        log.write()
        log.sync()
    survey = Survey(str(data))
    view = survey.log("t", 0, 0)
    assert log.drop_below(12) > 0
    report = check_log(survey, view, lambda _: None)
    assert (report.damage, report.notes, report.end) == ([], [], 20)
    assert checked(survey).damage == []


def test_a_topic_that_is_deleted_meanwhile_is_no_damage(opener: Opener, data: Path) -> None:
    engine = opener(options=SMALL)
    log = engine.log("t", 0, 0)
    for one in chain(20):
        log.append(one)
        log.write()
        log.sync()
    survey = Survey(str(data))
    view = survey.log("t", 0, 0)
    log.close()
    engine.drop_topic("t")
    report = check_log(survey, view, lambda _: None)
    assert (report.damage, report.notes) == ([], [])
    assert checked(survey).damage == []


def test_holes_of_reservations_are_no_damage(opener: Opener, data: Path) -> None:
    log = opener(options=SMALL).log("t", 0, 0)
    for one in [*chain(3), *chain(3, base=1000), *chain(9, base=5000)]:
        log.append(one)
        log.write()
        log.sync()
    survey = Survey(str(data))
    assert checked(survey).damage == []
    assert survey.log("t", 0, 0).holes == [(3, 1000), (1003, 5000)]


def test_a_large_block_is_read_as_a_whole(opener: Opener, data: Path) -> None:
    log = opener().log("t", 0, 0)
    for one in (block(0, [b"x" * (5 << 20)]), block(1, [b"y"])):
        log.append(one)
    log.write()
    survey = Survey(str(data))
    assert bases(survey, survey.log("t", 0, 0)) == ([0, 1], [])


# --- bad places


def test_bad_places_are_gone_around_and_told_one_by_one(filled: Path) -> None:
    file = segments(filled)[0]
    content = bytearray(file.read_bytes())
    length = HEADER.unpack_from(content)[2]
    for number in (1, 3):
        content[number * length + 100] ^= 1
    file.write_bytes(content)
    survey = Survey(str(filled))
    found, bad = bases(survey, survey.log("t", 0, 0))
    assert found == [0, 2, *range(4, 20)]
    assert [synced for _, synced in bad] == [True, True]
    damage = checked(survey).damage
    assert [one.seqs for one in damage] == [(1, 2), (3, 4)]
    assert [one.offset for one in damage] == [length, 3 * length]


def test_what_looks_like_a_block_in_a_message_is_none(opener: Opener, data: Path) -> None:
    """A segment that somebody published, inside a block that is damaged."""
    log = opener().log("t", 0, 0)
    log.append(block(0, [b"first"]))
    log.write()
    log.sync()
    inside = segments(data)[0].read_bytes()
    log.append(block(1, [inside, inside]))
    log.append(block(3, [b"last"]))
    log.write()
    log.sync()
    file = segments(data)[0]
    content = bytearray(file.read_bytes())
    content[len(inside) + 20] ^= 1
    file.write_bytes(content)
    survey = Survey(str(data))
    assert bases(survey, survey.log("t", 0, 0))[0] == [0, 3]
    (damage,) = checked(survey).damage
    assert damage.seqs == (1, 3)


def test_a_file_in_the_wrong_place(filled: Path) -> None:
    first, second, *_ = segments(filled)
    shutil.copy(first, second)
    damage = checked(Survey(str(filled))).damage
    assert len(damage) == 1 and damage[0].path == str(second)
    assert "comes again" in damage[0].what


def test_a_newer_block_is_no_damage(opener: Opener, filled: Path) -> None:
    from zlib import crc32

    file = segments(filled)[1]
    content = bytearray(file.read_bytes())
    length = HEADER.unpack_from(content)[2]
    content[12] = 9
    content[4:8] = crc32(content[8:length]).to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="at offset 0: this block was written by a newer"):
        checked(Survey(str(filled)))


def test_pages_that_cannot_be_read(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = segments(filled)[1]
    healthy = RealDisk.pread

    def failing(disk: RealDisk, handle: int, length: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{handle}").resolve() == file and offset < 4096:
            raise OSError(errno.EIO, "Input/output error")
        return healthy(disk, handle, length, offset)

    monkeypatch.setattr(RealDisk, "pread", failing)
    survey = Survey(str(filled))
    (damage,) = checked(survey).damage
    assert damage.what.startswith("the disk cannot read it; ")
    assert damage.path == str(file) and survey.disk.unreadable


# --- a tail that is being written


def test_a_block_that_becomes_whole_meanwhile_is_not_even_a_note(
    opener: Opener, data: Path
) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    for one in chain(3):
        log.append(one)
    log.write()
    (file,) = segments(data)
    content = file.read_bytes()
    file.write_bytes(content[:-5])
    survey = Survey(str(data))
    view = survey.log("t", 0, 0)
    (note,) = check_log(survey, view, lambda _: None).notes
    assert "never synced: torn, or being written" in note.what
    file.write_bytes(content)
    report = check_log(survey, view, lambda _: None)
    assert (report.damage, report.notes, report.messages) == ([], [], 2)


def test_what_a_redo_file_holds_is_put_in_its_place_by_the_next_start(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    """A power cut took the page of the first block, and left that of the second."""
    engine = opener()
    logs = [engine.log(topic, 0, 0) for topic in ("t", "u")]
    for base in range(2):
        for log in logs:
            log.append(block(base))
        assert engine.commit(logs) == [base + 1] * 2
    path = killed()
    (file,) = segments(path)
    content = bytearray(file.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    file.write_bytes(content)
    report = checked(Survey(str(path)))
    assert report.damage == []
    assert "the next start puts it in its place" in report.notes[0].remedy
    opener(path).log("t", 0, 0)
    report = checked(Survey(str(path)))
    assert (report.damage, report.notes, report.messages) == ([], [], 2)


def test_damage_between_what_redo_files_hold_is_damage(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    """Commits of a log alone are in no redo file, though those around them are."""
    engine = opener()
    logs = [engine.log(topic, 0, 0) for topic in ("t", "u")]
    starts: list[int] = []
    for base in range(3):
        starts.append(logs[0].bounds().bytes)
        together = logs[:1] if base == 1 else logs
        for log in together:
            log.append(block(log.bounds().end))
        if base == 1:
            logs[0].write()
            logs[0].sync()
        else:
            engine.commit(together)
    path = killed()
    (file,) = segments(path)
    content = bytearray(file.read_bytes())
    content[starts[1] + HEADER.size] ^= 1
    file.write_bytes(content)
    report = checked(Survey(str(path)))
    assert [finding.offset for finding in report.damage] == [starts[1]]


def test_a_damaged_redo_file_is_shown_and_what_is_in_its_place_can_be_read(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    engine = opener()
    logs = [engine.log(topic, 0, 0) for topic in ("t", "u")]
    for base in range(2):
        for log in logs:
            log.append(block(base))
        engine.commit(logs)
    path = killed()
    (file,) = path.glob("redo_*")
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)
    survey = Survey(str(path))
    (finding,) = check_redo(survey).damage
    assert "redo_1 is damaged at offset 0" in finding.what
    assert checked(survey).messages == 2


# --- journals and state


def journal_of(opener: Opener) -> None:
    engine = opener()
    journal = engine.journal("t", "c")
    for number in range(3):
        journal.append(
            Batch([(DELIVERED, 1, number, number + 1, 1, number, 7)], {7: "someone"}, not number)
        )
        journal.write()
        journal.sync()
    journal.append(Batch([(FINISHED, 1, 0, 1, 1, 9, 7)], {}))
    journal.write()
    engine.state.put("topic/t", b"{}")
    engine.close()


def test_a_journal_and_its_damage(opener: Opener, data: Path) -> None:
    journal_of(opener)
    survey = Survey(str(data))
    assert [len(batch.records) for batch in survey.recovered("t", "c")][:4] == [1, 1, 1, 1]
    report = check_journal(survey, "t", "c", lambda _: None)
    assert (report.damage, report.notes, report.files) == ([], [], 1)
    path = Path(survey.journal_files("t", "c")[0])
    content = bytearray(path.read_bytes())
    content[120] ^= 1
    path.write_bytes(content)
    (damage,) = check_journal(survey, "t", "c", lambda _: None).damage
    assert damage.path == str(path) and "messages come again" in damage.remedy
    assert next(batch.records for _, batch in survey.batches(str(path)))[0][0] == DELIVERED


def test_a_damaged_state_still_says_what_stands_in_front(opener: Opener, data: Path) -> None:
    engine = opener()
    for number in range(5):
        engine.state.put(f"key/{number}", b"value")
        engine.state.write()
        engine.state.sync()
    engine.close()
    path = data / "state"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    survey = Survey(str(data))
    values, error = survey.state()
    assert error is not None and "state is damaged at offset" in str(error)
    assert "key/0" in values and "key/4" not in values
    (damage,) = check_state(survey).damage
    assert damage.path == str(path)


# --- what is no directory of ours


def test_what_is_not_ours(tmp_path: Path) -> None:
    for path, says in (
        (tmp_path, "it is empty"),
        (tmp_path / "none", "it does not exist"),
    ):
        with pytest.raises(ConfigError, match=f"is not a data directory: {says}"):
            Survey(str(path))
    (tmp_path / "photo").write_bytes(b"x")
    with pytest.raises(ConfigError, match="it has no file 'format'"):
        Survey(str(tmp_path))
    with pytest.raises(ConfigError, match="is a file, not a data directory"):
        Survey(str(tmp_path / "photo"))


def test_a_directory_above_ours_says_which_is(filled: Path) -> None:
    with pytest.raises(ConfigError, match=rf"not a data directory: did you mean {filled}\?"):
        Survey(str(filled.parent))


def test_a_newer_format(filled: Path) -> None:
    (filled / "format").write_text("penstock data format 2\n")
    with pytest.raises(ConfigError, match="has data format 2, this Penstock knows 1"):
        Survey(str(filled))
