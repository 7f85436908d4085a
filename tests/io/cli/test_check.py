"""`penstock check` in text and JSON, its exit codes, and directories that it cannot read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli import ExitCode, main
from tests.io.cli import directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return directory.make(tmp_path / "data")


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As root every file can be read: be somebody else for a moment."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_sound_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(data)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert out.startswith(f"{data}: 2 topics, 3 logs, 3 segments, 6 messages, 1 journal, ")
    assert out.endswith(" bytes checked: no damage\n")


def test_one_topic(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(data / "topics/orders/0/ready_0_00000000000000000000.seg", 130)
    assert main(["check", str(data), "--topic", "written"]) == ExitCode.OK
    assert ": 1 topic, 1 log, 1 segment, 1 message, 0 journals, " in capsys.readouterr().out
    assert main(["check", str(data), "--topic", "order"]) == ExitCode.USAGE
    assert "holds no topic 'order'; did you mean 'orders'?" in capsys.readouterr().err


def test_damage_says_what_where_and_what_to_do(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "topics/orders/0/ready_0_00000000000000000000.seg"
    flip(path, 130)
    assert main(["check", str(data)]) == ExitCode.DAMAGE
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == [
        (
            "DAMAGE: topic orders, log 0/0: checksum of block at seq 0 does not match; "
            "184 bytes cannot be read"
        ),
        f"  file   {path} at offset 0",
        "  held   seqs 0 to 1",
        "  kept   what lies in front of it and behind it; no byte was changed",
        (
            "  to do  put the file back from a backup; without one, `penstock dump` prints the "
            "messages that can be read"
        ),
    ]
    assert summary.endswith("checked: DAMAGED in 1 place; all bytes were kept")
    assert main(["check", str(data), "--json"]) == ExitCode.DAMAGE
    damage, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert damage["kind"] == "damage" and damage["seqs"] == [0, 1] and damage["offset"] == 0
    assert (damage["topic"], damage["log"], damage["file"]) == ("orders", "0/0", str(path))
    assert last["kind"] == "summary" and (last["damage"], last["notes"]) == (1, 0)


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_files_that_may_not_be_read(
    verb: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([verb, str(data)])  # all modules are loaded
    capsys.readouterr()
    data.chmod(0)
    try:
        with unprivileged():
            code = main([verb, str(data)])
    finally:
        data.chmod(0o755)
    assert code == ExitCode.ERROR
    said = capsys.readouterr().err
    assert "Permission denied. Nothing was changed; check the disk, and that you may read" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_what_is_no_data_directory(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (empty, tmp_path, tmp_path / "none", Path(__file__)):
        assert main([verb, str(path)]) == ExitCode.USAGE
        assert "not a data directory" in capsys.readouterr().err
    assert [*empty.iterdir()] == []


@pytest.mark.parametrize("verb", ["check", "dump"])
def test_a_newer_format(verb: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "format").write_text("penstock data format 9\n")
    assert main([verb, str(data)]) == ExitCode.USAGE
    assert "data format 9, this Penstock knows 1: use a newer one" in capsys.readouterr().err
