"""Real NSQ clients against a real broker: gnsq and ansq (PyPI), nsqjs (npm), unchanged.

Over each dress that a client can wear: plain, TLS, snappy, deflate, and compression inside TLS.
Publishing in all ways, consuming, requeue, touch, a broker that is killed and comes back while they
are connected, and AUTH. `driver` says how the clients are run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.compat.driver import (
    LIBRARIES,
    PLAIN,
    Client,
    Library,
    body_of,
    install_nsqjs,
)
from tests.support.authserver import ALL, granting
from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import NO_SUCH_ID, fin

if TYPE_CHECKING:
    from tests.support.certificates import Certificates

pytestmark = pytest.mark.slow

RunClient = Callable[..., Client]

WORN = [
    pytest.param(library, dress, id=f"{library.name}-{dress}")
    for library in LIBRARIES.values()
    for dress in library.dresses
]
EACH = [pytest.param(library, id=library.name) for library in LIBRARIES.values()]
AUTHORIZING = [
    pytest.param(library, id=library.name) for library in LIBRARIES.values() if library.authorizes
]


@pytest.fixture(scope="session")
def nsqjs_installed() -> None:
    install_nsqjs()


@pytest.fixture
def run_client(
    request: pytest.FixtureRequest, topic: str, certificates: Certificates
) -> Iterator[RunClient]:
    """`run_client(library, "producer", port)`: started, ready, and ended after the test."""
    clients: list[Client] = []

    def run(library: Library, role: str, port: int, **options: Any) -> Client:
        if library.missing is not None:
            pytest.skip(library.missing)
        if library.name == "nsqjs":
            request.getfixturevalue("nsqjs_installed")
        client = Client(library, role, port, topic, ca=certificates.authority, **options)
        clients.append(client)
        client.expect("ready")
        return client

    try:
        yield run
    finally:
        for client in clients:
            client.close()


@pytest.fixture(scope="module")
def tls_broker(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """For every dress: one that has a certificate serves plain clients all the same."""
    data = tmp_path_factory.mktemp("compat") / "data"
    with Broker(data, *certificates.broker_flags, "--msg-timeout=2s") as broker:
        yield broker
        print(broker.log)


BODIES = [
    b"hello",
    b"\x00\x01\n\r\n",
    bytes(range(256)),
    b"a" * 100_000,
    os.urandom(100_000),
    "snø ☃".encode(),
]


@pytest.mark.parametrize(("library", "dress"), WORN)
def test_publish_and_consume(
    tls_broker: Broker, run_client: RunClient, library: Library, dress: str
) -> None:
    producer = run_client(library, "producer", tls_broker.port, dress=dress)
    producer.publish(*BODIES)
    many = [b"%d" % number for number in range(500)]
    producer.mpublish(*many)
    producer.dpublish(200, b"deferred")
    consumer = run_client(library, "consumer", tls_broker.port, dress=dress)
    producer.publish(b"while it listens")
    everything = [*BODIES, *many, b"deferred", b"while it listens"]
    attempts = consumer.expect_finished(everything)
    assert attempts == {body: [1] for body in everything}
    producer.stop()
    consumer.stop()


@pytest.mark.parametrize(("library", "dress"), WORN)
def test_requeue(tls_broker: Broker, run_client: RunClient, library: Library, dress: str) -> None:
    producer = run_client(library, "producer", tls_broker.port, dress=dress)
    bodies = [b"requeue %d" % number for number in range(20)]
    producer.mpublish(*bodies)
    consumer = run_client(library, "consumer", tls_broker.port, dress=dress)
    assert consumer.expect_finished(bodies) == {body: [1, 2] for body in bodies}


@pytest.mark.parametrize("library", EACH)
def test_touch(tls_broker: Broker, run_client: RunClient, library: Library) -> None:
    consumer = run_client(library, "consumer", tls_broker.port)
    producer = run_client(library, "producer", tls_broker.port)
    # Held for longer than the 2 s of this broker's msg-timeout, and touched on the way.
    producer.publish(b"touch")
    assert consumer.expect_finished([b"touch"]) == {b"touch": [1]}
    producer.publish(b"after")
    assert consumer.expect_finished([b"after"]) == {b"after": [1]}


@pytest.mark.parametrize("kill", [False, True], ids=["stop", "kill-9"])
@pytest.mark.parametrize(("library", "dress"), WORN)
def test_reconnect(
    start_broker: StartBroker,
    run_client: RunClient,
    certificates: Certificates,
    library: Library,
    dress: str,
    kill: bool,
) -> None:
    broker = start_broker(*certificates.broker_flags, "--msg-timeout=2s")
    consumer = run_client(library, "consumer", broker.port, dress=dress)
    producer = run_client(library, "producer", broker.port, dress=dress)
    before = [b"before %d" % number for number in range(50)]
    producer.publish(*before)
    consumer.expect_finished(before)
    producer.dpublish(1500, b"deferred")
    broker.restart(kill=kill, same_port=True)
    # They are not told: they notice, come back and go on.
    after = [b"after %d" % number for number in range(50)]
    publish_when_back(producer, after)
    attempts = consumer.expect_finished([*after, b"deferred"])
    assert attempts[b"deferred"][0] == 1
    assert set(after) <= set(attempts)


def publish_when_back(producer: Client, bodies: list[bytes]) -> None:
    """A producer's publish may fail while its connection is gone; its users try again."""
    for _ in range(20):
        producer.tell("publish", bodies)
        said = "closed"
        while said == "closed":
            said = producer.next_event("publish")["event"]
        if said == "published":
            return
        time.sleep(0.5)
    raise AssertionError(f"{producer.name} did not come back\n{producer.noise}")


