"""nsqd's HTTP API against a real broker: every route, every error, and both doors together."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.http import Site, refusal
from tests.support.wire import Closed, fin, identify, mpub, pub, rdy, sub

if TYPE_CHECKING:
    from tests.support.certificates import Certificates

pytestmark = pytest.mark.slow


@pytest.fixture
def site(shared_broker: Broker) -> Iterator[Site]:
    with Site(shared_broker.http_port) as site:
        yield site


# --- about ---------------------------------------------------------------------------------------


def test_ping(site: Site) -> None:
    reply = site.ask("GET", "/ping")
    assert reply[:2] == (200, b"OK")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in reply.headers


def test_info(site: Site, shared_broker: Broker) -> None:
    reply = site.ask("GET", "/info")
    info = json.loads(reply.body)
    assert reply.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert (info["tcp_port"], info["http_port"]) == (shared_broker.port, shared_broker.http_port)
    assert info["version"] == "1.3.0"
    assert list(info) == [
        *("version", "broadcast_address", "hostname", "http_port", "tcp_port", "start_time"),
        *("max_heartbeat_interval", "max_output_buffer_size", "max_output_buffer_timeout"),
        "max_deflate_level",
    ]


@pytest.mark.parametrize("path", ["/", "/nope", "/pub/", "/topic", "/config/", "/config/a/b"])
def test_an_unknown_path(site: Site, path: str) -> None:
    assert site.get(path) == refusal(404, "NOT_FOUND")


def test_a_slash_too_many_or_too_few(site: Site) -> None:
    reply = site.ask("GET", "/stats/?format=json&topic=%22%3E")
    assert (reply.status, reply.headers["location"]) == (301, "/stats?format=json&topic=%22%3E")
    assert reply.body.startswith(b'<a href="/stats?format=json&amp;topic=%22%3E">Moved')
    assert site.ask("GET", "/debug/pprof").headers["location"] == "/debug/pprof/"
    reply = site.ask("POST", "/pub/?topic=t", b"x")
    assert (reply.status, reply.headers["location"], reply.body) == (308, "/pub?topic=t", b"")


def test_a_method_that_a_path_does_not_have(site: Site) -> None:
    reply = site.ask("GET", "/pub")
    assert reply[:2] == refusal(405, "METHOD_NOT_ALLOWED")
    assert reply.headers["allow"] == "OPTIONS, POST"
    assert site.ask("HEAD", "/ping")[:2] == (405, b"")
    reply = site.ask("OPTIONS", "/ping")
    assert (reply.status, reply.headers["allow"]) == (200, "GET, OPTIONS")


# --- publishing: HTTP to TCP and back ------------------------------------------------------------


def test_what_is_published_over_http_is_consumed_over_tcp(
    site: Site, shared_broker: Broker, topic: str, connect: Connect
) -> None:
    assert site.post(f"/pub?topic={topic}", b"one") == (200, b"OK")
    assert site.post(f"/mpub?topic={topic}", b"two\n\nthree\n") == (200, b"OK")
    body = struct.pack(">ii", 2, 4) + b"four" + struct.pack(">i", 3) + b"5\n5"
    for spelling in ("true", "1", "yes"):
        assert site.post(f"/mpub?topic={topic}&binary={spelling}", body) == (200, b"OK")
    peer = connect(shared_broker.port)
    peer.send(sub(topic, "c"), rdy(100))
    peer.expect_ok()
    got = [one.body for one in peer.expect_messages(9)]
    assert got == [b"one", b"two", b"three", *[b"four", b"5\n5"] * 3]


def test_what_is_published_over_tcp_is_seen_over_http(
    site: Site, shared_broker: Broker, topic: str, connect: Connect
) -> None:
    peer = connect(shared_broker.port)
    peer.send(pub(topic, b"abc"), mpub(topic, [b"d", b"e"]))
    peer.expect_ok()
    peer.expect_ok()
    (told,) = site.stats(topic=topic)["topics"]
    assert (told["depth"], told["message_count"], told["message_bytes"]) == (3, 3, 5)


def test_a_deferred_message_comes_when_it_is_due(
    site: Site, shared_broker: Broker, topic: str, connect: Connect
) -> None:
    peer = connect(shared_broker.port)
    peer.send(sub(topic, "c"), rdy(1))
    peer.expect_ok()
    began = time.time_ns()
    assert site.post(f"/pub?topic={topic}&defer=1500", b"later") == (200, b"OK")
    assert site.stats(topic=topic)["topics"][0]["channels"][0]["deferred_count"] == 1
    assert peer.expect_message().body == b"later"
    assert time.time_ns() - began >= 1_500_000_000


def test_an_mpub_of_nothing_makes_the_topic(site: Site, topic: str) -> None:
    assert site.post(f"/mpub?topic={topic}", b"\n\n") == (200, b"OK")
    assert site.stats(topic=topic)["topics"][0]["depth"] == 0


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("?topic=", b"x", 400, "INVALID_TOPIC"),
        ("?topic=%24", b"x", 400, "INVALID_TOPIC"),
        ("?topic=%2", b"x", 400, "INVALID_REQUEST"),
        ("?topic=t", b"", 400, "MSG_EMPTY"),
        ("?topic=t&defer=x", b"x", 400, "INVALID_DEFER"),
        ("?topic=t&defer=-1", b"x", 400, "INVALID_DEFER"),
        ("?topic=t&defer=3600001", b"x", 400, "INVALID_DEFER"),
        ("?topic=t", b"x" * ((1 << 20) + 1), 413, "MSG_TOO_BIG"),
    ],
)
def test_a_pub_that_is_refused(
    shared_broker: Broker, query: str, body: bytes, status: int, code: str
) -> None:
    with Site(shared_broker.http_port) as site:
        assert site.post(f"/pub{query}", body) == refusal(status, code)


@pytest.mark.parametrize(
    ("query", "body", "status", "code"),
    [
        ("", b"x", 400, "MISSING_ARG_TOPIC"),
        ("?topic=%24", b"x", 400, "INVALID_TOPIC"),
        ("?topic=t", b"x" * ((1 << 20) + 1), 413, "MSG_TOO_BIG"),
        ("?topic=t", b"x\n" * ((5 << 19) + 1), 413, "BODY_TOO_BIG"),
        ("?topic=t&binary=true", b"\0\0", 413, "BAD_BODY"),
        ("?topic=t&binary=true", struct.pack(">i", 0), 413, "BAD_BODY"),
        ("?topic=t&binary=true", struct.pack(">ii", 2, 1) + b"x", 413, "BAD_MESSAGE"),
        ("?topic=t&binary=true", struct.pack(">ii", 1, 0), 413, "BAD_MESSAGE"),
        ("?topic=t&binary=true", struct.pack(">ii", 1, 1) + b"xx", 413, "BAD_BODY"),
    ],
)
def test_an_mpub_that_is_refused(
    shared_broker: Broker, query: str, body: bytes, status: int, code: str
) -> None:
    with Site(shared_broker.http_port) as site:
        assert site.post(f"/mpub{query}", body) == refusal(status, code)


def test_the_largest_message_is_taken(site: Site, topic: str) -> None:
    assert site.post(f"/pub?topic={topic}", b"x" * (1 << 20)) == (200, b"OK")
    assert site.stats(topic=topic)["topics"][0]["message_bytes"] == 1 << 20


# --- topics and channels -------------------------------------------------------------------------


def test_the_life_of_a_topic_and_its_channel(site: Site, topic: str) -> None:
    named, both = f"?topic={topic}", f"?topic={topic}&channel=c"
    site.done(f"/topic/create{named}")
    site.done(f"/topic/create{named}")
    site.done(f"/channel/create{both}")
    for what, where in (("topic", named), ("channel", both)):
        for act, paused in (("pause", True), ("unpause", False)):
            site.done(f"/{what}/{act}{where}")
            (told,) = site.stats(topic=topic)["topics"]
            place = told if what == "topic" else told["channels"][0]
            assert place["paused"] is paused
    site.post(f"/pub{named}", b"x")
    assert site.stats(topic=topic)["topics"][0]["channels"][0]["depth"] == 1
    site.done(f"/channel/empty{both}")
    assert site.stats(topic=topic)["topics"][0]["channels"][0]["depth"] == 0
    site.done(f"/channel/delete{both}")
    site.post(f"/pub{named}", b"x")
    assert site.stats(topic=topic)["topics"][0]["depth"] == 1
    site.done(f"/topic/empty{named}")
    assert site.stats(topic=topic)["topics"][0]["depth"] == 0
    site.done(f"/topic/delete{named}")
    assert site.stats(topic=topic)["topics"] is None
    site.done(f"/topic/create{named}")
    assert site.stats(topic=topic)["topics"][0]["channels"] == []


ACTS = ("create", "delete", "empty", "pause", "unpause")


@pytest.mark.parametrize("act", ACTS)
def test_a_topic_act_that_is_refused(site: Site, act: str) -> None:
    path = f"/topic/{act}"
    invalid = (
        refusal(400, "INVALID_TOPIC")
        if act in ("create", "empty")
        else refusal(404, "TOPIC_NOT_FOUND")
    )
    assert site.post(path) == refusal(400, "MISSING_ARG_TOPIC")
    assert site.post(f"{path}?topic=%24") == invalid
    assert site.post(f"{path}?topic=%2") == refusal(400, "INVALID_REQUEST")
    if act != "create":
        assert site.post(f"{path}?topic=not_there") == refusal(404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize("act", ACTS)
def test_a_channel_act_that_is_refused(site: Site, act: str, topic: str) -> None:
    path = f"/channel/{act}"
    site.done(f"/topic/create?topic={topic}")
    assert site.post(path) == refusal(400, "MISSING_ARG_TOPIC")
    assert site.post(f"{path}?topic=%24") == refusal(400, "INVALID_ARG_TOPIC")
    assert site.post(f"{path}?topic=t") == refusal(400, "MISSING_ARG_CHANNEL")
    assert site.post(f"{path}?topic=t&channel=%24") == refusal(400, "INVALID_ARG_CHANNEL")
    there_is_no_topic = refusal(404, "TOPIC_NOT_FOUND")
    assert site.post(f"{path}?topic=not_there&channel=c") == there_is_no_topic
    if act != "create":
        there_is_no_channel = refusal(404, "CHANNEL_NOT_FOUND")
        assert site.post(f"{path}?topic={topic}&channel=not_there") == there_is_no_channel


def test_a_paused_channel_delivers_nothing_until_it_goes_on(
    site: Site, shared_broker: Broker, topic: str, connect: Connect
) -> None:
    peer = connect(shared_broker.port)
    peer.send(sub(topic, "c"), rdy(1))
    peer.expect_ok()
    site.done(f"/channel/pause?topic={topic}&channel=c")
    site.post(f"/pub?topic={topic}", b"x")
    assert site.stats(topic=topic)["topics"][0]["channels"][0]["depth"] == 1
    site.done(f"/channel/unpause?topic={topic}&channel=c")
    peer.send(fin(peer.expect_message().id))


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_deleting_closes_the_consumers(
    site: Site, shared_broker: Broker, topic: str, connect: Connect, what: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(sub(topic, "c"))
    peer.expect_ok()
    site.done(f"/{what}/delete?topic={topic}&channel=c")
    with pytest.raises(Closed):
        peer.expect_message()


def test_a_deleted_channel_can_be_made_anew(site: Site, topic: str) -> None:
    both = f"?topic={topic}&channel=c"
    site.done(f"/topic/create?topic={topic}")
    for _ in range(20):
        site.done(f"/channel/create{both}")
        site.post(f"/pub?topic={topic}", b"x")
        site.done(f"/channel/delete{both}")
        site.done(f"/topic/empty?topic={topic}")


def test_an_ephemeral_topic_goes_with_its_last_channel(site: Site, topic: str) -> None:
    name = f"{topic[:40]}%23ephemeral"
    site.done(f"/topic/create?topic={name}")
    site.done(f"/channel/create?topic={name}&channel=c")
    site.done(f"/channel/delete?topic={name}&channel=c")
    assert site.post(f"/topic/delete?topic={name}") == refusal(404, "TOPIC_NOT_FOUND")


# --- stats ---------------------------------------------------------------------------------------

TOPIC_FIELDS = [
    *("topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes"),
    *("paused", "e2e_processing_latency"),
]
CHANNEL_FIELDS = [
    *("channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("message_count", "requeue_count", "timeout_count", "client_count", "clients", "paused"),
    "e2e_processing_latency",
]


def test_stats_have_nsqds_fields(
    site: Site, shared_broker: Broker, topic: str, connect: Connect
) -> None:
    consumer = connect(shared_broker.port)
    consumer.send(identify(client_id="me", hostname="here", user_agent="test/1"))
    consumer.expect_ok()
    consumer.send(sub(topic, "c"), rdy(1))
    consumer.expect_ok()
    publisher = connect(shared_broker.port)
    publisher.send(pub(topic, b"x"), pub(topic, b"y"))
    for _ in range(2):
        publisher.expect_ok()
    message = consumer.expect_message()
    told = site.stats(topic=topic)
    assert list(told) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (told["version"], told["health"]) == ("1.3.0", "OK")
    (shown,) = told["topics"]
    assert list(shown) == TOPIC_FIELDS
    assert shown["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    (channel,) = shown["channels"]
    assert list(channel) == CHANNEL_FIELDS
    assert (channel["depth"], channel["in_flight_count"], channel["client_count"]) == (1, 1, 1)
    (client,) = channel["clients"]
    assert (client["client_id"], client["hostname"], client["state"]) == ("me", "here", 3)
    (producer,) = told["producers"]
    assert producer["pub_counts"] == [{"topic": topic, "count": 2}]
    consumer.send(fin(message.id))


def test_stats_can_leave_things_out(site: Site, topic: str) -> None:
    for name in ("a", "b"):
        site.done(f"/topic/create?topic={topic}")
        site.done(f"/channel/create?topic={topic}&channel={name}")
    told = site.stats(topic=topic, include_mem="false", include_clients="0")
    assert "memory" not in told
    assert told["producers"] is None
    assert [one["clients"] for one in told["topics"][0]["channels"]] == [None, None]
    told = site.stats(topic=topic, channel="b")
    assert [one["channel_name"] for one in told["topics"][0]["channels"]] == ["b"]
    assert site.stats(topic=topic, channel="not_there")["topics"] == []
    assert site.stats(topic="not_there")["topics"] is None
    assert topic in [one["topic_name"] for one in site.stats(channel="b")["topics"]]


def test_stats_as_text(site: Site, topic: str) -> None:
    site.done(f"/topic/create?topic={topic}")
    site.done(f"/channel/create?topic={topic}&channel=c")
    site.done(f"/channel/pause?topic={topic}&channel=c")
    text = site.get(f"/stats?topic={topic}")[1].decode()
    assert text.startswith("nsqd v1.3.0 (built w/")
    assert "\nHealth: OK\n" in text and "\nMemory:\n" in text and "\nProducers: None\n" in text
    assert (
        f"\nTopics:\n   [{topic:<15}] depth: 0     be-depth: 0     msgs: 0        e2e%: \n" in text
    )
    assert (
        f"   *P [{'c':<25}] depth: 0     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 0        e2e%: \n"
    ) in text
    assert "\nTopics: None\n" in site.get("/stats?topic=not_there")[1].decode()


def test_topics_of_an_earlier_run_are_told_of_and_stay_closed(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Site(broker.http_port) as site:
        site.post("/pub?topic=old", b"x")
        site.done("/channel/create?topic=old&channel=c")
        site.done("/channel/pause?topic=old&channel=c")
    broker.restart()
    with Site(broker.http_port) as site:
        for _ in range(2):
            (told,) = site.stats(topic="old")["topics"]
            assert told["depths_known"] is False
            assert [one["paused"] for one in told["channels"]] == [True]
        site.done("/channel/unpause?topic=old&channel=c")
        (told,) = site.stats(topic="old")["topics"]
        assert "depths_known" not in told
        assert told["channels"][0]["depth"] == 1


# --- settings and debugging ----------------------------------------------------------------------


def test_config(start_broker: StartBroker) -> None:
    broker = start_broker("--max-msg-size=1000")
    with Site(broker.http_port) as site:
        assert site.get("/config/max_msg_size") == (200, b"1000")
        assert site.get("/config/nonsense") == refusal(400, "INVALID_OPTION")
        assert site.ask("PUT", "/config/log_level", b"")[:2] == refusal(413, "INVALID_VALUE")
        too_big = site.ask("PUT", "/config/log_level", b"x" * 1001)
        assert too_big[:2] == refusal(413, "INVALID_VALUE")
        assert site.ask("PUT", "/config/log_level", b"loud")[:2] == refusal(400, "INVALID_VALUE")
        assert site.ask("PUT", "/config/max_msg_size", b"1")[:2] == refusal(400, "INVALID_OPTION")
        assert site.ask("PUT", "/config/log_level", b"DEBUG")[:2] == (200, b"1")
        assert site.get("/config/log_level") == (200, b"1")


def test_debugging(site: Site) -> None:
    assert b"cmdline" in site.get("/debug/pprof/")[1]
    assert b"penstock" in site.get("/debug/pprof/cmdline")[1]
    assert b"MainThread" in site.get("/debug/pprof/goroutine")[1]
    assert b"heap_objects" in site.get("/debug/pprof/heap")[1]
    assert site.post("/debug/freememory") == (200, b"")
    assert site.get("/debug/pprof/profile?seconds=0") == refusal(400, "INVALID_SECONDS")
    reply = site.ask("GET", "/debug/pprof/profile?seconds=1")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/octet-stream")


# --- TLS -----------------------------------------------------------------------------------------


def test_https(start_broker: StartBroker, certificates: Certificates) -> None:
    broker = start_broker(
        "--https-address=127.0.0.1:0",
        *certificates.broker_flags,
        "--tls-required=true",
    )
    with Site(broker.https_port, certificates.context()) as site:
        assert site.get("/ping") == (200, b"OK")
        assert site.post("/pub?topic=t", b"x" * 100_000) == (200, b"OK")
    with Site(broker.http_port) as site:
        reply = site.ask("GET", "/ping")
        assert (reply.status, reply.body) == (
            403,
            b'{"message": "TLS_REQUIRED", "https_port": %d}' % broker.https_port,
        )


def test_tcp_https_leaves_plain_http_open(
    start_broker: StartBroker, certificates: Certificates
) -> None:
    broker = start_broker(*certificates.broker_flags, "--tls-required=tcp-https")
    with Site(broker.http_port) as site:
        assert site.get("/ping") == (200, b"OK")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_clients_certificates_are_asked_for(
    start_broker: StartBroker, certificates: Certificates, policy: str
) -> None:
    broker = start_broker(
        "--https-address=127.0.0.1:0",
        *certificates.broker_flags,
        f"--tls-root-ca-file={certificates.authority}",
        f"--tls-client-auth-policy={policy}",
    )
    with Site(broker.https_port, certificates.client_context) as site:
        assert site.get("/ping") == (200, b"OK")
    with Site(broker.https_port, certificates.context()) as site, pytest.raises(OSError):
        site.get("/ping")
    with Site(broker.https_port, certificates.stranger_context) as site:
        if policy == "require":
            assert site.get("/ping") == (200, b"OK")
        else:
            with pytest.raises(OSError):
                site.get("/ping")
