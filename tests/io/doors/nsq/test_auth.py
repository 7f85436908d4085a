"""AUTH against real HTTP servers on loopback: what they are asked, which answers count, what a
client is told, and how a token file and servers go together."""

from __future__ import annotations

import json
import logging
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from penstock.config import HttpMethod, Settings
from penstock.doors.nsq.auth import Authorizer, Grants
from penstock.doors.nsq.grants import Authorization
from penstock.errors import ConfigError, PeerError
from penstock.runtime.pool import DiskPool
from tests.io.doors.nsq.hand_clock import HandClock
from tests.support.authserver import ALL, AuthServer, granting

if TYPE_CHECKING:
    from tests.support.certificates import Certificates

T = TypeVar("T")
SECOND_NS = 1_000_000_000


class PatientPool:
    """Jobs run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        def run() -> None:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001  as the real one does
                then(None, error)
            else:
                then(result, None)

        self.jobs.append(run)

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job()


class Asker:
    """An authorizer with hand-made time; `ask` waits for its answer."""

    def __init__(self, settings: Settings) -> None:
        self.clock = HandClock()
        self.pool = PatientPool()
        authorizer = Authorizer.from_settings(settings, self.pool, self.clock)
        assert authorizer is not None
        self.authorizer = authorizer
        self.told: list[tuple[Grants | None, PeerError | None]] = []

    def submit(
        self,
        secret: str = "secret",
        remote_ip: str = "127.0.0.1",
        tls: bool = False,
        common_name: str = "",
    ) -> None:
        self.authorizer.authorize(
            secret, remote_ip, tls, common_name, lambda *told: self.told.append(told)
        )

    def ask(self, secret: str = "secret", **question: Any) -> Grants | str:
        """What was granted, or the error in a client's words."""
        self.submit(secret, **question)
        self.pool.run()
        [(grants, error)] = self.told
        self.told.clear()
        if error is not None:
            assert error.fatal
            assert grants is None
            return str(error)
        assert grants is not None
        return grants

    def granted(self, secret: str = "secret", **question: Any) -> Grants:
        grants = self.ask(secret, **question)
        assert isinstance(grants, Grants), grants
        return grants


FAILED = "E_AUTH_FAILED AUTH failed"
NOTHING = "E_UNAUTHORIZED AUTH no authorizations found"


def asker(*servers: AuthServer | str, **settings: Any) -> Asker:
    addresses = tuple(one if isinstance(one, str) else one.address for one in servers)
    return Asker(Settings(auth_http_addresses=addresses, **settings))


def test_without_settings_there_is_no_authorizer() -> None:
    assert Authorizer.from_settings(Settings(), PatientPool()) is None


# --- what servers are asked --------------------------------------------------------------------


def test_by_get() -> None:
    with granting(ALL) as server:
        asker(server).granted("a secret/with=odd&bytes\udcff", remote_ip="::1", tls=True)
        [asked] = server.asked
    assert (asked.method, asked.path, asked.body) == ("GET", "/auth", b"")
    assert asked.raw_query == (
        "common_name=&remote_ip=%3A%3A1&secret=a+secret%2Fwith%3Dodd%26bytes%FF&tls=true"
    )
    assert asked.accept == "application/vnd.nsq; version=1.0"


def test_by_post() -> None:
    with granting(ALL) as server:
        posting = asker(server, auth_http_request_method=HttpMethod.POST)
        posting.granted("é\udcff", common_name="me & you")
        [asked] = server.asked
    assert (asked.method, asked.path, asked.raw_query) == ("POST", "/auth", "")
    assert json.loads(asked.body) == {
        "common_name": ["me & you"],
        "remote_ip": ["127.0.0.1"],
        "secret": ["é\ufffd"],
        "tls": ["false"],
    }


@pytest.mark.parametrize(
    ("url", "path", "query"),
    [
        ("http://{}/some/where", "/some/where", "common_name="),
        ("http://{}", "/", "common_name="),
        ("http://{}/a?key=1", "/a", "key=1&common_name="),
    ],
)
def test_a_whole_url(url: str, path: str, query: str) -> None:
    with granting(ALL) as server:
        asker(url.format(server.address)).granted()
        [asked] = server.asked
    assert asked.path == path
    assert asked.raw_query.startswith(query)


@pytest.mark.parametrize(
    "address", ["ftp://a/b", "://", "http://", "a:b", "a:70000", "", "http://[::1", "a:0"]
)
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigError, match="auth_http_addresses has"):
        asker(address)


def test_servers_are_started_from_at_random_and_the_next_is_asked_when_one_fails() -> None:
    random.seed(7)
    with granting(ALL) as good, AuthServer(lambda asked: (500, {})) as bad:
        several = asker(bad, good)
        for _ in range(30):
            several.granted()
        assert len(good.asked) == 30
        assert 0 < len(bad.asked) < 30


