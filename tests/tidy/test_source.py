"""What the source may not have: unfinished words, silent ignores, modules of several subjects."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, modules, shown, written_files

LINES_MAX = 600

# Modules that are longer, and why splitting them would hide more than it shows.
LONGER: dict[str, str] = {}

# Written apart, so that this file passes its own test.
BANNED = ("TO" + "DO", "FIX" + "ME", "for" + " now", "/work" + "/")

_NOQA = re.compile(r"#\s*noqa(?P<rest>.*)")
_NOQA_WITH_REASON = re.compile(r":\s*[A-Z]+[0-9]+(,\s*[A-Z]+[0-9]+)*\s+\W*\w.*")
_TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<rest>.*)")
_TYPE_IGNORE_WITH_REASON = re.compile(r"\[[a-z, -]+\]\s+#\s*\w.*")


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_a_module_is_one_subject(path: Path) -> None:
    lines = path.read_text("utf-8").count("\n")
    assert lines <= LINES_MAX or shown(path) in LONGER, f"{lines} lines: is it one subject?"


def test_exceptions_to_the_length_are_still_needed() -> None:
    for name in LONGER:
        assert (ROOT / name).read_text("utf-8").count("\n") > LINES_MAX


def test_unit_tests_do_no_io() -> None:
    real = re.compile(
        r"\btmp_path\b|\bimport (subprocess|socket|tempfile)\b|\.write_(text|bytes)\("
    )
    found = [
        shown(path) for path in modules(ROOT / "tests/unit") if real.search(path.read_text("utf-8"))
    ]
    assert found == [], "files, sockets and processes are for tests/io"


def test_nothing_is_left_for_later() -> None:
    found = []
    for path in written_files():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            found += [f"{shown(path)}:{number}: {word}" for word in BANNED if word in line]
    assert found == []


def test_every_ignore_has_its_reason() -> None:
    bare = []
    for folder in ("src", "tests", "bench", "fuzz"):
        for path in modules(ROOT / folder):
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                noqa, ignore = _NOQA.search(line), _TYPE_IGNORE.search(line)
                if noqa and not _NOQA_WITH_REASON.match(noqa["rest"]):
                    bare.append(f"{shown(path)}:{number}: {line.strip()}")
                # in tests the code says it: a wrong type is given on purpose
                unclear = ignore and not _TYPE_IGNORE_WITH_REASON.match(ignore["rest"])
                if unclear and folder != "tests":
                    bare.append(f"{shown(path)}:{number}: {line.strip()}")
    assert bare == []


def test_every_rule_that_is_off_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text("utf-8").splitlines()
    first = lines.index("ignore = [")
    last = lines.index("]", first)
    assert [line for line in lines[first + 1 : last] if "  # " not in line] == []


def test_the_version_is_said_once() -> None:
    import penstock

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == penstock.__version__
