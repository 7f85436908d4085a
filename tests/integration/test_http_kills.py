"""kill -9 right behind an answer: what was answered is so after a start."""

from __future__ import annotations

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect
from tests.support.http import Site, refusal
from tests.support.wire import fin, rdy, sub

pytestmark = pytest.mark.slow


def act_and_kill(broker: Broker, *paths: str) -> None:
    with Site(broker.http_port) as site:
        for path in paths:
            site.done(path)
        broker.restart(kill=True)


def seen(broker: Broker, topic: str) -> dict[str, object]:
    with Site(broker.http_port) as site:
        (told,) = site.stats(topic=topic)["topics"]
        assert isinstance(told, dict)
        return told


def publish(broker: Broker, topic: str, *bodies: bytes) -> None:
    with Site(broker.http_port) as site:
        for body in bodies:
            assert site.post(f"/pub?topic={topic}", body) == (200, b"OK")


def test_messages_are_kept(broker: Broker, connect: Connect) -> None:
    with Site(broker.http_port) as site:
        assert site.post("/pub?topic=t", b"one") == (200, b"OK")
        assert site.post("/mpub?topic=t", b"two\nthree") == (200, b"OK")
        assert site.post("/pub?topic=t&defer=100", b"later") == (200, b"OK")
        broker.restart(kill=True)
    peer = connect(broker.port)
    peer.send(sub("t", "c"), rdy(10))
    peer.expect_ok()
    got = peer.expect_messages(4)
    assert sorted(one.body for one in got) == [b"later", b"one", b"three", b"two"]
    peer.send(*(fin(one.id) for one in got))


def test_topics_and_channels_are_kept(broker: Broker) -> None:
    act_and_kill(broker, "/topic/create?topic=t", "/channel/create?topic=t&channel=c")
    told = seen(broker, "t")
    assert [one["channel_name"] for one in told["channels"]] == ["c"]  # type: ignore[attr-defined]


def test_what_is_deleted_stays_deleted(broker: Broker) -> None:
    publish(broker, "t", b"x")
    act_and_kill(broker, "/channel/create?topic=t&channel=c", "/channel/delete?topic=t&channel=c")
    assert seen(broker, "t")["channels"] == []
    act_and_kill(broker, "/topic/delete?topic=t")
    with Site(broker.http_port) as site:
        assert site.post("/topic/delete?topic=t") == refusal(404, "TOPIC_NOT_FOUND")


def test_a_pause_holds(broker: Broker, connect: Connect) -> None:
    act_and_kill(
        broker,
        "/topic/create?topic=t",
        "/channel/create?topic=t&channel=c",
        "/topic/pause?topic=t",
        "/channel/pause?topic=t&channel=c",
    )
    told = seen(broker, "t")
    assert told["paused"] is True
    publish(broker, "t", b"x")
    act_and_kill(broker, "/topic/unpause?topic=t", "/channel/unpause?topic=t&channel=c")
    peer = connect(broker.port)
    peer.send(sub("t", "c"), rdy(1))
    peer.expect_ok()
    peer.expect_message(b"x")


@pytest.mark.parametrize("what", ["topic", "channel"])
def test_what_is_emptied_stays_empty(broker: Broker, connect: Connect, what: str) -> None:
    publish(broker, "t", b"gone", b"gone too")
    if what == "channel":
        with Site(broker.http_port) as site:
            site.done("/channel/create?topic=t&channel=c")
    act_and_kill(broker, f"/{what}/empty?topic=t&channel=c")
    publish(broker, "t", b"kept")
    peer = connect(broker.port)
    peer.send(sub("t", "c"), rdy(10))
    peer.expect_ok()
    peer.expect_message(b"kept")
