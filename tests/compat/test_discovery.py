"""Real NSQ consumers that find brokers through the name server: gnsq, ansq and nsqjs, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.driver import LIBRARIES, Client, Library, install_nsqjs
from tests.support.fixtures import Connect, StartBroker
from tests.support.nameserver import NameServerProcess

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=lambda library: library.name)
def test_a_consumer_finds_all_brokers_of_a_topic(
    library: Library,
    tmp_path: Path,
    start_broker: StartBroker,
    connect: Connect,
    topic: str,
) -> None:
    if library.missing is not None:
        pytest.skip(library.missing)
    if library.name == "nsqjs":
        install_nsqjs()
    with NameServerProcess(tmp_path / "lookup", verb="nsqlookupd") as name_server:
        bodies = [b"from the first", b"from the second"]
        for body in bodies:
            broker = start_broker(
                *("--lookupd-tcp-address", name_server.address, "--broadcast-address=127.0.0.1")
            )
            connect(broker.port).publish(topic, body)
        name_server.until(
            f"/lookup?topic={topic}", lambda value: len(value.get("producers", ())) == 2
        )
        lookup = f"127.0.0.1:{name_server.http_port}"
        # 1 in flight is where ansq has a reader that asks name servers
        with Client(library, "consumer", 0, topic, lookup=lookup, max_in_flight=1) as consumer:
            consumer.expect_finished(bodies)
