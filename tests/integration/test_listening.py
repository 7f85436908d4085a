"""Where a broker listens: every interface at once, and a socket in the file system."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.authserver import ALL, granting
from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import auth


@pytest.fixture
def path() -> Iterator[Path]:
    """Short enough for a socket's address, which has room for about a hundred characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "nsqd.sock"


def start_at(start_broker: StartBroker, path: Path, **options: Any) -> Broker:
    broker = start_broker("--tcp-address", str(path), start=False, **options)
    broker.spawn()
    broker.wait_for_log(rf"TCP: listening on {path}$")
    return broker


def penstock(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, "--broker", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("verb", ["nsqd", "serve"])
def test_a_path_is_listened_on_and_goes_with_the_broker(
    start_broker: StartBroker, path: Path, verb: str
) -> None:
    broker = start_at(start_broker, path, verb=verb)
    penstock(path, "pub", "t", "--body", "hello")
    assert penstock(path, "tail", "t", "--channel", "c", "-n", "1") == "hello\n"
    assert broker.stop() == 0
    assert not path.exists()


def test_a_path_is_taken_over_from_the_dead_and_not_from_the_living(
    start_broker: StartBroker, path: Path
) -> None:
    broker = start_at(start_broker, path)
    penstock(path, "pub", "t", "--body", "kept")
    other = start_broker("--tcp-address", str(path), start=False)
    other.spawn()
    assert other.wait() == 1
    assert f"cannot listen on {path}: address already in use" in other.log.lower()
    assert path.exists()
    broker.kill()
    assert path.exists()
    start_at(start_broker, path, data_path=broker.data_path)
    assert penstock(path, "tail", "t", "--channel", "c", "-n", "1") == "kept\n"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", [":0", "0.0.0.0:0"])
def test_every_interface_is_both_families_on_one_port_as_in_nsqd(
    start_broker: StartBroker, connect: Connect, address: str
) -> None:
    with granting(ALL) as server:
        broker = start_broker("--tcp-address", address, "--auth-http-address", server.address)
        assert broker.log.count("TCP: listening on ") == 1
        assert f"TCP: listening on [::]:{broker.port}" in broker.log
        for host in ("127.0.0.1", "::1"):
            peer = connect(broker.port, host=host)
            peer.send(auth("s"))
            peer.next_frame()
        assert [asked.query["remote_ip"] for asked in server.asked] == ["127.0.0.1", "::1"]
