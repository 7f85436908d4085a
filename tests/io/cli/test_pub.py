"""What `penstock pub` makes of its arguments and its input, without a broker."""

import argparse
import os
from pathlib import Path

import pytest

from penstock.cli import Parser
from penstock.cli.pub import Source, add_arguments, generated, source_of
from penstock.errors import ConfigError
from penstock.sdk import MessageInvalid


def parsed(*argv: str) -> argparse.Namespace:
    parser = Parser(prog="penstock pub")
    add_arguments(parser)
    return parser.parse_args(["topic", *argv])


def bodies(source: Source) -> list[bytes]:
    return [body for portion in source.portions for body in portion.bodies]


def progress(source: Source) -> int:
    return sum(portion.progress for portion in source.portions)


def test_a_wrong_name_is_told_before_anything_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="penstock pub")
    add_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["bad name"])
    assert ended.value.code == 2
    assert "'bad name' is not a name; a name is 1 to 64 letters" in capsys.readouterr().err


def test_generated_messages_have_their_size_and_begin_with_their_number() -> None:
    assert list(generated(3, 5)) == [b"0 ...", b"1 ...", b"2 ..."]
    assert list(generated(11, 1))[10] == b"1"


def test_count_and_size() -> None:
    source = source_of(parsed("--count", "20000", "--size", "1KiB"))
    found = bodies(source)
    assert source.total == len(found) == 20_000
    assert {len(body) for body in found} == {1024}


def test_one_text_or_the_same_text_often() -> None:
    assert bodies(source_of(parsed("--body", "hé"))) == ["hé".encode()]
    assert bodies(source_of(parsed("--body", "x", "--count", "3"))) == [b"x"] * 3


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb", [b"a", b"b"]),
        (b"\n\na", [b"", b"", b"a"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_lines_of_a_file(text: bytes, lines: list[bytes], tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(text)
    source = source_of(parsed("--file", str(file)))
    assert (source.total, bodies(source)) == (len(text), lines)
    assert progress(source_of(parsed("--file", str(file)))) == len(text)


def test_a_whole_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "whole"
    file.write_bytes(b"a\nb\n")
    assert bodies(source_of(parsed("--file", str(file), "--whole"))) == [b"a\nb\n"]


def test_a_pipe_is_published_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        source = source_of(parsed())
        portions = source.portions
        os.write(write_end, b"one\ntwo\nthr")
        assert next(portions).bodies == [b"one", b"two"]
        os.write(write_end, b"ee\n")
        assert next(portions).bodies == [b"three"]
        os.close(write_end)
        assert list(portions) == []
        assert source.total is None


def test_a_line_that_no_broker_takes_ends_it_early(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes(b"first\n" + b"x" * (3 << 20) + b"\nlast\n")
    portions = source_of(parsed("--file", str(file))).portions
    assert next(portions).bodies == [b"first"]
    with pytest.raises(MessageInvalid, match="a line is longer than 1048576 bytes"):
        list(portions)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--file", "f", "--body", "x"], "--file goes with neither"),
        (["--size", "5"], "needs --count"),
        (["--size", "5", "--body", "x", "--count", "2"], "do not go together"),
        (["--count", "0"], "must be 1 or more"),
        (["--count", "1", "--size", "big"], "bad value for --size: 'big' is not a size"),
        (["--file", "/nowhere/x"], "cannot read /nowhere/x: No such file or directory"),
        (["--file", "/"], "cannot read /: Is a directory"),
    ],
)
def test_arguments_that_make_no_sense(argv: list[str], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        source_of(parsed(*argv))
