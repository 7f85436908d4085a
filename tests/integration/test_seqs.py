"""No message id is given twice, whatever a power cut took from a log that is not `synced`.

The power cut is made by hand: the broker is killed, then the segments go that it had written and
never synced (`--sync-interval` keeps it from doing so meanwhile).
"""

from __future__ import annotations

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker

pytestmark = pytest.mark.slow


def id_of_next(broker: Broker, connect: Connect, topic: str, body: bytes) -> bytes:
    """Publish, and take it as a consumer does."""
    peer = connect(broker.port)
    peer.publish(topic, body)
    peer.subscribe(topic, "channel", ready=1)
    delivery = peer.expect_message()
    peer.close()
    return delivery.id


def lose_what_was_not_synced(broker: Broker) -> None:
    broker.kill()
    lost = [*broker.data_path.rglob("*.seg")]
    assert lost
    for segment in lost:
        segment.unlink()


@pytest.mark.parametrize("stops", [0, 1, 2])
def test_ids_after_a_power_cut_and_clean_stops_are_new(
    start_broker: StartBroker, connect: Connect, topic: str, stops: int
) -> None:
    """A clean stop must not forget that the stop before it was none."""
    broker = start_broker("--durability=written", "--sync-interval=1h", verb="serve")
    seen = {id_of_next(broker, connect, topic, b"before")}
    lose_what_was_not_synced(broker)
    broker.start()
    for _ in range(stops):
        # opened, but nothing is published
        peer = connect(broker.port)
        peer.subscribe(topic, "channel")
        peer.close()
        broker.restart()
    seen.add(id_of_next(broker, connect, topic, b"after"))
    assert len(seen) == 2
