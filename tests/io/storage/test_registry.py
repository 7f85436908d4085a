"""From a storage URL to an engine."""

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.memory import MemoryEngine
from penstock.storage.registry import ENGINES, EXAMPLES, directory_of, open_engine


def test_memory() -> None:
    assert isinstance(open_engine("memory://"), MemoryEngine)


def test_a_directory(tmp_path: Path) -> None:
    engine = open_engine(f"file://{tmp_path}/with%20space", FileOptions(reserve_bytes=0))
    assert isinstance(engine, FileEngine)
    assert (tmp_path / "with space" / "format").exists()
    engine.close()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///var/lib/penstock", "/var/lib/penstock"),
        ("file://data", "data"),
        ("file://./data", "./data"),
        ("file:data/x", "data/x"),
        ("file:///with%20space", "/with space"),
    ],
)
def test_a_file_url_names_a_directory(url: str, path: str) -> None:
    assert directory_of(url) == path


@pytest.mark.parametrize("url", ["", "data", "/data", "tape://x", "FILE:///x", "://", "memory"])
def test_what_names_no_engine_lists_those_there_are(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_engine(url)
    assert all(EXAMPLES[scheme] in str(caught.value) for scheme in ENGINES)


@pytest.mark.parametrize("url", ["file://", "file:", "file:///x?sync=no", "memory://1g"])
def test_a_url_that_says_too_little_or_too_much(url: str) -> None:
    with pytest.raises(ConfigError, match=r"names no directory|says more"):
        open_engine(url)
