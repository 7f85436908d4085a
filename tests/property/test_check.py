"""Whatever is broken in a log's files, `penstock check` and a broker that starts agree about it.

The invariant: check calls it damage if and only if opening the log and reading all of it raises
CorruptionError; else both find the same messages and the same end.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptionError
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.file.survey import Survey
from penstock.storage.file.verify import check_log
from tests.property.budget import budget
from tests.support.blocks import chain

OPTIONS = FileOptions(
    segment_bytes_max=900, index_step_bytes=200, checkpoint_bytes=500, reserve_bytes=0
)


class Read(NamedTuple):
    messages: int
    end: int


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One log closed in order, one killed with an unsynced tail, one with nothing synced."""
    made: dict[str, Path] = {}
    for name, synced in (("closed", 12), ("killed", 8), ("unsynced", 0)):
        root = tmp_path_factory.mktemp(name)
        engine = FileEngine(str(root / "data"), OPTIONS)
        log = engine.log("t", 0, 0)
        for number, block in enumerate(chain(12, each=2, size=30), 1):
            log.append(block)
            log.write()
            if number <= synced and number % 2 == 0:
                log.sync()
        if name != "closed":
            shutil.copytree(root / "data", root / "copy")
            made[name] = root / "copy"
        engine.close()
        made.setdefault(name, root / "data")
    return made


def checked(path: Path) -> tuple[bool, Read]:
    survey = Survey(str(path))
    report = check_log(survey, survey.log("t", 0, 0), lambda _: None)
    return bool(report.damage), Read(report.messages, report.end)


def opened(path: Path) -> tuple[bool, Read]:
    engine = FileEngine(str(path), OPTIONS)
    try:
        log = engine.log("t", 0, 0)
        messages, seq = 0, log.bounds().start
        while blocks := log.read(seq, 1 << 20):
            messages += sum([block.count for block in blocks])
            seq = blocks[-1].end
        return False, Read(messages, log.bounds().end)
    except CorruptionError:
        return True, Read(0, 0)
    finally:
        engine.close()


breaks = st.tuples(
    st.sampled_from(["flip", "flip", "flip", "cut", "remove", "append", "zeros"]),
    st.integers(0, 30),
    st.integers(0, 4000),
    st.integers(0, 7),
)


def break_it(path: Path, how: str, which: int, at: int, bit: int) -> None:
    files = sorted(file for file in (path / "topics/t/0").iterdir())
    if not files:
        return
    file = files[which % len(files)]
    content = bytearray(file.read_bytes())
    at %= len(content) + 1
    if how == "remove":
        file.unlink()
        return
    if how == "flip":
        for byte in content[at : at + 1]:
            content[at] = byte ^ 1 << bit
    elif how == "cut":
        del content[at:]
    elif how == "append":
        content += bytes([bit]) * at
    else:
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    file.write_bytes(content)


@budget(60)
@given(
    st.sampled_from(["closed", "killed", "unsynced"]),
    st.lists(breaks, max_size=2),
)
def test_check_and_the_broker_agree(
    logs: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    broken: list[tuple[str, int, int, int]],
) -> None:
    path = tmp_path_factory.mktemp("broken") / "data"
    shutil.copytree(logs[name], path)
    for one in broken:
        break_it(path, *one)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    found = checked(path)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    loud = opened(path)
    if found[0] or loud[0]:
        assert found[0] == loud[0]
    else:
        assert found == loud
    shutil.rmtree(path.parent)