@pytest.mark.parametrize("producing", EACH)
@pytest.mark.parametrize("consuming", EACH)
def test_each_understands_the_other(
    tls_broker: Broker, run_client: RunClient, producing: Library, consuming: Library
) -> None:
    producer = run_client(producing, "producer", tls_broker.port)
    consumer = run_client(consuming, "consumer", tls_broker.port)
    producer.publish(*BODIES)
    assert consumer.expect_finished(BODIES) == {body: [1] for body in BODIES}


@pytest.mark.parametrize("library", EACH)
def test_two_consumers_share_a_channel(
    tls_broker: Broker, run_client: RunClient, library: Library
) -> None:
    one = run_client(library, "consumer", tls_broker.port, max_in_flight=1)
    two = run_client(library, "consumer", tls_broker.port, max_in_flight=1)
    producer = run_client(library, "producer", tls_broker.port)
    bodies = [b"%d" % number for number in range(200)]
    producer.mpublish(*bodies)
    producer.stop()
    # Whoever gets the last two: they are told apart only by what they have finished.
    seen: list[bytes] = []
    while len(seen) < len(bodies):
        for consumer in (one, two):
            seen += [
                body_of(said) for said in consumer.said_so_far() if said["event"] == "finished"
            ]
        time.sleep(0.01)
    assert sorted(seen) == sorted(bodies)


@pytest.mark.parametrize("library", AUTHORIZING)
def test_auth(start_broker: StartBroker, run_client: RunClient, library: Library) -> None:
    with granting(ALL, identity="me") as server:
        broker = start_broker("--auth-http-address", server.address)
        producer = run_client(library, "producer", broker.port, secret="our secret")
        producer.publish(b"x")
        consumer = run_client(library, "consumer", broker.port, secret="our secret")
        consumer.expect_finished([b"x"])
        assert {asked.query["secret"] for asked in server.asked} == {"our secret"}
        assert len(server.asked) == 2


@pytest.mark.parametrize("library", EACH)
def test_what_a_client_finished_stays_finished(
    start_broker: StartBroker, run_client: RunClient, connect: Connect, topic: str, library: Library
) -> None:
    broker = start_broker("--msg-timeout=1s")
    producer = run_client(library, "producer", broker.port)
    consumer = run_client(library, "consumer", broker.port)
    bodies = [b"%d" % number for number in range(100)]
    producer.publish(*bodies)
    consumer.expect_finished(bodies)
    consumer.stop()
    producer.stop()
    peer = connect(broker.port)
    peer.subscribe(topic, "channel", ready=100)
    peer.expect_nothing(1.5)
    peer.send(fin(NO_SUCH_ID))
    peer.expect_error(f"E_FIN_FAILED FIN {NO_SUCH_ID.decode()} failed ID not in flight")


def test_every_client_is_listed() -> None:
    """A client that cannot run is skipped with its reason, so it has to be here to be missed."""
    assert set(LIBRARIES) == {"gnsq", "ansq", "nsqjs"}
    assert all(PLAIN in library.dresses for library in LIBRARIES.values())
