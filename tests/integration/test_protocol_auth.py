"""AUTH as nsqd 1.3 does it: an HTTP auth server decides, its answer holds for a time, every SUB and
publish is checked against it.

Black box, with a real HTTP server beside the broker that keeps what it was asked.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.authserver import ALL, Asked, AuthServer, granting
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import Peer, auth, dpub, line, mpub, pub, sized, sub

if TYPE_CHECKING:
    from tests.support.certificates import Certificates


def login(peer: Peer, secret: str = "secret") -> dict[str, Any]:
    peer.send(auth(secret))
    return peer.expect_json()


def test_auth_required_is_said_in_identify(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        broker = start_broker("--auth-http-address", server.address)
        assert connect(broker.port).negotiate()["auth_required"] is True


def test_the_answer_and_what_the_server_is_asked(
    start_broker: StartBroker, connect: Connect
) -> None:
    with granting(ALL, ALL, identity="me & you", identity_url="http://localhost/me") as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        peer.send(auth("a secret/with=odd&bytes"))
        frame = peer.next_frame()
        expected = (
            b'{"identity":"me \\u0026 you","identity_url":"http://localhost/me",'
            b'"permission_count":2}'
        )
        assert frame == (0, expected)
        [asked] = server.asked
        assert asked.method == "GET"
        assert asked.path == "/auth"
        assert asked.raw_query == (
            "common_name=&remote_ip=127.0.0.1&secret=a+secret%2Fwith%3Dodd%26bytes&tls=false"
        )
        assert asked.accept == "application/vnd.nsq; version=1.0"


def test_nothing_is_allowed_before_auth(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        broker = start_broker("--auth-http-address", server.address)
        for word, command in (
            ("PUB", pub("t", b"x")),
            ("MPUB", mpub("t", [b"x"])),
            ("DPUB", dpub("t", 1, b"x")),
            ("SUB", sub("t", "c")),
        ):
            peer = connect(broker.port)
            peer.send(command)
            peer.expect_fatal(f"E_AUTH_FIRST AUTH required before {word}")
        assert not server.asked


def test_mpub_is_refused_before_its_body_is_read_and_pub_after(
    start_broker: StartBroker, connect: Connect
) -> None:
    with granting(ALL) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        peer.send(line("MPUB", "t"))
        peer.expect_fatal("E_AUTH_FIRST AUTH required before MPUB")
        peer = connect(broker.port)
        peer.send(line("PUB", "t") + sized(b""))
        peer.expect_fatal("E_BAD_MESSAGE PUB invalid message body size 0")
        peer = connect(broker.port)
        peer.send(pub("a!b", b"x"))
        peer.expect_fatal('E_BAD_TOPIC PUB topic name "a!b" is not valid')


def test_who_may_not_publish_makes_no_topic(start_broker: StartBroker, connect: Connect) -> None:
    with granting(PUBLISH_ONLY) as server:
        broker = start_broker("--auth-http-address", server.address)
        for command in (pub("nope1", b"x"), dpub("nope2", 9, b"x")):
            for known in (False, True):
                peer = connect(broker.port)
                if known:
                    login(peer)
                peer.send(command)
                refusal = "E_UNAUTHORIZED" if known else "E_AUTH_FIRST"
                assert peer.next_frame().data.startswith(refusal.encode())
                peer.expect_closed()
        broker.stop()
        files = [path for path in broker.data_path.rglob("*") if path.is_file()]
        assert not [path for path in files if b"nope" in path.read_bytes()]


def test_auth_twice(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        assert login(peer) == {"identity": "", "identity_url": "", "permission_count": 1}
        peer.publish("t", b"x")
        peer.negotiate()
        peer.send(auth("secret"))
        peer.expect_fatal("E_INVALID AUTH already set")


def test_auth_after_sub(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        login(peer)
        peer.subscribe("t", "c")
        peer.send(auth("secret"))
        peer.expect_fatal("E_INVALID cannot AUTH in current state")


PUBLISH_ONLY = {"topic": "^metrics", "channels": [".*"], "permissions": ["publish"]}
SUBSCRIBE_ONLY = {"topic": "^logs$", "channels": ["^arch", "x"], "permissions": ["subscribe"]}


@pytest.mark.parametrize(
    ("grants", "allowed", "command", "refusal"),
    [
        ([PUBLISH_ONLY], True, pub("metrics.cpu", b"x"), ""),
        ([PUBLISH_ONLY], False, pub("my.metrics", b"x"), 'PUB on "my.metrics" ""'),
        ([PUBLISH_ONLY], False, mpub("logs", [b"x"]), 'MPUB on "logs" ""'),
        ([PUBLISH_ONLY], False, dpub("logs", 1, b"x"), 'DPUB on "logs" ""'),
        ([PUBLISH_ONLY], False, sub("metrics", "c"), 'SUB on "metrics" "c"'),
        ([SUBSCRIBE_ONLY], True, sub("logs", "archive"), ""),
        ([SUBSCRIBE_ONLY], True, sub("logs", "a.x.b"), ""),  # regexes are not anchored
        ([SUBSCRIBE_ONLY], False, sub("logs", "my.archive"), 'SUB on "logs" "my.archive"'),
        ([SUBSCRIBE_ONLY], False, sub("logs2", "archive"), 'SUB on "logs2" "archive"'),
        ([SUBSCRIBE_ONLY], False, pub("logs", b"x"), 'PUB on "logs" ""'),
        ([SUBSCRIBE_ONLY, PUBLISH_ONLY], True, pub("metrics", b"x"), ""),
        ([SUBSCRIBE_ONLY, PUBLISH_ONLY], True, sub("logs", "arch"), ""),
        # A publish asks for channel "": a grant without channels, or with none that matches it,
        # allows none.
        ([PUBLISH_ONLY | {"channels": []}], False, pub("metrics", b"x"), 'PUB on "metrics" ""'),
        ([PUBLISH_ONLY | {"channels": ["c"]}], False, pub("metrics", b"x"), 'PUB on "metrics" ""'),
        ([ALL | {"permissions": []}], False, pub("metrics", b"x"), 'PUB on "metrics" ""'),
    ],
)
def test_permissions(
    start_broker: StartBroker,
    connect: Connect,
    grants: list[dict[str, Any]],
    allowed: bool,
    command: bytes,
    refusal: str,
) -> None:
    with granting(*grants) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        assert login(peer)["permission_count"] == len(grants)
        peer.send(command)
        if allowed:
            peer.expect_ok()
        else:
            peer.expect_fatal(f"E_UNAUTHORIZED AUTH failed for {refusal}")


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}),
        (404, b"not found"),
        (403, b"forbidden"),
        (200, b"not json"),
        (200, {"ttl": 0, "authorizations": [ALL]}),
        (200, {"ttl": -1, "authorizations": [ALL]}),
        (200, {"authorizations": [ALL]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"permissions": ["administer"]}]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"topic": "("}]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"channels": ["*"]}]}),
        (200, {"ttl": "60", "authorizations": [ALL]}),
        (200, {"ttl": 60, "authorizations": ALL}),
    ],
    ids=str,
)
def test_an_answer_that_cannot_be_used(
    start_broker: StartBroker, connect: Connect, answer: tuple[int, Any]
) -> None:
    with AuthServer(lambda asked: answer) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        peer.send(auth("secret"))
        peer.expect_fatal("E_AUTH_FAILED AUTH failed")


def test_no_authorizations(start_broker: StartBroker, connect: Connect) -> None:
    with granting() as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        peer.send(auth("secret"))
        peer.expect_fatal("E_UNAUTHORIZED AUTH no authorizations found")


def test_no_auth_server(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        gone = server.address
    broker = start_broker("--auth-http-address", gone)
    peer = connect(broker.port)
    peer.send(auth("secret"))
    peer.expect_fatal("E_AUTH_FAILED AUTH failed")


def test_the_next_server_is_asked_when_one_fails(
    start_broker: StartBroker, connect: Connect
) -> None:
    with granting(ALL) as good, AuthServer(lambda asked: (500, {})) as bad:
        broker = start_broker(
            f"--auth-http-address={bad.address}", f"--auth-http-address={good.address}"
        )
        for _ in range(8):
            login(connect(broker.port))
        assert len(good.asked) == 8


def test_a_full_url(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        broker = start_broker("--auth-http-address", f"http://{server.address}/some/where")
        login(connect(broker.port))
        assert server.asked[0].path == "/some/where"
        assert server.asked[0].query["secret"] == "secret"


def test_by_post(start_broker: StartBroker, connect: Connect) -> None:
    with granting(ALL) as server:
        broker = start_broker(
            "--auth-http-address", server.address, "--auth-http-request-method", "post"
        )
        login(connect(broker.port))
        [asked] = server.asked
        assert (asked.method, asked.path, asked.raw_query) == ("POST", "/auth", "")
        assert json.loads(asked.body) == {
            "common_name": [""],
            "remote_ip": ["127.0.0.1"],
            "secret": ["secret"],
            "tls": ["false"],
        }


@pytest.mark.slow
def test_an_answer_expires_and_the_server_is_asked_again(
    start_broker: StartBroker, connect: Connect
) -> None:
    grants = [ALL]
    with AuthServer(lambda asked: (200, {"ttl": 1, "authorizations": list(grants)})) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        login(peer, "remembered")
        peer.publish("t", b"x")
        time.sleep(1.2)
        peer.publish("t", b"x")
        assert [asked.query["secret"] for asked in server.asked] == ["remembered"] * 2
        grants[:] = [PUBLISH_ONLY]
        time.sleep(1.2)
        peer.send(pub("t", b"x"))
        peer.expect_fatal('E_UNAUTHORIZED AUTH failed for PUB on "t" ""')


@pytest.mark.slow
def test_an_answer_expires_and_the_server_fails(
    start_broker: StartBroker, connect: Connect
) -> None:
    answers: list[tuple[int, Any]] = [(200, {"ttl": 1, "authorizations": [ALL]})]

    def answer(asked: Asked) -> tuple[int, Any]:
        return answers.pop() if answers else (500, {})

    with AuthServer(answer) as server:
        broker = start_broker("--auth-http-address", server.address)
        peer = connect(broker.port)
        login(peer)
        time.sleep(1.2)
        peer.send(pub("t", b"x"))
        peer.expect_fatal("E_AUTH_FAILED AUTH failed")


def test_commands_behind_auth_wait_for_it(start_broker: StartBroker, connect: Connect) -> None:
    # The query leaves the loop; what the client sent meanwhile keeps its order.
    gate = threading.Event()

    def answer(asked: Asked) -> tuple[int, Any]:
        gate.wait(30)
        return 200, {"ttl": 60, "authorizations": [ALL]}

    with AuthServer(answer) as server:
        broker = start_broker("--auth-http-address", server.address)
        slow, other = connect(broker.port), connect(broker.port)
        slow.send(auth("secret"), pub("t", b"x"), sub("t", "c"))
        other.negotiate()  # nobody else waits
        gate.set()
        assert slow.expect_json()["permission_count"] == 1
        slow.expect_ok(2)


def test_auth_over_tls_tells_the_certificates_name(
    start_broker: StartBroker, connect: Connect, certificates: Certificates
) -> None:
    from tests.support.certificates import CLIENT_COMMON_NAME

    with granting(ALL) as server:
        broker = start_broker(
            *certificates.broker_flags,
            "--tls-client-auth-policy=require-verify",
            f"--tls-root-ca-file={certificates.authority}",
            f"--auth-http-address={server.address}",
        )
        peer = connect(broker.port)
        peer.negotiate(tls_v1=True)
        peer.start_tls(certificates.client_context)
        login(peer)
        [asked] = server.asked
        assert asked.query["tls"] == "true"
        assert asked.query["common_name"] == CLIENT_COMMON_NAME
