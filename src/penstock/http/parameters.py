"""Query parameters as Go's net/url reads them. Pure.

A query with a broken escape or a semicolon is refused as a whole; of several values the first one
counts.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from penstock.http.answers import Refused
from penstock.names import is_valid_name

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})").search
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+").fullmatch
_INT64_END = 1 << 63
# what nsqd takes for yes and no; anything else means what the caller's default is
FLAGS = {"true": True, "1": True, "false": False, "0": False}

Parameters = dict[str, str]


def parse_query(query: bytes) -> Parameters:
    if b";" in query or _BROKEN_ESCAPE(query):
        raise Refused(400, "INVALID_REQUEST")
    found: Parameters = {}
    for pair in query.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            found.setdefault(_decoded(name), _decoded(value))
    return found


def _decoded(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")


def topic_of(parameters: Parameters) -> str:
    name = parameters.get("topic")
    if name is None:
        raise Refused(400, "MISSING_ARG_TOPIC")
    if not is_valid_name(name):
        raise Refused(400, "INVALID_TOPIC")
    return name


def topic_and_channel_of(parameters: Parameters) -> tuple[str, str]:
    names: list[str] = []
    for key in ("topic", "channel"):
        name = parameters.get(key)
        if name is None:
            raise Refused(400, f"MISSING_ARG_{key.upper()}")
        if not is_valid_name(name):
            raise Refused(400, f"INVALID_ARG_{key.upper()}")
        names.append(name)
    return names[0], names[1]


def defer_ms_of(parameters: Parameters, longest_ms: int) -> int:
    text = parameters.get("defer")
    if text is None:
        return 0
    if not _WHOLE_NUMBER(text) or len(text) > 20:
        raise Refused(400, "INVALID_DEFER")
    delay_ms = int(text)
    if not 0 <= delay_ms <= min(longest_ms, _INT64_END):
        raise Refused(400, "INVALID_DEFER")
    return delay_ms
