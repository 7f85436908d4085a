"""What a real broker tells about itself to what watches it."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.http import Site
from tests.support.wire import fin, pub, rdy, req, sub

pytestmark = pytest.mark.slow

_SAMPLE = re.compile(r'^([a-z_]+)(\{(?:[a-z]+="[^"\\]*",?)+\})? ([0-9.e+-]+)$')


def metrics(site: Site) -> dict[str, float]:
    """Values by metric and labels; every line is as the format wants it."""
    reply = site.ask("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in reply.body.decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, "its samples stand together"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            sample = _SAMPLE.match(line)
            assert sample, line
            name, labels, value = sample.groups()
            last = [*kinds][-1]
            assert name == last or (kinds[last] == "histogram" and name.startswith(last))
            found[name + (labels or "")] = float(value)
    return found


def test_what_happens_to_messages_is_counted(
    shared_broker: Broker, topic: str, connect: Connect
) -> None:
    peer = connect(shared_broker.port)
    peer.send(sub(topic, "c"))
    peer.expect_ok()
    peer.send(*[pub(topic, b"12345") for _ in range(4)])
    for _ in range(4):
        peer.expect_ok()
    peer.send(rdy(3))
    taken = peer.expect_messages(3)
    peer.send(rdy(0), fin(taken[0].id), req(taken[1].id, 60_000))
    with Site(shared_broker.http_port) as site:
        peer.send(pub(topic, b"the answer says that all before it was carried out"))
        peer.expect_ok()
        page = metrics(site)
    labels = f'{{topic="{topic}"}}'
    assert page[f"penstock_topic_messages_total{labels}"] == 5
    assert page[f"penstock_topic_message_bytes_total{labels}"] == 4 * 5 + 50
    assert page[f"penstock_topic_disk_bytes{labels}"] > 0
    labels = f'{{topic="{topic}",channel="c"}}'
    told = {
        name.removeprefix("penstock_channel_").removesuffix(labels): value
        for name, value in page.items()
        if name.endswith(labels)
    }
    assert told == {
        "depth": 2,
        "in_flight": 1,
        "sleeping": 1,
        "consumers": 1,
        "paused": 0,
        "messages_total": 3,
        "finished_total": 1,
        "requeued_total": 1,
        "timed_out_total": 0,
        "dropped_total": 0,
    }
    assert page["penstock_problems"] == 0
    assert page["penstock_accepts_publishes"] == 1
    assert page['penstock_connections{door="nsq"}'] >= 1
    assert page["penstock_commit_seconds_count"] > 0
    assert page["penstock_commit_seconds_sum"] > 0
    assert page["penstock_syncs_total"] > 0
    assert page["process_resident_memory_bytes"] > 1 << 20


def test_the_cap_on_names(start_broker: StartBroker) -> None:
    broker = start_broker("--metrics-label-sets-max", "1")
    with Site(broker.http_port) as site:
        for name in ("a", "b", "d"):
            assert site.post(f"/pub?topic={name}", b"x") == (200, b"OK")
        page = metrics(site)
        assert page['penstock_topic_messages_total{topic="a"}'] == 1
        assert page['penstock_topic_messages_total{topic="(others)"}'] == 2
        assert page['penstock_label_sets_summed{kind="topic"}'] == 2


def test_a_broker_that_is_well_says_so(shared_broker: Broker) -> None:
    with Site(shared_broker.http_port) as site:
        for path in ("/health", "/health/live", "/health/ready"):
            reply = site.ask("GET", path)
            assert reply.headers["content-type"].startswith("application/json")
            assert (reply.status, json.loads(reply.body)) == (200, {"status": "ok", "problems": []})


def test_a_broken_log_is_named_and_the_rest_goes_on(start_broker: StartBroker) -> None:
    broker = start_broker(env={"PENSTOCK_FAILPOINT": "log.sync:2=eio"})
    with Site(broker.http_port) as site:
        assert site.post("/pub?topic=good", b"x") == (200, b"OK")
        assert site.post("/pub?topic=bad", b"x")[0] == 503
        status, body = site.get("/health/ready")
        told = json.loads(body)
        assert (status, told["status"]) == (200, "degraded")
        assert [problem["concerns"] for problem in told["problems"]] == ["bad"]
        assert site.get("/health")[0] == site.get("/health/live")[0] == 200
        assert site.post("/pub?topic=good", b"x") == (200, b"OK")
        page = metrics(site)
        assert (page["penstock_problems"], page["penstock_commits_failed_total"]) == (1, 1)
