"""Every file, function and anchor that the documents name is there."""

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SOURCE, shown

ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FILE = re.compile(r"(?<![\w/.])((?:[a-z_]+/)*[a-z_]+\.py)\b")
_LISTED = re.compile(r"^([a-z_/]+\.py)? +(?:[A-Za-z]+\.)?(\w+)\(", re.MULTILINE)
_LOOKED_FOR = re.compile(r"`([a-z_/]+\.py)`: ((?:`\w+`(?:, )?)+)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")


def sources() -> list[Path]:
    return [*SOURCE.rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "fuzz").rglob("*.py")]


def defines(file: str, name: str) -> bool:
    text = (SOURCE / file).read_text("utf-8")
    return bool(re.search(rf"\b(def|class) {name}\b|^ *{name}\b.*[:=]", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_files_that_are_named_are_there(page: Path) -> None:
    there = [f"/{path.relative_to(ROOT)}" for path in sources()]
    named = set(_FILE.findall(page.read_text("utf-8")))
    assert [file for file in named if not any(path.endswith(f"/{file}") for path in there)] == []


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for target, anchor in _LINK.findall(page.read_text("utf-8")):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(f"{target}#{anchor}")
    assert lost == []


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_functions_on_the_way_of_a_message_are_where_they_are_said_to_be() -> None:
    listing = (
        ARCHITECTURE.read_text("utf-8").partition("## The way of a message")[2].split("```")[1]
    )
    wrong, file, steps = [], "", _LISTED.findall(listing)
    assert len(steps) > 10
    for named, function in steps:
        file = named or file
        if not defines(file, function):
            wrong.append(f"{file} {function}")
    assert wrong == []


def test_what_to_look_for_is_there() -> None:
    rows = _LOOKED_FOR.findall(ARCHITECTURE.read_text("utf-8"))
    assert len(rows) > 10
    wrong = [
        f"{file} {name}"
        for file, names in rows
        for name in re.findall(r"\w+", names)
        if not defines(file, name)
    ]
    assert wrong == []
