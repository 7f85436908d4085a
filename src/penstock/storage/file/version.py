"""The file ``format`` of a data directory: one line that says which layout the directory has.

Whoever opens a directory, broker or reader, asks here first. To change the layout: count FORMAT up,
keep opening what is older, and say so under Upgrading in CHANGELOG.md.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.errors import ConfigError
from penstock.storage.file import layout

FORMAT = 1
LINE = "penstock data format {}\n"


# What a directory may hold that is to become a data directory.
_BEFORE_FORMAT = {layout.LOCK, layout.FORMAT + layout.NEW, "lost+found"}


def others_in(names: Collection[str]) -> list[str]:
    """What lies in a directory that is no data directory and must not become one; by its names."""
    return [] if layout.FORMAT in names else sorted({*names} - _BEFORE_FORMAT)


def format_line() -> bytes:
    return LINE.format(FORMAT).encode()


def check_format(root: str, path: str, stored: bytes) -> None:
    """Raises ConfigError when the directory is not one that this version can open."""
    number = stored.decode(errors="replace").split()[-1:]
    if not number or not number[0].isdigit():
        raise ConfigError(f"{path} does not say which format the directory has; it was not opened")
    if int(number[0]) > FORMAT:
        raise ConfigError(
            f"{root} has data format {number[0]}, this Penstock knows {FORMAT}: use a newer one. "
            "Nothing was changed"
        )
