"""The name server in a process of its own, under both verbs, with brokers and HTTP clients."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.fixtures import Connect, StartBroker
from tests.support.nameserver import NameServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServerProcess]:
    server = NameServerProcess(
        tmp_path, "--broadcast-address=127.0.0.1", "--tombstone-lifetime=500ms", verb="nsqlookupd"
    )
    with server:
        yield server
    print(server.log)
    assert "Traceback" not in server.log


def test_start_up_lines_answers_and_a_clean_end(name_server: NameServerProcess) -> None:
    stamp = r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "
    port, http_port = name_server.port, name_server.http_port
    shapes = [
        r"nsqlookupd v1\.3\.0 \(built w/.*\)",
        rf"TCP: listening on 127\.0\.0\.1:{port}",
        rf"HTTP: listening on 127\.0\.0\.1:{http_port}",
    ]
    for line, shape in zip(name_server.log.splitlines(), shapes, strict=False):
        assert re.fullmatch(stamp + shape, line)
    ask = name_server.ask
    assert ask("GET", "/ping") == (200, "OK")
    assert ask("GET", "/info") == (200, {"version": "1.3.0"})
    assert ask("GET", "/lookup?topic=t") == (404, {"message": "TOPIC_NOT_FOUND"})
    assert ask("GET", "/nowhere") == (404, {"message": "NOT_FOUND"})
    assert ask("POST", "/topics") == (405, {"message": "METHOD_NOT_ALLOWED"})
    assert ask("POST", "/channel/create?topic=t&channel=c") == (200, "")
    assert ask("GET", "/lookup?topic=t") == (200, {"channels": ["c"], "producers": []})
    assert name_server.stop() == 0


def test_consumers_find_a_broker(
    name_server: NameServerProcess, start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(
        *("--lookupd-tcp-address", name_server.address, "--broadcast-address=127.0.0.1")
    )
    broker.wait_for_log("peer info")
    connect(broker.port).subscribe("t", "c")
    found = name_server.until("/lookup?topic=t", lambda value: bool(value.get("channels")))
    (producer,) = found["producers"]
    assert found["channels"] == ["c"]
    assert producer.pop("remote_address").startswith("127.0.0.1:")
    assert producer == {
        "hostname": socket.gethostname(),
        "broadcast_address": "127.0.0.1",
        "tcp_port": broker.port,
        "http_port": broker.http_port,
        "version": "1.3.0",
    }
    node = f"127.0.0.1:{broker.http_port}"
    assert name_server.ask("POST", f"/topic/tombstone?topic=t&node={node}") == (200, "")
    name_server.until("/lookup?topic=t", lambda value: value["producers"] == [])
    name_server.until("/lookup?topic=t", lambda value: len(value["producers"]) == 1)

    name_server.restart(kill=True, same_port=True)
    name_server.until("/topics", lambda value: value == {"topics": ["t"]})
    broker.kill()
    name_server.until("/nodes", lambda value: value == {"producers": []})


def test_a_new_broker_takes_over_channels_made_by_hand(
    name_server: NameServerProcess, start_broker: StartBroker, connect: Connect
) -> None:
    for channel in ("c", "d"):
        name_server.ask("POST", f"/channel/create?topic=t&channel={channel}")
    broker = start_broker("--lookupd-tcp-address", name_server.address)
    broker.wait_for_log("peer info")
    connect(broker.port).publish("t", b"x")
    for channel in ("c", "d"):
        consumer = connect(broker.port)
        consumer.subscribe("t", channel, ready=1)
        consumer.expect_message(b"x")


def test_a_port_that_is_taken_is_one_sentence_and_1(
    name_server: NameServerProcess, tmp_path: Path
) -> None:
    second = NameServerProcess(tmp_path, f"--tcp-address={name_server.address}", verb="nsqlookupd")
    second.spawn()
    assert second.wait() == 1
    assert f"FATAL: cannot listen on {name_server.address}: " in second.log


def test_penstock_lookup(tmp_path: Path) -> None:
    with NameServerProcess(tmp_path, "--inactive-producer-timeout", "1m", verb="lookup") as server:
        assert server.ask("GET", "/topics") == (200, {"topics": []})
        assert server.stop() == 0


def test_a_broker_is_told_of_name_servers_while_it_runs(
    name_server: NameServerProcess, start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker()
    connect(broker.port).publish("t", b"x")

    def put(body: str) -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", broker.http_port, timeout=25)
        connection.request("PUT", "/config/nsqlookupd_tcp_addresses", body)
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    for wrong in ("[", "{}", "[5]", '["nowhere"]', '"a:1"', "[" * 100_000):
        assert put(wrong) == (400, b'{"message":"INVALID_VALUE"}')
    addresses = f'["{name_server.address}"]'
    assert put(addresses) == (200, addresses.encode())
    name_server.until("/topics", lambda value: value == {"topics": ["t"]})
    assert put("[]") == (200, b"[]")
    name_server.until("/nodes", lambda value: value == {"producers": []})
    broker.wait_for_log(rf"INFO: LOOKUP\({name_server.address}\): removing peer$")
