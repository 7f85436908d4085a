"""A process that uses the storage is killed at every failpoint: what was safe is there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileLog
from tests.support.blocks import block
from tests.support.storage_worker import OPTIONS, TOGETHER
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow

# the rest belongs to the broker around the engine, whose own tests kill it there
PLACES = [
    name for name in failpoint.PLACES if not name.startswith(("commit.", "journals.", "removal."))
]
FIRST_START = ("format.", "reserve.")
ONCE = (
    *FIRST_START,
    "clean.",
    "lock.",
    "recovery.",
    "redo.applied",
)  # passed once or twice in a run
KILLS = [
    (name, count) for name in PLACES for count in (1, 4) if count == 1 or not name.startswith(ONCE)
]


def run(path: Path, armed: str) -> tuple[int, dict[str, int]]:
    """Work until the end or the kill; the exit code, and the last number said of each thing."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.storage_worker", str(path)],
        cwd=ROOT,
        env={**os.environ, failpoint.VARIABLE: armed},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    said: dict[str, int] = {}
    for line in done.stdout.decode().splitlines():
        what, number = line.split()
        said[what] = int(number)
    return done.returncode, said


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A directory as an earlier kill left it: unsynced tails, files half way."""
    path = tmp_path_factory.mktemp("kills") / "data"
    code, said = run(path, "log.written:110=kill")
    assert code == -9
    return path, said


@pytest.mark.parametrize(("place", "count"), KILLS)
def test_what_was_safe_is_there_after_a_kill(
    place: str, count: int, tmp_path: Path, left: tuple[Path, dict[str, int]]
) -> None:
    path = tmp_path / "data"
    before: dict[str, int] = {}
    if not place.startswith(FIRST_START):
        shutil.copytree(left[0], path)
        before = left[1]
    code, said = run(path, f"{place}:{count}=kill")
    assert code == -9, f"{place} is passed {count} times in no run"
    check(path, {**before, **said})


def check(path: Path, said: dict[str, int]) -> None:
    engine = FileEngine(str(path), OPTIONS)
    log = engine.log("t", 0, 0)
    bounds = log.bounds()
    assert not bounds.cut_bytes  # a kill tears nothing: what was written is in the page cache
    assert bounds.end >= said.get("log", 0)
    assert bounds.synced_end >= said.get("synced", 0)
    assert [*bodies(log)] == [b"%d" % seq for seq in range(bounds.start, bounds.end)]
    for topic in TOGETHER:
        one = engine.log(topic, 0, 0).bounds()
        assert not one.cut_bytes
        assert one.end >= said.get("together", 0)
    journal = engine.journal("t", "c")
    assert journal.recover() is not None
    numbers = [int(batch.records[0][2]) for batch in journal.history()]
    assert numbers == sorted(set(numbers))
    assert max(numbers, default=0) >= said.get("journal", 0)
    assert int(engine.state.get("number") or 0) >= said.get("state", 0)
    log.append(block(bounds.end))
    log.write()
    assert log.sync() == bounds.end + 1
    engine.close()


def bodies(log: FileLog) -> list[bytes]:
    found: list[bytes] = []
    seq = log.bounds().start
    while taken := log.read(seq, 10_000):
        for one in taken:
            found += [one.body_at(index) for index in range(one.count)]
        seq = taken[-1].end
    return found
