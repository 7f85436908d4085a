"""The data directory: who may open it, what it must be, and how its end is noted."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.errors import ConfigError, DirectoryLocked, LogFrozen, OperatingError
from penstock.protocol.journal import Batch
from penstock.storage.file.engine import FileEngine
from tests.support.blocks import block, chain

Opener = Callable[..., FileEngine]


def test_a_directory_is_made_with_all_above_it(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    opener(path)
    assert (path / "format").read_text() == "penstock data format 1\n"
    assert (path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_second_broker_is_refused_in_one_sentence(opener: Opener, data: Path) -> None:
    engine = opener()
    with pytest.raises(DirectoryLocked) as caught:
        opener()
    assert str(caught.value) == (
        f"{data} is in use by another broker (process {os.getpid()}): stop that one, or give this "
        "one another directory"
    )
    engine.close()
    opener()


def test_a_newer_format_is_refused(opener: Opener, data: Path) -> None:
    opener().close()
    (data / "format").write_text("penstock data format 2\n")
    with pytest.raises(ConfigError, match="has data format 2, this Penstock knows 1: use a newer"):
        opener()
    (data / "format").write_text("hello\n")
    with pytest.raises(ConfigError, match="does not say which format"):
        opener()


def test_a_directory_of_something_else_is_let_alone(opener: Opener, data: Path) -> None:
    data.mkdir()
    (data / "thesis.tex").write_text("important")
    with pytest.raises(ConfigError, match=r"it holds thesis\.tex but no file 'format'"):
        opener()
    assert sorted(path.name for path in data.iterdir()) == ["lock", "thesis.tex"]


def test_a_path_that_is_a_file_is_an_operating_error(opener: Opener, data: Path) -> None:
    data.write_text("")
    with pytest.raises(OperatingError, match="Not a directory"):
        opener()


def test_the_lock_is_free_again_when_opening_fails(opener: Opener, data: Path) -> None:
    opener().close()
    stored = (data / "state").read_bytes()
    (data / "state").unlink()
    (data / "state").mkdir()
    with pytest.raises(OperatingError, match="Is a directory"):
        opener()
    (data / "state").rmdir()
    (data / "state").write_bytes(stored)
    opener()


def test_only_a_clean_end_is_a_clean_end(
    opener: Opener, data: Path, killed: Callable[[], Path]
) -> None:
    engine = opener()
    assert engine.log("t", 0, 0).bounds().clean
    engine.log("u", 0, 0).append(block(0))
    copy = killed()
    engine.close()
    assert (data / "clean").exists()
    assert opener().log("u", 0, 0).bounds() == (0, 1, 1, True, 0, 135, 0, 0, ())
    assert not (data / "clean").exists()
    engine = opener(copy)
    assert not engine.log("t", 0, 0).bounds().clean
    # closed and opened in one run: its end is known, whatever was before
    log = engine.log("v", 0, 0)
    log.append(block(0))
    log.close()
    assert engine.log("v", 0, 0).bounds().clean


def test_a_run_that_does_not_open_a_log_does_not_vouch_for_it(
    opener: Opener, killed: Callable[[], Path]
) -> None:
    """What the power took leaves an end like a clean one; its seqs would be given again."""
    engine = opener()
    for name in ("t", "u"):
        engine.log(name, 0, 0).append(block(0))
    engine.close()
    engine = opener()
    for name in ("t", "u", "new"):
        log = engine.log(name, 0, 0)
        assert log.bounds().clean
        log.append(block(1))
        log.write()
    copy = killed()
    shutil.rmtree(copy / "topics" / "new")
    for path in copy.rglob("*.seg"):
        path.write_bytes(path.read_bytes()[:135])
    engine = opener(copy)
    assert not engine.log("u", 0, 0).bounds().clean
    engine.close()
    opener(copy).close()
    engine = opener(copy)
    assert [engine.log(name, 0, 0).bounds().clean for name in ("t", "u", "new")] == [
        False,
        True,
        False,
    ]
    engine.close()
    assert opener(copy).log("new", 0, 0).bounds().clean


def test_a_log_that_froze_makes_the_end_unclean(opener: Opener, data: Path) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    failpoint.arm("log.write=eio")
    log.append(block(0))
    with pytest.raises(LogFrozen):
        log.write()
    engine.close()
    assert not (data / "clean").exists()
    assert not opener().log("t", 0, 0).bounds().clean


def test_closing_an_engine_closes_what_is_open(opener: Opener) -> None:
    engine = opener()
    engine.log("t", 0, 0).append(block(0))
    journal = engine.journal("t", "c")
    journal.append(Batch([(1, 2, 3, 4, 5, 6, 7)], {}))
    engine.state.put("a", b"1")
    engine.close()
    engine.close()
    again = opener()
    assert again.log("t", 0, 0).read(0, 1) == [block(0)]
    assert len([*again.journal("t", "c").recover()]) == 1
    assert again.state.get("a") == b"1"


def test_what_was_being_deleted_is_gone_after_a_restart(
    opener: Opener, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opener()
    log = engine.log("t", 0, 0)
    log.append(block(0))
    log.close()

    def fails(disk: object, path: str) -> None:
        raise OSError(5, "no")

    with monkeypatch.context() as patch:
        patch.setattr("penstock.storage.file.engine.remove_tree", fails)
        with pytest.raises(OperatingError):
            engine.drop_topic("t")
    assert engine.log("t", 0, 0).bounds().end == 0
    assert len([*(data / "gone").iterdir()]) == 1
    engine.close()
    opener()
    assert [*(data / "gone").iterdir()] == []


def test_a_topic_made_again_after_a_drop_is_durable_again(
    opener: Opener, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opener()
    synced: list[str] = []
    disk = engine._disk
    sync_dir = disk.sync_dir

    def spy(path: str) -> None:
        synced.append(str(Path(path).relative_to(data)))
        sync_dir(path)

    monkeypatch.setattr(disk, "sync_dir", spy)
    for _ in range(2):
        log = engine.log("t", 0, 0)
        for one in chain(3):
            log.append(one)
            log.write()
            log.sync()
        assert synced == [".", "topics", "topics/t", "topics/t/0"][-len(synced) :]
        assert len(synced) >= 3
        synced.clear()
        log.close()
        engine.drop_topic("t")
        synced.clear()


def test_a_log_is_opened_once(opener: Opener) -> None:
    engine = opener()
    engine.log("t", 0, 0)
    with pytest.raises(AssertionError):
        engine.log("t", 0, 0)


def test_a_log_that_cannot_be_read_is_an_operating_error(opener: Opener, data: Path) -> None:
    engine = opener()
    (data / "topics" / "t").mkdir()
    (data / "topics" / "t" / "0").write_text("a file where a directory belongs")
    with pytest.raises(OperatingError, match="the log of topic t cannot be opened"):
        engine.log("t", 0, 0)
