"""Several clients do everything at once over HTTP, and the broker is killed in between: no answer
that nsqd would not give, and each message that was answered is there."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect
from tests.support.http import Site
from tests.support.wire import rdy, sub

pytestmark = pytest.mark.slow

TOPICS = ("a", "b", "c%23ephemeral")
CHANNELS = ("x", "y", "z%23ephemeral")
TOPIC_ACTS = ("create", "create", "delete", "empty", "pause", "unpause", "unpause")
CHANNEL_ACTS = ("create", "create", "delete", "empty", "pause", "unpause")
REQUESTS = 150
CLIENTS = 4


def anything(rng: random.Random) -> tuple[str, str, bytes]:
    topic, channel, kind = rng.choice(TOPICS), rng.choice(CHANNELS), rng.random()
    if kind < 0.5:
        defer = rng.choice(("", "", "&defer=20"))
        return "POST", f"/pub?topic={topic}{defer}", b"x" * rng.randrange(1, 3000)
    if kind < 0.6:
        return "POST", f"/mpub?topic={topic}", b"\n".join([b"y"] * rng.randrange(1, 50))
    if kind < 0.8:
        act = rng.choice(CHANNEL_ACTS)
        return "POST", f"/channel/{act}?topic={topic}&channel={channel}", b""
    if kind < 0.93:
        return "POST", f"/topic/{rng.choice(TOPIC_ACTS)}?topic={topic}", b""
    return "GET", rng.choice(("/stats?format=json", "/stats", "/ping")), b""


def client(port: int, seed: int, kept: str, wrong: list[object]) -> None:
    """What it does to ``kept`` is for it alone: publishing."""
    rng = random.Random(seed)
    with Site(port) as site:
        for number in range(REQUESTS):
            method, path, body = anything(rng)
            status, said, _ = site.ask(method, path, body)
            refused = status == 503 and path.startswith(("/pub", "/mpub"))  # deleted meanwhile
            if status not in (200, 404) and not refused:
                wrong.append((method, path, status, said))
            if site.post(f"/pub?topic={kept}", b"%d %d" % (seed, number)) != (200, b"OK"):
                wrong.append((kept, number))


def together(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("seed", [1, 2])
def test_everything_at_once(broker: Broker, connect: Connect, seed: int) -> None:
    wrong: list[object] = []
    for kill in (True, False):
        together(
            [
                partial(client, broker.http_port, number, f"kept{number}", wrong)
                for number in range(seed * 10, seed * 10 + CLIENTS)
            ]
        )
        assert wrong == []
        broker.restart(kill=kill)
    for number in range(seed * 10, seed * 10 + CLIENTS):
        peer = connect(broker.port)
        peer.send(sub(f"kept{number}", "c"), rdy(2 * REQUESTS))
        peer.expect_ok()
        got = [one.body for one in peer.expect_messages(2 * REQUESTS)]
        assert got == [b"%d %d" % (number, at) for at in range(REQUESTS)] * 2
