"""Any body of IDENTIFY comes to values within the limits and an answer in JSON, or to PeerError."""

import json

from penstock import limits as nsqd
from penstock.doors.nsq.identify import IdentifyLimits, Negotiated, negotiate
from penstock.errors import PeerError

LIMITS = IdentifyLimits(
    tls=True,
    auth_required=False,
    deflate=True,
    deflate_level_max=6,
    snappy=True,
    ready_count_max=2500,
    msg_timeout_ms=60_000,
    msg_timeout_ms_max=900_000,
    heartbeat_interval_ms_max=60_000,
    output_buffer_size_max=65_536,
    output_buffer_timeout_ms=250,
    output_buffer_timeout_ms_min=25,
    output_buffer_timeout_ms_max=30_000,
)
CODES = {"E_BAD_BODY", "E_IDENTIFY_FAILED"}


def seeds() -> list[bytes]:
    asked: list[dict[str, object]] = [
        {"client_id": "c", "hostname": "h", "user_agent": "u", "feature_negotiation": True},
        {"feature_negotiation": True, "tls_v1": True, "deflate": True, "deflate_level": 9},
        {"heartbeat_interval": -1, "output_buffer_size": -1, "output_buffer_timeout": 30},
        {"FEATURE_negotiation": True, "snappy": True, "sample_rate": 42, "msg_timeout": 1000},
    ]
    return [
        *[json.dumps(one).encode() for one in asked],
        b"null",
        b"[" * 2000,
        b'{"sample_rate": 9e9, "msg_timeout": 123456789012345678901234567890}',
        b'{"client_id": "\\ud800\\u0000", "hostname": null, "x": [{"a": {}}]}',
    ]


def check(data: bytes) -> None:
    first = _negotiated(data, None)
    if first is not None:
        again = _negotiated(data, first)
        assert again is not None and again.answer() == first.answer(), "asking twice changes it"


def _check_refusal(error: PeerError) -> None:
    assert error.fatal and error.code in CODES and len(str(error)) < 200


def _negotiated(body: bytes, before: Negotiated | None) -> Negotiated | None:
    try:
        found = negotiate(body, LIMITS, before)
    except PeerError as error:
        _check_refusal(error)
        return None
    assert 0 <= found.heartbeat_interval_ms <= LIMITS.heartbeat_interval_ms_max
    assert 0 <= found.output_buffer_size <= LIMITS.output_buffer_size_max
    assert 0 <= found.output_buffer_timeout_ms <= LIMITS.output_buffer_timeout_ms_max
    assert nsqd.MSG_TIMEOUT_MIN_MS <= found.msg_timeout_ms <= LIMITS.msg_timeout_ms_max
    assert 0 <= found.sample_rate <= 99 and 1 <= found.deflate_level <= 6
    assert not (found.deflate and found.snappy)
    answer = found.answer()
    assert answer == b"OK" or isinstance(json.loads(answer), dict)
    for text in (found.client_id, found.hostname, found.user_agent):
        assert text.encode().decode() == text
    return found
