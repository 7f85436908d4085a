"""HTTP as bytes: any chunking, pipelining, old and broken clients, bounds; on raw sockets."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import StartBroker
from tests.support.http import RawSite, Site

pytestmark = pytest.mark.slow

HOST = b"Host: here\r\n"


@pytest.fixture
def raw(shared_broker: Broker) -> Iterator[RawSite]:
    with RawSite(shared_broker.http_port) as raw:
        yield raw


def request(line: str, body: bytes = b"", headers: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return line.encode() + b" HTTP/1.1\r\n" + HOST + length + headers + b"\r\n" + body


def chunked(line: str, *pieces: bytes, trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = line.encode() + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + body + b"0\r\n" + trailer + b"\r\n"


def bodies_of(broker: Broker, topic: str) -> int:
    with Site(broker.http_port) as site:
        told = site.stats(topic=topic)["topics"]
        return int(told[0]["message_bytes"]) if told else 0


def test_byte_by_byte(raw: RawSite, shared_broker: Broker, topic: str) -> None:
    data = chunked(f"POST /pub?topic={topic}", b"he", b"llo", trailer=b"X-Sum: 1\r\n")
    data += request(f"POST /pub?topic={topic}", b"again")
    for at in range(len(data)):
        raw.send(data[at : at + 1])
    for _ in range(2):
        assert raw.reply()[:2] == (200, b"OK")
    assert bodies_of(shared_broker, topic) == 10


def test_pipelined_requests_are_answered_in_their_order(raw: RawSite, topic: str) -> None:
    raw.send(
        request(f"POST /pub?topic={topic}", b"x")
        + request("GET /nope")
        + request(f"POST /topic/pause?topic={topic}")
        + request("GET /ping")
        + chunked(f"POST /mpub?topic={topic}", b"a\nb")
        + request("POST /pub", b"x")
    )
    answers = [raw.reply()[:2] for _ in range(6)]
    assert answers == [
        (200, b"OK"),
        (404, b'{"message":"NOT_FOUND"}'),
        (200, b""),
        (200, b"OK"),
        (200, b"OK"),
        (400, b'{"message":"MISSING_ARG_TOPIC"}'),
    ]


def test_thousands_of_requests_ahead(raw: RawSite, shared_broker: Broker, topic: str) -> None:
    raw.send(request(f"POST /pub?topic={topic}", b"x") * 3_000)
    for _ in range(3_000):
        assert raw.reply()[:2] == (200, b"OK")
    assert bodies_of(shared_broker, topic) == 3_000


def test_a_client_may_ask_before_it_sends_a_body(raw: RawSite, topic: str) -> None:
    raw.send(
        f"POST /pub?topic={topic} HTTP/1.1\r\n".encode()
        + HOST
        + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    )
    assert raw.reply().status == 100
    raw.send(b"hello")
    assert raw.reply()[:2] == (200, b"OK")


def test_a_body_that_is_not_wanted_need_not_be_sent(raw: RawSite) -> None:
    raw.send(
        b"POST /pub?topic=t HTTP/1.1\r\n"
        + HOST
        + b"Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n"
    )
    reply = raw.reply()
    assert reply[:2] == (413, b'{"message":"MSG_TOO_BIG"}')
    assert reply.headers["connection"] == "close"
    assert raw.ended()


def test_a_long_body_that_is_refused_ends_the_connection(raw: RawSite) -> None:
    raw.send(request("POST /nope", b"x" * 300_000))
    reply = raw.reply()
    assert (reply.status, reply.headers["connection"]) == (404, "close")
    assert raw.ended()


def test_a_short_body_that_is_refused_does_not(raw: RawSite) -> None:
    raw.send(request("POST /nope", b"x" * 3_000), request("GET /ping"))
    assert (raw.reply().status, raw.reply().status) == (404, 200)


def test_chunks_that_come_to_too_much(raw: RawSite) -> None:
    raw.send(chunked("POST /pub?topic=t", *[b"x" * 65_536] * 17))
    assert raw.reply()[:2] == (413, b'{"message":"MSG_TOO_BIG"}')
    assert raw.ended()


@pytest.mark.parametrize(
    ("head", "keeps", "version"),
    [
        (b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n", True, b"1.1"),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", False, b"1.1"),
        (b"GET /ping HTTP/1.0\r\n\r\n", False, b"1.0"),
        (b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, b"1.0"),
        (b"GET http://a:4151/ping HTTP/1.1\r\nHost: a\r\n\r\n", True, b"1.1"),
    ],
)
def test_the_connection_stays_if_it_shall(
    raw: RawSite, head: bytes, keeps: bool, version: bytes
) -> None:
    raw.send(head)
    assert raw.reply()[:2] == (200, b"OK")
    if keeps:
        raw.send(head)
        assert raw.reply()[:2] == (200, b"OK")
    else:
        assert raw.ended()


def test_an_upgrade_that_nobody_wants_is_answered_all_the_same(
    raw: RawSite, shared_broker: Broker, topic: str
) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    raw.send(
        request("GET /ping", headers=upgrade),
        request(f"POST /pub?topic={topic}", b"hello", headers=upgrade),
        request(f"POST /pub?topic={topic}", b"again"),
    )
    for _ in range(3):
        assert raw.reply()[:2] == (200, b"OK")
    assert bodies_of(shared_broker, topic) == 10


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /pub?topic=t HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (
            b"POST /pub?topic=t HTTP/1.1\r\n"
            + HOST
            + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            b"POST /pub?topic=t HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
            400,
        ),
        (b"GET /ping HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /ping HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 20_000 + b"\r\n", 431),
        (b"GET /" + b"x" * 400_000, 431),
        (chunked("POST /pub?topic=t", b"x", trailer=b"X: " + b"y" * 400_000 + b"\r\n"), 431),
    ],
)
def test_what_is_no_http_is_told_so(raw: RawSite, data: bytes, status: int) -> None:
    try:
        raw.send(data)
    except ConnectionError:
        pass  # the answer came before the end of it
    reply = raw.reply()
    assert (reply.status, reply.headers["connection"]) == (status, "close")
    assert raw.ended()


def test_what_came_whole_is_answered_before_that(raw: RawSite, topic: str) -> None:
    raw.send(request(f"POST /pub?topic={topic}", b"x") + b"nonsense\r\n\r\n")
    assert [raw.reply().status, raw.reply().status] == [200, 400]


def test_a_client_that_stops_sending_gets_its_answer(raw: RawSite, topic: str) -> None:
    raw.send(request(f"POST /pub?topic={topic}", b"x"))
    raw.socket.shutdown(1)
    assert raw.reply()[:2] == (200, b"OK")
    assert raw.ended()


def test_half_a_request_does_nothing(shared_broker: Broker, topic: str) -> None:
    with RawSite(shared_broker.http_port) as raw:
        raw.send(request(f"POST /pub?topic={topic}", b"hello")[:-1])
        raw.socket.shutdown(1)
        assert raw.ended()
    assert bodies_of(shared_broker, topic) == 0


def test_a_client_that_does_not_read_holds_up_nobody(start_broker: StartBroker) -> None:
    broker = start_broker(verify=False)
    with Site(broker.http_port) as site:
        for number in range(200):
            site.done(f"/topic/create?topic=t{number}")
        with RawSite(broker.http_port) as raw:
            before = broker.resident_bytes()
            raw.socket.settimeout(0.2)
            try:
                while True:
                    raw.send(request("GET /stats?format=json") * 100)
            except TimeoutError:
                pass  # the broker reads no more from who does not read
            assert site.get("/ping") == (200, b"OK")
            assert broker.resident_bytes() - before < 40 << 20


def test_memory_is_bounded_by_what_comes_in(start_broker: StartBroker) -> None:
    """Fifty clients with most of a large body each: none of it stays when they are gone."""
    broker = start_broker(verify=False)
    raws = [RawSite(broker.http_port) for _ in range(50)]
    for raw in raws:
        raw.send(request("POST /mpub?topic=t", b"x\n" * 250_000)[:-1])
    with Site(broker.http_port) as site:
        assert site.get("/ping") == (200, b"OK")
        for raw in raws:
            raw.file.close()
            raw.socket.close()
        site.post("/debug/freememory")
        assert site.stats()["topics"] == []


def test_a_stop_answers_what_is_under_way(start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawSite(broker.http_port) as idle, RawSite(broker.http_port) as busy:
        busy.send(request("GET /debug/pprof/profile?seconds=1"))
        with Site(broker.http_port) as site:
            site.get("/ping")  # the one before it has come in by now
        assert broker.stop() == 0
        assert idle.ended()
        reply = busy.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")


def test_an_address_that_is_taken(start_broker: StartBroker, shared_broker: Broker) -> None:
    broker = start_broker(f"--http-address=127.0.0.1:{shared_broker.http_port}", start=False)
    broker.spawn()
    assert broker.wait() == 1
    assert re.search(r"cannot listen on 127\.0\.0\.1:\d+: .*another http_address", broker.log)


def test_no_http_at_all(start_broker: StartBroker) -> None:
    broker = start_broker("--http-address=", verb="serve")
    assert "HTTP: listening" not in broker.log


def test_a_unix_socket(start_broker: StartBroker, tmp_path: Path) -> None:
    path = tmp_path / "http"
    broker = start_broker(f"--http-address={path}")
    broker.wait_for_log(f"HTTP: listening on {path}$")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(request("GET /ping", headers=b"Connection: close\r\n"))
        with client.makefile("rb") as answer:
            assert answer.read().endswith(b"\r\n\r\nOK")
    assert broker.stop() == 0
    assert not path.exists()


def test_the_clock_of_answers_is_the_walls(raw: RawSite) -> None:
    raw.send(request("GET /ping"))
    shown = time.strptime(raw.reply().headers["date"], "%a, %d %b %Y %H:%M:%S GMT")
    assert shown.tm_year >= 2024
