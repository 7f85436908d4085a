"""From a storage URL to an engine: ``file:///var/lib/penstock``, ``memory://``.

The one place that knows which engines there are.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.memory import MemoryEngine
from penstock.storage.port import Engine


def open_engine(url: str, options: FileOptions | None = None) -> Engine:
    """The engine that a URL names, opened; ``options`` are the file engine's."""
    scheme, colon, _ = url.partition(":")
    opener = ENGINES.get(scheme) if colon else None
    if opener is None:
        raise ConfigError(
            f"'{url}' names no storage: use {' or '.join(EXAMPLES[known] for known in ENGINES)}"
        )
    return opener(url, options or FileOptions())


def directory_of(url: str) -> str:
    """The directory that a ``file:`` URL names: absolute after three slashes, else relative."""
    parts = urlsplit(url)
    path = unquote(f"{parts.netloc}{parts.path}")
    if parts.scheme != "file" or not path or parts.query or parts.fragment:
        raise ConfigError(f"'{url}' names no directory: use {EXAMPLES['file']}")
    return path


def _open_file(url: str, options: FileOptions) -> Engine:
    return FileEngine(directory_of(url), options)


def _open_memory(url: str, options: FileOptions) -> Engine:
    del options  # they are the file engine's
    if url.rstrip("/") != "memory:":
        raise ConfigError(f"'{url}' says more than an engine in memory can use: write memory://")
    return MemoryEngine()


ENGINES: dict[str, Callable[[str, FileOptions], Engine]] = {
    "file": _open_file,
    "memory": _open_memory,
}
EXAMPLES = {
    "file": "file:///var/lib/penstock (a directory)",
    "memory": "memory:// (nothing outlives the broker)",
}
