"""Go's flag syntax: every spelling, and Go's own sentences for what it refuses."""

import pytest

from penstock.cli.goflags import Parsed, parse
from penstock.errors import ConfigError


def is_boolean(name: str) -> bool | None:
    return {"x": False, "y": False, "v": True}.get(name)


@pytest.mark.parametrize(
    ("argv", "values", "rest"),
    [
        ([], {}, []),
        (["-x", "1", "--y=2"], {"x": ["1"], "y": ["2"]}, []),
        (["--x", "1", "-x=2", "-x="], {"x": ["1", "2", ""]}, []),
        (["-x", "-y"], {"x": ["-y"]}, []),
        (["-x=a=b"], {"x": ["a=b"]}, []),
        (["-v", "--v=false", "-v=x"], {"v": ["true", "false", "x"]}, []),
        (["-v", "false", "-x", "1"], {"v": ["true"]}, ["false", "-x", "1"]),
        (["-v", "--", "-x", "1"], {"v": ["true"]}, ["-x", "1"]),
        (["-v", "-", "-x"], {"v": ["true"]}, ["-", "-x"]),
        (["word"], {}, ["word"]),
    ],
)
def test_reads_as_go_does(argv: list[str], values: dict[str, list[str]], rest: list[str]) -> None:
    assert parse(argv, is_boolean) == Parsed(values, rest)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["-z"], "flag provided but not defined: -z"),
        (["--z=1"], "flag provided but not defined: -z"),
        (["-x"], "flag needs an argument: -x"),
        (["---x"], "bad flag syntax: ---x"),
        (["--=1"], "bad flag syntax: --=1"),
        (["-=1"], "bad flag syntax: -=1"),
    ],
)
def test_refuses_as_go_does(argv: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(argv, is_boolean)
    assert str(raised.value) == sentence
