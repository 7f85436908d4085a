"""A data directory per test, opened and reopened at will; no failpoint outlives its test."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions

Opener = Callable[..., FileEngine]
PLAIN = FileOptions(reserve_bytes=0)


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    yield
    failpoint.arm("")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def opener(data: Path) -> Iterator[Opener]:
    """Opens the directory with the given options; what a test left open is closed at its end."""
    opened: list[FileEngine] = []

    def open_it(path: Path = data, options: FileOptions = PLAIN) -> FileEngine:
        engine = FileEngine(str(path), options)
        opened.append(engine)
        return engine

    yield open_it
    failpoint.arm("")
    for engine in opened:
        engine.close()


@pytest.fixture
def killed(data: Path, tmp_path: Path) -> Callable[[], Path]:
    """A copy of the directory as it is now: what a kill at this moment would leave."""
    copies: list[Path] = []

    def copy() -> Path:
        copies.append(tmp_path / f"killed-{len(copies)}")
        shutil.copytree(data, copies[-1])
        return copies[-1]

    return copy
