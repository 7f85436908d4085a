"""A broker that drains: consumers settle what they have, nobody else comes, and nothing comes
twice."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.http import Site, refusal
from tests.support.wire import CLS, Peer, dpub, fin, mpub, pub, rdy, req

pytestmark = pytest.mark.slow

SETTLING = "waiting until consumers settle what is in flight: "


def holding(broker: Broker, connect: Connect, count: int, more: int = 0) -> Peer:
    """A consumer that has so many messages, and more of them wait."""
    producer = connect(broker.port)
    producer.publish("t", *[b"%d" % number for number in range(count + more)])
    consumer = connect(broker.port)
    consumer.subscribe("t", "c", ready=count)
    return consumer


def bodies_after_restart(broker: Broker, connect: Connect, count: int) -> set[bytes]:
    broker.start()
    consumer = connect(broker.port)
    consumer.subscribe("t", "c", ready=100)
    bodies = {one.body for one in consumer.expect_messages(count)}
    consumer.expect_nothing()
    return bodies


def test_a_stop_waits_until_consumers_have_settled(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--shutdown-timeout=1m")
    consumer = holding(broker, connect, 3, more=2)
    first, second, third = consumer.expect_messages(3)
    os.kill(broker.pid, signal.SIGTERM)
    broker.wait_for_log(SETTLING)
    consumer.send(fin(first.id), rdy(50), fin(second.id))
    consumer.expect_nothing()  # no further messages, whatever it asks for
    consumer.send(req(third.id, 0))
    consumer.expect_closed()
    assert broker.wait() == 0
    assert bodies_after_restart(broker, connect, 3) == {b"2", b"3", b"4"}


def test_who_does_not_settle_in_time_gets_it_again(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--shutdown-timeout=500ms")
    consumer = holding(broker, connect, 2)
    first, _ = consumer.expect_messages(2)
    consumer.send(fin(first.id))
    assert broker.stop() == 0
    assert "not settled in time, comes again: 1 in flight" in broker.log
    assert bodies_after_restart(broker, connect, 1) == {b"1"}


def test_a_stop_lets_others_go_at_once_and_takes_nothing(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--shutdown-timeout=1m")
    consumer = holding(broker, connect, 1)
    [message] = consumer.expect_messages(1)
    idle, producer = connect(broker.port), connect(broker.port)
    idle.subscribe("other", "c", ready=1)
    producer.publish("other#ephemeral", b"x")
    with Site(broker.http_port) as site:
        os.kill(broker.pid, signal.SIGTERM)
        broker.wait_for_log(SETTLING)
        idle.expect_closed()
        producer.expect_closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", broker.port), 5)
        assert site.post("/pub?topic=t", b"late") == refusal(503, "EXITING")
        status, body = site.get("/health/ready")
        assert (status, json.loads(body)["status"]) == (503, "draining")
    consumer.send(CLS)
    consumer.expect_response(b"CLOSE_WAIT")
    consumer.send(fin(message.id))
    consumer.expect_closed()
    assert broker.wait() == 0
    assert bodies_after_restart(broker, connect, 0) == set()


@pytest.mark.parametrize("publish", [pub("t", b"x"), mpub("t", [b"x"]), dpub("t", 1, b"x")])
def test_sigusr1_takes_nothing_new_and_goes_on(
    start_broker: StartBroker, connect: Connect, publish: bytes
) -> None:
    broker = start_broker("--shutdown-timeout=1m")
    consumer = holding(broker, connect, 1, more=3)
    [message] = consumer.expect_messages(1)
    producer = connect(broker.port)
    producer.publish("t", b"before")
    os.kill(broker.pid, signal.SIGUSR1)
    broker.wait_for_log("draining: ")
    producer.send(publish)
    verb = publish.split(b" ")[0].decode()
    producer.expect_fatal(
        f"E_{verb}_FAILED {verb} failed the broker is draining: it takes no more messages,"
        " publish to another"
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", broker.port), 5)
    with Site(broker.http_port) as site:
        assert site.post("/pub?topic=t", b"late") == refusal(503, "EXITING")
        assert site.post("/mpub?topic=t", b"late") == refusal(503, "EXITING")
        assert site.get("/health/ready")[0] == 503
        assert site.get("/health/live")[0] == 200
        assert site.get("/ping") == (200, b"OK")
    consumer.send(fin(message.id))
    for body in (b"1", b"2", b"3", b"before"):
        [message] = consumer.expect_messages(1)
        assert message.body == body
        consumer.send(fin(message.id))
    assert broker.stop() == 0
    assert bodies_after_restart(broker, connect, 0) == set()
