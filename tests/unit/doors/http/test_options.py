"""Settings as /config shows them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.config import SETTINGS, Address, LogLevel, Settings
from penstock.doors.http.options import show

SETTINGS_SHOWN = replace(
    Settings(),
    lookupd_tcp_addresses=(Address("a", 1), Address("b", 2)),
    sync_interval_ms=1500,
    log_level=LogLevel.WARN,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tcp_address", b"127.0.0.1:4150"),
        ("https_address", b""),
        ("max_msg_size", b"1048576"),
        ("deflate", b"true"),
        ("msg_timeout", b"60000000000"),
        ("sync_timeout", b"1500000000"),
        ("log_level", b"3"),
        ("durability", b"synced"),
        ("nsqlookupd_tcp_addresses", b'["a:1", "b:2"]'),
        ("max_req_timeout", b""),
    ],
)
def test_a_setting_is_shown_as_nsqd_shows_it(name: str, value: bytes) -> None:
    shown = show(SETTINGS_SHOWN, name)
    assert shown is not None and shown[0] == value


def test_each_setting_is_shown() -> None:
    for name in SETTINGS:
        shown = show(Settings(), name)
        assert shown is not None
        if shown[1].startswith("application/json"):
            json.loads(shown[0])


def test_what_there_is_not_is_not_shown() -> None:
    assert show(Settings(), "nonsense") is None