# --- answers -----------------------------------------------------------------------------------


def test_what_a_client_is_answered() -> None:
    with granting(ALL, ALL, identity="me & you", identity_url="http://localhost/me") as server:
        grants = asker(server).granted()
    assert grants.identity == "me & you"
    assert grants.answer() == (
        b'{"identity":"me \\u0026 you","identity_url":"http://localhost/me","permission_count":2}'
    )


def test_an_answer_holds_for_its_ttl() -> None:
    with granting(ALL, ttl=60) as server:
        asking = asker(server)
        grants = asking.granted()
    assert not grants.expired(asking.clock.at_ns)
    assert not grants.expired(asking.clock.at_ns + 60 * SECOND_NS)
    assert grants.expired(asking.clock.at_ns + 60 * SECOND_NS + 1)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"ttl": 60, "authorizations": []}),
        (200, {"ttl": 60, "authorizations": None}),
        (200, {"ttl": 60}),
    ],
    ids=str,
)
def test_no_authorizations(answer: tuple[int, Any]) -> None:
    with AuthServer(lambda asked: answer) as server:
        assert asker(server).ask() == NOTHING


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}),
        (404, b"not found"),
        (302, b""),
        (204, b""),
        (403, b"forbidden"),
        (403, {"https_port": "443"}),
        (403, {"https_port": True}),
        (403, {"https_port": 65_536}),
        (403, []),
        (200, b""),
        (200, b"null"),
        (200, b"not json"),
        (200, []),
        (200, b"x" * 2_000_000),
        (200, {"ttl": 0, "authorizations": [ALL]}),
        (200, {"ttl": -1, "authorizations": [ALL]}),
        (200, {"authorizations": [ALL]}),
        (200, {"ttl": "60", "authorizations": [ALL]}),
        (200, {"ttl": 60, "authorizations": ALL}),
        (200, {"ttl": 60, "authorizations": ["all"]}),
        (200, {"ttl": 60, "authorizations": [None]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"permissions": ["administer"]}]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"permissions": "publish"}]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"topic": "("}]}),
        (200, {"ttl": 60, "authorizations": [ALL | {"channels": ["*"]}]}),
    ],
    ids=lambda answer: f"{answer[0]} {str(answer[1])[:60]}",
)
def test_an_answer_that_cannot_be_used(
    answer: tuple[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with AuthServer(lambda asked: answer) as server:
        assert asker(server).ask() == FAILED
    assert "failed to auth against 127.0.0.1 - " in caplog.text
    assert "no auth server gave an answer that can be used" in caplog.text


def test_a_server_that_is_not_there() -> None:
    with granting(ALL) as server:
        gone = server.address
    assert asker(gone).ask() == FAILED


@contextmanager
def trickling(first: bytes) -> Iterator[str]:
    """A server that begins an answer and then sends a byte whenever the client waits for one."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        line, _ = listener.accept()
        with line:
            line.recv(65_536)
            try:
                line.sendall(first)
                while not over.wait(0.01):
                    line.sendall(b" ")
            except OSError:
                pass  # the client hung up, as it should

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=repr
)
def test_a_server_that_trickles_is_given_up(first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with trickling(first) as address:
        assert asker(address, http_client_request_timeout_ms=100).ask() == FAILED
    assert "timed out" in caplog.text


def test_who_waited_too_long_for_others_does_not_wait_for_a_server_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with granting(ALL) as server:
        asking = asker(server)
        asking.submit()
        asking.clock.at_ns += 5 * SECOND_NS + 1
        asking.pool.run()
        assert not server.asked
    [(grants, error)] = asking.told
    assert grants is None
    assert str(error) == FAILED
    assert "waited 5.0 s for others" in caplog.text


def test_a_mistake_of_ours_ends_the_one_connection_loudly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> Grants:
        raise AssertionError("no such thing")

    with granting(ALL) as server:
        asking = asker(server)
        monkeypatch.setattr(Authorizer, "_read_answer", broken)
        assert asking.ask() == FAILED
    assert "AssertionError: no such thing" in caplog.text


# --- https -------------------------------------------------------------------------------------


@pytest.fixture
def https(certificates: Certificates) -> Callable[[AuthServer], str]:
    """Puts a running server behind TLS; gives its address."""

    def secure(server: AuthServer) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.server_cert, certificates.server_key)
        assert server._server is not None
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        return server.address

    return secure


def test_https_is_verified(
    https: Callable[[AuthServer], str],
    certificates: Certificates,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with granting(ALL) as server:
        url = f"https://{https(server)}/auth"
        asker(url, tls_root_ca_file=certificates.authority).granted()
        assert len(server.asked) == 1
        assert asker(url).ask() == FAILED
        assert len(server.asked) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


def test_a_server_that_wants_https_is_asked_again_there(
    https: Callable[[AuthServer], str], certificates: Certificates
) -> None:
    with granting(ALL) as secure:
        port = int(https(secure).rpartition(":")[2])
        with AuthServer(lambda asked: (403, {"https_port": port})) as plain:
            asker(plain, tls_root_ca_file=certificates.authority).granted("s")
        assert [asked.query["secret"] for asked in plain.asked + secure.asked] == ["s", "s"]
        assert secure.asked[0].path == "/auth"


# --- grants ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "channel", "allowed"),
    [
        ("logs", "archive", True),
        ("logs", "my.x", True),  # patterns are not anchored
        ("logs", "my.archive", False),
        ("logs2", "archive", False),
        ("logs", "", False),
        ("metrics.cpu", "", True),
        ("my.metrics", "", False),
        ("metrics", "c", False),
        ("closed", "", False),
        ("closed", "c", False),
        ("narrow", "", False),
        ("narrow", "c", True),
    ],
)
def test_what_grants_allow(topic: str, channel: str, allowed: bool) -> None:
    grants = Grants(
        "",
        "",
        (
            Authorization.of("^logs$", ["^arch", "x"], ["subscribe"]),
            Authorization.of("^metrics", [".*"], ["publish"]),
            Authorization.of("closed", [], ["publish", "subscribe"]),
            # a publish asks for channel ""
            Authorization.of("narrow", ["c"], ["publish", "subscribe"]),
        ),
        0,
    )
    assert grants.allows(topic, channel) is allowed
    assert not Grants("", "", (), 0).allows(topic, channel)


# --- the token file ----------------------------------------------------------------------------

TOKENS = """
[[token]]
secret = "from the file"
identity = "filed"
[[token.authorizations]]
topic = "^t$"
permissions = ["publish"]
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.touch(mode=0o600)
    path.write_text(TOKENS)
    return path


def test_a_token_file_alone(tokens: Path) -> None:
    asking = Asker(Settings(auth_token_file=tokens))
    grants = asking.granted("from the file")
    assert grants.answer() == b'{"identity":"filed","identity_url":"","permission_count":1}'
    assert grants.allows("t", "")
    assert not grants.allows("t", "c")
    assert asking.ask("of nobody") == NOTHING


def test_a_token_that_was_taken_out_ends_within_a_minute(tokens: Path) -> None:
    asking = Asker(Settings(auth_token_file=tokens))
    grants = asking.granted("from the file")
    tokens.write_text("")
    asking.clock.at_ns += 60 * SECOND_NS
    assert not grants.expired(asking.clock.at_ns)
    asking.clock.at_ns += 1
    assert grants.expired(asking.clock.at_ns)
    assert asking.ask("from the file") == NOTHING


def test_the_file_comes_before_servers(tokens: Path) -> None:
    with granting(ALL, identity="served") as server:
        both = asker(server, auth_token_file=tokens)
        assert both.granted("from the file").identity == "filed"
        assert not server.asked
        assert both.granted("from elsewhere").identity == "served"
    assert both.ask("from elsewhere") == FAILED
    assert both.granted("from the file").identity == "filed"


def test_a_wrong_file_stops_the_start(tokens: Path) -> None:
    tokens.write_text("[[token]]")
    with pytest.raises(ConfigError, match="auth_token_file"):
        Asker(Settings(auth_token_file=tokens))


# --- the real pool -----------------------------------------------------------------------------


def test_answers_come_back_on_the_loop_while_it_goes_on() -> None:
    woken = threading.Semaphore(0)
    drains: list[Callable[[], None]] = []

    def call_soon_threadsafe(drain: Callable[[], None]) -> None:
        drains.append(drain)
        woken.release()

    pool = DiskPool(2, call_soon_threadsafe)
    released = threading.Event()

    def answer(asked: object) -> tuple[int, Any]:
        released.wait(30)
        return 200, {"ttl": 1, "authorizations": [ALL]}

    try:
        with AuthServer(answer) as server:
            settings = Settings(auth_http_addresses=(server.address,))
            authorizer = Authorizer.from_settings(settings, pool)
            assert authorizer is not None
            told: list[int] = []
            for _ in range(2):
                authorizer.authorize(
                    "s", "127.0.0.1", False, "", lambda *_: told.append(threading.get_ident())
                )
            assert told == []
            released.set()
            while len(told) < 2:
                assert woken.acquire(timeout=30)
                drains.pop(0)()
            assert told == [threading.get_ident()] * 2
    finally:
        released.set()
        pool.close()


def test_a_password_in_a_url_is_sent_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with AuthServer(lambda asked: (500, {})) as server:
        assert asker(f"http://user:hidden@{server.address}/").ask() == FAILED
        assert len(server.asked) == 1
    assert "hidden" not in caplog.text
