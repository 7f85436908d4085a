"""A broker in a process of its own and a name server: what it says of itself and what it has, over
its clients' comings and goings, kill -9, and a name server that is down, comes late or dies."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.fixtures import Connect, StartBroker
from tests.support.nameserver import NameServer

pytestmark = pytest.mark.slow


@pytest.fixture
def lookup() -> Iterator[NameServer]:
    with NameServer() as started:
        yield started


def test_a_broker_registers_what_it_has(
    start_broker: StartBroker, connect: Connect, lookup: NameServer
) -> None:
    broker = start_broker("--lookupd-tcp-address", lookup.address)
    broker.wait_for_log(rf"INFO: LOOKUP\({lookup.address}\): adding peer$")
    broker.wait_for_log(rf"INFO: LOOKUPD\({lookup.address}\): peer info .*lookup\.example")
    producer = connect(broker.port)
    producer.publish("bare", b"x")
    consumer = connect(broker.port)
    consumer.subscribe("t", "c")
    passing = connect(broker.port)
    passing.subscribe("p#ephemeral", "q#ephemeral")
    stays = [("bare", ""), ("t", ""), ("t", "c")]
    lookup.wait_for_names(*stays, ("p#ephemeral", ""), ("p#ephemeral", "q#ephemeral"))
    passing.close()
    lookup.wait_for_names(*stays)
    assert lookup.registry.topics() == ["bare", "t"], "nothing ephemeral is left"

    (node,) = [one.node for one in lookup.registry.producers]
    host = socket.gethostname()
    assert node == (host, host, broker.port, node.http_port, "1.3.0")
    assert node.http_port > 0

    broker.kill()
    lookup.wait_for(lambda: not lookup.registry.producers, "the broker to be forgotten")
    broker.start()
    lookup.wait_for_names(*stays)
    assert broker.stop() == 0
    lookup.wait_for(lambda: not lookup.registry.producers, "the broker to have left")


def test_what_a_broker_says_can_be_set(start_broker: StartBroker, lookup: NameServer) -> None:
    start_broker(
        *("--lookupd-tcp-address", lookup.address),
        *("--broadcast-address=mq.example", "--broadcast-tcp-port=1", "--broadcast-http-port=2"),
    )
    lookup.wait_for(lambda: bool(lookup.registry.producers), "the broker")
    (node,) = [one.node for one in lookup.registry.producers]
    assert node == ("mq.example", socket.gethostname(), 1, 2, "1.3.0")


def test_a_new_topic_takes_over_the_channels_that_it_has_elsewhere(
    start_broker: StartBroker, connect: Connect, lookup: NameServer
) -> None:
    flag = ("--lookupd-tcp-address", lookup.address)
    first, second = start_broker(*flag), start_broker(*flag)
    consumers = [connect(first.port) for _ in range(2)]
    for channel, consumer in zip(("c", "d"), consumers, strict=True):
        consumer.subscribe("t", channel)
    lookup.wait_for_names(("t", ""), ("t", "c"), ("t", "d"))
    second.wait_for_log("peer info")
    connect(second.port).publish("t", b"x")
    second.restart(kill=True)
    for channel in ("c", "d"):
        consumer = connect(second.port)
        consumer.subscribe("t", channel, ready=1)
        consumer.expect_message(b"x")


def test_a_name_server_may_be_down_come_late_and_die(
    start_broker: StartBroker, connect: Connect, lookup: NameServer
) -> None:
    lookup.stop()
    with NameServer() as other:
        broker = start_broker(
            "--lookupd-tcp-address", lookup.address, "--lookupd-tcp-address", other.address
        )
        broker.wait_for_log(rf"WARNING: LOOKUPD\({lookup.address}\): .* keeps trying$")
        client = connect(broker.port)
        client.publish("t", b"x")
        other.wait_for_names(("t", ""))
        lookup.start()
        lookup.wait_for_names(("t", ""))
        lookup.stop()
        client.publish("u", b"x")
        other.wait_for_names(("t", ""), ("u", ""))
        lookup.start()
        lookup.wait_for_names(("t", ""), ("u", ""))
        assert broker.stop() == 0


def test_a_name_server_that_says_nothing_holds_nothing_up(
    start_broker: StartBroker, connect: Connect
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        broker = start_broker("--lookupd-tcp-address", address)
        consumer = connect(broker.port)
        consumer.subscribe("t", "c", ready=1)
        connect(broker.port).publish("t", b"x")
        consumer.expect_message(b"x")
        assert broker.stop() == 0


def test_a_broker_without_a_port_says_that_it_registers_nowhere(
    start_broker: StartBroker, lookup: NameServer
) -> None:
    broker = start_broker("--lookupd-tcp-address", lookup.address, start=False)
    path = str(broker.data_path.parent / "nsqd.sock")
    if len(path) > 100:
        pytest.skip("the temporary directory's name is too long for a socket")
    broker.args += ["--tcp-address", path]
    broker.spawn()
    broker.wait_for_log(r"WARNING: LOOKUP: .* Set broadcast_tcp_port")
