"""Clients and durations as nsqd shows them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.broker.statistics import ClientStatistics
from penstock.doors.http.stats import SLICE_NS, Slices, go_duration, json_client, text_client
from penstock.testing import FakeClock
from tests.unit.doors.http.rig import HttpRig, get
from tests.unit.runtime.rig import HandLoop

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


def stats_of(rig: HttpRig, query: str) -> dict[str, Any]:
    answer = rig.ask(get(f"/stats?format=json&{query}"))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def test_a_topic_that_was_closed_shows_what_it_had() -> None:
    rig = HttpRig()
    topic = rig.topic("t")
    for name in ("busy", "idle"):
        topic.channel(name, rig.clock.now_ns())
    rig.publish(topic, b"x", b"y")
    rig.settle()
    topic.empty_channel("idle", rig.clock.now_ns())
    rig.settle()
    rig.host.topics.unload(topic)
    rig.settle()
    for _ in range(2):
        (told,) = stats_of(rig, "topic=t")["topics"]
        assert "depths_known" not in told
        depths = {one["channel_name"]: one["depth"] for one in told["channels"]}
        assert depths == {"busy": 2, "idle": 0}
    assert "t" not in rig.host.broker.topics


def test_sleepers_below_an_empty_mark_are_not_the_channels() -> None:
    rig = HttpRig()
    topic = rig.topic("t")
    topic.channel("c", rig.clock.now_ns())
    due_ns = rig.clock.now_ns() + 60 * SECOND_NS
    for count, emptied in ((3, False), (3, True), (2, False)):
        for _ in range(0 if emptied else count):
            topic.publish_delayed([b"x"], 1, due_ns, rig.clock.now_ns())
        if emptied:
            topic.empty_channel("c", rig.clock.now_ns())
        rig.host.wake()
        rig.settle()
    topic.channel("d", rig.clock.now_ns())
    (told,) = stats_of(rig, "topic=t")["topics"]
    assert [one["deferred_count"] for one in told["channels"]] == [2, 5]


def test_a_long_answer_lets_others_have_their_turn() -> None:
    loop = HandLoop(FakeClock())
    told: list[list[bytes]] = []

    def pieces() -> Iterator[str]:
        for number in range(3):
            time.sleep(2 * SLICE_NS / SECOND_NS)  # so that each piece is a slice
            yield str(number)

    Slices(cast("asyncio.AbstractEventLoop", loop), pieces(), told.append).go_on()
    turns = 0
    while not told:
        loop.turn()
        turns += 1
    assert (told, turns) == ([[b"0", b"1", b"2", b""]], 3)
