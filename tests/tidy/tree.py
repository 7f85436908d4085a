"""Where the tree's files are, for the tidy tests."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"

# Everything that people write, by folder; caches and environments are not among them.
_WRITTEN = ("src", "tests", "bench", "fuzz", "docs", "contrib", "scripts", ".ci")
_SUFFIXES = {".py", ".md", ".js", ".toml", ".json", ""}


def modules(folder: Path = SOURCE) -> list[Path]:
    """Python files below a folder, in order."""
    return sorted(folder.rglob("*.py"))


def written_files() -> Iterator[Path]:
    """All texts of the tree that people write."""
    for name in _WRITTEN:
        for path in sorted((ROOT / name).rglob("*")):
            generated = {"node_modules", "__pycache__", "corpus", "crashes"} & set(path.parts)
            if path.suffix in _SUFFIXES and not generated and path.is_file():
                yield path
    yield from (path for path in sorted(ROOT.glob("*")) if path.suffix in {".md", ".toml"})
    yield ROOT / "Makefile"


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))
