"""IDENTIFY by nsqd's rules: what is in force, what is refused, the answer to the byte."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Settings
from penstock.doors.nsq.identify import IdentifyLimits, Negotiated, negotiate
from penstock.errors import PeerError

LIMITS = IdentifyLimits.from_settings(Settings(), tls=True, auth_required=False)


def asked(**values: object) -> Negotiated:
    body = json.dumps({"feature_negotiation": True, **values}).encode()
    return negotiate(body, LIMITS)


def refusal(body: bytes, limits: IdentifyLimits = LIMITS) -> str:
    with pytest.raises(PeerError) as raised:
        negotiate(body, limits)
    assert raised.value.fatal
    return str(raised.value)


def test_without_negotiation_the_answer_is_ok() -> None:
    assert negotiate(b"null", LIMITS).answer() == b"OK"
    plain = negotiate(b'{"snappy":true,"deflate":true,"tls_v1":true,"msg_timeout":5000}', LIMITS)
    assert plain.answer() == b"OK"
    # no upgrades, yet what is not one takes effect
    assert not (plain.snappy or plain.deflate or plain.tls)
    assert plain.msg_timeout_ms == 5000


def test_the_answer_to_the_byte() -> None:
    assert asked().answer() == (
        b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
        b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
        b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
        b'"output_buffer_timeout":250}'
    )


def test_defaults() -> None:
    expected = Negotiated(
        limits=LIMITS,
        client_id="",
        hostname="",
        user_agent="",
        feature_negotiation=False,
        heartbeat_interval_ms=30_000,
        output_buffer_size=16_384,
        output_buffer_timeout_ms=250,
        tls=False,
        deflate=False,
        deflate_level=6,
        snappy=False,
        sample_rate=0,
        msg_timeout_ms=60_000,
    )
    assert negotiate(b"{}", LIMITS) == expected


def test_settings_show() -> None:
    settings = Settings(
        max_rdy_count=5,
        msg_timeout_ms=30_000,
        max_msg_timeout_ms=90_000,
        max_deflate_level=3,
        output_buffer_timeout_ms=100,
        snappy=False,
        deflate=False,
    )
    limits = IdentifyLimits.from_settings(settings, tls=False, auth_required=True)
    body = b'{"feature_negotiation":true,"snappy":true,"deflate":true,"tls_v1":true}'
    assert json.loads(negotiate(body, limits).answer()) == {
        "max_rdy_count": 5,
        "version": "1.3.0",
        "max_msg_timeout": 90_000,
        "msg_timeout": 30_000,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": 3,
        "max_deflate_level": 3,
        "snappy": False,
        "sample_rate": 0,
        "auth_required": True,
        "output_buffer_size": 16_384,
        "output_buffer_timeout": 100,
    }


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({"client_id": "c"}, "client_id", "c"),
        ({"hostname": "h"}, "hostname", "h"),
        ({"user_agent": "u/1 ☃"}, "user_agent", "u/1 ☃"),
        ({"heartbeat_interval": -1}, "heartbeat_interval_ms", 0),
        ({"heartbeat_interval": 0}, "heartbeat_interval_ms", 30_000),
        ({"heartbeat_interval": 1000}, "heartbeat_interval_ms", 1000),
        ({"heartbeat_interval": 60_000}, "heartbeat_interval_ms", 60_000),
        ({"output_buffer_timeout": -1}, "output_buffer_timeout_ms", 0),
        ({"output_buffer_timeout": 25}, "output_buffer_timeout_ms", 25),
        ({"output_buffer_timeout": 30_000}, "output_buffer_timeout_ms", 30_000),
        ({"output_buffer_size": -1}, "output_buffer_size", 1),
        ({"output_buffer_size": -1}, "output_buffer_timeout_ms", 0),
        ({"output_buffer_size": -1, "output_buffer_timeout": 500}, "output_buffer_timeout_ms", 0),
        ({"output_buffer_size": 64}, "output_buffer_size", 64),
        ({"output_buffer_size": 65_536}, "output_buffer_size", 65_536),
        ({"sample_rate": 99}, "sample_rate", 99),
        ({"msg_timeout": 1000}, "msg_timeout_ms", 1000),
        ({"msg_timeout": 900_000}, "msg_timeout_ms", 900_000),
        ({"tls_v1": True}, "tls", True),
        ({"snappy": True}, "snappy", True),
        ({"deflate": True}, "deflate", True),
        ({"deflate": True, "deflate_level": 2}, "deflate_level", 2),
        ({"deflate": True, "deflate_level": 9}, "deflate_level", 6),
        ({"deflate": True, "deflate_level": -3}, "deflate_level", 6),
        ({"deflate_level": 2}, "deflate_level", 6),
        ({"priority": 3, "tags": ["a"], "short_id": "s"}, "client_id", ""),
    ],
    ids=str,
)
def test_what_is_in_force(values: dict[str, object], field: str, expected: object) -> None:
    assert getattr(asked(**values), field) == expected


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"heartbeat_interval": 999}, "heartbeat interval (999)"),
        ({"heartbeat_interval": 60_001}, "heartbeat interval (60001)"),
        ({"heartbeat_interval": -2}, "heartbeat interval (-2)"),
        ({"output_buffer_timeout": 24}, "output buffer timeout (24)"),
        ({"output_buffer_timeout": 30_001}, "output buffer timeout (30001)"),
        ({"output_buffer_timeout": -2}, "output buffer timeout (-2)"),
        ({"output_buffer_size": 63}, "output buffer size (63)"),
        ({"output_buffer_size": 65_537}, "output buffer size (65537)"),
        ({"output_buffer_size": -2}, "output buffer size (-2)"),
        ({"sample_rate": -1}, "sample rate (-1)"),
        ({"sample_rate": 100}, "sample rate (100)"),
        ({"msg_timeout": -1}, "msg timeout (-1)"),
        ({"msg_timeout": 999}, "msg timeout (999)"),
        ({"msg_timeout": 900_001}, "msg timeout (900001)"),
        # the first of several, in nsqd's order
        (
            {
                "msg_timeout": 1,
                "sample_rate": 100,
                "output_buffer_size": 1,
                "heartbeat_interval": 1,
            },
            "heartbeat interval (1)",
        ),
        ({"output_buffer_size": 1, "output_buffer_timeout": 1}, "output buffer timeout (1)"),
        ({"msg_timeout": 1, "sample_rate": 100}, "sample rate (100)"),
    ],
    ids=str,
)
def test_values_that_are_refused(values: dict[str, object], reason: str) -> None:
    assert refusal(json.dumps(values).encode()) == f"E_BAD_BODY IDENTIFY {reason} is invalid"


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"msg_timeout":1e3}', b'{"sample_rate":2147483648}', b'{"snappy":1}']
)
def test_json_that_is_refused(body: bytes) -> None:
    assert refusal(body) == "E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_two_compressions_at_once_are_refused() -> None:
    body = b'{"feature_negotiation":true,"snappy":true,"deflate":true}'
    expected = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert refusal(body) == expected
    assert negotiate(body, replace(LIMITS, snappy=False)).deflate
    assert negotiate(body, replace(LIMITS, deflate=False)).snappy
    # a wrong value comes first
    assert "sample rate" in refusal(body[:-1] + b',"sample_rate":100}')


def test_what_a_second_identify_leaves_out_stays() -> None:
    first = asked(
        heartbeat_interval=5000,
        output_buffer_size=100,
        output_buffer_timeout=300,
        msg_timeout=6000,
        sample_rate=7,
        client_id="c",
        snappy=True,
    )
    second = negotiate(b'{"msg_timeout":0,"output_buffer_size":null}', LIMITS, first)
    assert second.heartbeat_interval_ms == 5000
    assert second.output_buffer_size == 100
    assert second.output_buffer_timeout_ms == 300
    assert second.msg_timeout_ms == 6000
    # these nsqd sets anew each time
    assert (second.sample_rate, second.client_id, second.snappy) == (0, "", False)


NUMBERS = st.integers(-3, 100_000) | st.integers(-(2**70), 2**70)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "heartbeat_interval",
                "output_buffer_size",
                "output_buffer_timeout",
                "msg_timeout",
                "sample_rate",
                "deflate_level",
                "deflate",
                "snappy",
                "tls_v1",
            ]
        ),
        NUMBERS | st.booleans() | st.none(),
    )
)
def test_whatever_is_asked_what_is_in_force_is_in_bounds(values: dict[str, object]) -> None:
    try:
        got = asked(**values)
    except PeerError:
        return
    assert got.heartbeat_interval_ms == 0 or 1000 <= got.heartbeat_interval_ms <= 60_000
    assert got.output_buffer_size == 1 or 64 <= got.output_buffer_size <= 65_536
    assert got.output_buffer_timeout_ms == 0 or 25 <= got.output_buffer_timeout_ms <= 30_000
    assert 0 <= got.sample_rate <= 99
    assert 1000 <= got.msg_timeout_ms <= 900_000
    assert 1 <= got.deflate_level <= 6
    assert not (got.deflate and got.snappy)
