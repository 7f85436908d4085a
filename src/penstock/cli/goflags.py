"""Command lines as Go's flag package reads them, which is what nsqd's users write.

`-x` and `--x` are the same; a value comes behind `=` or as the next argument; a boolean takes one
only behind `=`. Reading ends at the first argument that is no flag, and at `--`. This module knows
the rules, not the flags: the caller says which names there are and which are boolean.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import ConfigError


class Parsed(NamedTuple):
    """What was given: values by flag in order (a flag may be repeated), and what was not read."""

    values: dict[str, list[str]]
    rest: list[str]


def parse(argv: Sequence[str], is_boolean: Callable[[str], bool | None]) -> Parsed:
    """Split arguments; `is_boolean` answers None for a name that does not exist.

    ConfigError is Go's own sentence, which scripts may know.
    """
    values: dict[str, list[str]] = {}
    at = 0
    while at < len(argv):
        argument = argv[at]
        if len(argument) < 2 or argument[0] != "-":
            break
        at += 1
        if argument == "--":
            break
        name, separator, value = argument[2 if argument[1] == "-" else 1 :].partition("=")
        if not name or name[0] == "-":
            raise ConfigError(f"bad flag syntax: {argument}")
        boolean = is_boolean(name)
        if boolean is None:
            raise ConfigError(f"flag provided but not defined: -{name}")
        if boolean:
            value = value if separator else "true"
        elif not separator:
            if at == len(argv):
                raise ConfigError(f"flag needs an argument: -{name}")
            value = argv[at]
            at += 1
        values.setdefault(name, []).append(value)
    return Parsed(values, list(argv[at:]))
