"""/config/{opt}: one setting, under nsqd's name or Penstock's, as nsqd shows its own.

Numbers are numbers, durations nanoseconds, a level its number; texts are bare. The log's level and
the name servers can be changed while the broker runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from penstock.config import SETTINGS, LogLevel, Settings
from penstock.config.kinds import ADDRESSES, DURATION, DURATION_OR_NONE
from penstock.doors.http.request import Request
from penstock.http.answers import JSON, TEXT, Refused

# nsqd's names that are not Penstock's
_NSQDS = {
    "nsqlookupd_tcp_addresses": "lookupd_tcp_addresses",
    "max_bytes_per_file": "segment_bytes_max",
    "sync_every": "sync_messages_max",
    "sync_timeout": "sync_interval",
}
_MS_NS = 1_000_000


def option(request: Request) -> None:
    name = request.path.rpartition(b"/")[2].decode("latin-1")
    if request.method == b"PUT":
        _change(request, name)
    shown = show(request.door.settings, name)
    if shown is None:
        raise Refused(400, "INVALID_OPTION")
    request.answer(*shown)


def _change(request: Request, name: str) -> None:
    if not request.body:
        raise Refused(413, "INVALID_VALUE")
    change = _CHANGES.get(_NSQDS.get(name, name))
    if change is None:
        raise Refused(400, "INVALID_OPTION")
    try:
        change(request)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "INVALID_VALUE") from error


def _change_log_level(request: Request) -> None:
    level = LogLevel(request.body.decode("latin-1").lower())
    logging.getLogger().setLevel(level.standard)
    request.door.settings = replace(request.door.settings, log_level=level)


def _change_lookups(request: Request) -> None:
    given = json.loads(request.body)
    if not isinstance(given, list):
        raise ValueError("a list was expected")  # noqa: TRY004  each of these is a bad value
    addresses = ADDRESSES.parse(given)
    request.door.settings = replace(request.door.settings, lookupd_tcp_addresses=addresses)
    request.door.register_with(addresses)


_CHANGES: Mapping[str, Callable[[Request], None]] = {
    "log_level": _change_log_level,
    "lookupd_tcp_addresses": _change_lookups,
}


def show(settings: Settings, name: str) -> tuple[bytes, str] | None:
    """The value and its content type; None for a name that there is not."""
    setting = SETTINGS.get(_NSQDS.get(name, name))
    if setting is None:
        return None
    value: object = getattr(settings, setting.field)
    if isinstance(value, LogLevel):
        return str([*LogLevel].index(value) + 1).encode(), JSON
    if setting.kind in (DURATION, DURATION_OR_NONE) and isinstance(value, int):
        value *= _MS_NS
    if isinstance(value, tuple) and setting.kind.several:
        return json.dumps([str(one) for one in value]).encode(), JSON
    if isinstance(value, int):
        return json.dumps(value).encode(), JSON
    return ("" if value is None else str(value)).encode(), TEXT
