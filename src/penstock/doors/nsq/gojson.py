"""JSON as Go's encoding/json reads and writes it, because NSQ's clients and auth servers were
written against that.

Reading: field names count in any case, the last of several wins, ``null`` leaves a field as it was,
a name that nobody knows is skipped, a value of another kind (a float or a text where a whole number
belongs, a number out of range) is an error. Bytes that are not UTF-8 become U+FFFD.
Writing: ``<``, ``>`` and ``&`` are escaped, letters outside ASCII are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum

Fields = Mapping[str, object]


class Kind(Enum):
    """What a field may hold."""

    TEXT = "text"
    FLAG = "flag"
    INT32 = "int32"
    INT64 = "int64"
    TEXTS = "texts"
    OBJECTS = "objects"  # a list of tuples of pairs, each for ``fields``


class NotJson(ValueError):
    """Not JSON, or not of the shape that was asked for."""


_INT_END = {Kind.INT32: 1 << 31, Kind.INT64: 1 << 63}
# what a number of more digits stands for: out of every range
_HUGE = 1 << 64
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(data: bytes, kinds: Mapping[str, Kind]) -> dict[str, object]:
    """The fields of the object in ``data`` that were given; ``null`` gives none."""
    try:
        # objects become tuples of pairs: a name may come twice, and lists stay lists
        value = json.loads(
            data.decode("utf-8", "replace"),
            object_pairs_hook=tuple,
            parse_int=_whole_number,
            parse_constant=_refused,
        )
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error
    return {} if value is None else fields(value, kinds)


def fields(value: object, kinds: Mapping[str, Kind]) -> dict[str, object]:
    """The same for an object inside another."""
    if not isinstance(value, tuple):
        raise NotJson("an object was expected")
    found: dict[str, object] = {}
    for name, given in value:
        # of the letters outside ASCII, Go folds the long s and the Kelvin sign (which lower() does)
        field = name.replace("\u017f", "s").lower()
        kind = kinds.get(field)
        if kind is not None and given is not None:
            found[field] = _of_kind(kind, given, field)
    return found


def _of_kind(kind: Kind, given: object, field: str) -> object:
    if kind is Kind.TEXT and isinstance(given, str):
        return _LONE_SURROGATE.sub("\ufffd", given)
    if kind is Kind.FLAG and isinstance(given, bool):
        return given
    if kind in _INT_END and type(given) is int and -_INT_END[kind] <= given < _INT_END[kind]:
        return given
    if kind is Kind.TEXTS and isinstance(given, list):
        return [_of_kind(Kind.TEXT, one, field) for one in given]
    if kind is Kind.OBJECTS and isinstance(given, list):
        return given
    raise NotJson(f"{field} is of another kind")


def _whole_number(digits: str) -> int:
    return int(digits) if len(digits) <= 20 else _HUGE


def _refused(word: str) -> object:
    raise NotJson(f"{word} is no number")


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TO_ESCAPE = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')


def encode(values: Fields) -> bytes:
    """An object of texts, whole numbers and flags, in their order, without spaces."""
    return f"{{{','.join(f'{_text(name)}:{_value(it)}' for name, it in values.items())}}}".encode()


def _value(value: object) -> str:
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    clean = _LONE_SURROGATE.sub("\ufffd", text)
    return f'"{_TO_ESCAPE.sub(_escaped, clean)}"'


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04x}"
