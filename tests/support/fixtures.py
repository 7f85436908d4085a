"""The fixtures that every test may ask for by name; they build on the modules beside.

`broker`            a fresh broker of this test alone
`start_broker`      makes more of them: `start_broker("--msg-timeout", "500ms")`; all are ended
                    after the test
`shared_broker`     one broker with the default settings per test module, for tests that only need
                    names of their own (`topic`) in it
`topic`             a topic's name that no other test uses
`connect`           makes peers that are closed after the test: `connect(broker.port)`
`certificates`      TLS certificates, made once per run

A broker's log is printed when it is taken down; pytest shows it for tests that failed. Whatever a
test does to a broker, a traceback in its log fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.support.broker import Broker
from tests.support.wire import Peer

if TYPE_CHECKING:
    from tests.support.certificates import Certificates


class StartBroker(Protocol):
    def __call__(
        self, *args: str, data_path: Path | None = None, start: bool = True, **options: Any
    ) -> Broker: ...


Connect = Callable[..., Peer]


def _end(brokers: list[Broker]) -> None:
    for broker in brokers:
        broker.close()
        print(f"log of the broker on {broker.data_path}:\n{broker.log}")
    for broker in brokers:
        assert "Traceback" not in broker.log, f"a bug of ours: {broker.log}"


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    brokers: list[Broker] = []

    def make(
        *args: str, data_path: Path | None = None, start: bool = True, **options: Any
    ) -> Broker:
        broker = Broker(data_path or tmp_path / f"data{len(brokers)}", *args, **options)
        brokers.append(broker)
        return broker.start() if start else broker

    try:
        yield make
    finally:
        _end(brokers)


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    return start_broker()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("shared") / "data")
    broker.start()
    try:
        yield broker
    finally:
        _end([broker])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """From the test's own name, so that a log can be read; at most 50 characters."""
    name = re.sub(r"[^.a-zA-Z0-9_-]+", "_", request.node.name).removeprefix("test_")
    name = name[:46]
    used = request.config.stash.setdefault(_NAMES, {})
    used[name] = used.get(name, 0) + 1
    return f"{name}.{used[name]}"


_NAMES: pytest.StashKey[dict[str, int]] = pytest.StashKey()


@pytest.fixture
def connect() -> Iterator[Connect]:
    peers: list[Peer] = []

    def make(port: int, **options: Any) -> Peer:
        peer = Peer(port, **options)
        peers.append(peer)
        return peer

    try:
        yield make
    finally:
        for peer in peers:
            peer.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    # Here, so that a run of unit tests alone does not load a cryptography library.
    from tests.support.certificates import make_certificates

    return make_certificates(tmp_path_factory.mktemp("certificates"))
