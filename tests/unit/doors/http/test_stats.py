"""Clients and durations as nsqd shows them."""

from __future__ import annotations

import json

import pytest

from penstock.broker.statistics import ClientStatistics
from penstock.doors.http.stats import go_duration, json_client, text_client

SECOND_NS = 1_000_000_000
CONSUMER = ClientStatistics(
    client_id="id",
    hostname="host",
    user_agent="agent/1",
    remote_address="10.0.0.1:5000",
    state=3,
    ready_count=5,
    in_flight_count=2,
    message_count=9,
    finish_count=7,
    requeue_count=1,
    connected_at_ns=100 * SECOND_NS,
    sample_rate=0,
    deflate=False,
    snappy=True,
    identity=None,
    identity_url="",
    published={},
    tls_version="TLS1.3",
    tls_cipher="TLS_AES_256_GCM_SHA384",
)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (SECOND_NS, "1s"),
        (61 * SECOND_NS, "1m1s"),
        (3_600 * SECOND_NS, "1h0m0s"),
        (47 * 60 * SECOND_NS + 49_229_582_656, "47m49.229582656s"),
    ],
)
def test_a_duration_is_gos(ns: int, text: str) -> None:
    assert go_duration(ns) == text


def test_a_consumer_is_told_of() -> None:
    assert text_client(CONSUMER, 190 * SECOND_NS) == (
        "[V2 host:5000 agent/1    ] state: 3 inflt: 2    rdy: 5    fin: 7        "
        "re-q: 1        msgs: 9        connected: 1m30s"
    )


def test_a_producer_is_told_of() -> None:
    producer = CONSUMER._replace(published={"a": 3, "b": 4})
    assert text_client(producer, 101 * SECOND_NS) == (
        "[V2 host:5000 agent/1    ] msgs: 7        topics: a=3,b=4 connected: 1s"
    )


def test_a_client_has_nsqds_fields() -> None:
    assert list(json.loads(json_client(CONSUMER))) == [
        *("client_id", "hostname", "version", "remote_address", "state", "ready_count"),
        *("in_flight_count", "message_count", "finish_count", "requeue_count", "connect_ts"),
        *("sample_rate", "deflate", "snappy", "user_agent", "tls", "tls_cipher_suite"),
        *("tls_version", "tls_negotiated_protocol", "tls_negotiated_protocol_is_mutual"),
    ]


def test_some_fields_are_there_only_when_there_is_something() -> None:
    shown = json.loads(
        json_client(CONSUMER._replace(published={"a": 3}, identity="me", identity_url="http://me"))
    )
    assert shown["pub_counts"] == [{"topic": "a", "count": 3}]
    assert (shown["authed"], shown["auth_identity"]) == (True, "me")
    assert shown["auth_identity_url"] == "http://me"
