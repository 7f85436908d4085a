"""AUTH: who a client is and what it may do, by a token file, by HTTP auth servers, or by both.

Stands beside the connection, which asks at AUTH and again when what it was told has expired. Asking
means reading a file or waiting for a server, so it happens on a pool's threads; the answer comes
back on the loop. With both, the file is looked at first, and servers are asked for secrets that
it does not have. What a client may be told of a failure is only that; the reason is in the log.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable

from penstock.clock import Clock, SystemClock
from penstock.config import Settings
from penstock.doors.nsq.authserver import AuthServers, Question, parse_address
from penstock.doors.nsq.gojson import Kind, decode, fields
from penstock.doors.nsq.grants import Authorization, Grants
from penstock.doors.nsq.tokens import TokenFile
from penstock.errors import OperatingError, PeerError
from penstock.runtime.pool import Pool
from penstock.runtime.tlscontext import trust

__all__ = ["Authorizer", "Grants"]

log = logging.getLogger("penstock.auth")

# how long a connection goes by what the token file said: a token that was taken out ends then
_FILE_TTL_S = 60
_SECOND_NS = 1_000_000_000

Then = Callable[[Grants | None, PeerError | None], None]


class Authorizer:
    """Asks; the only one of a broker."""

    def __init__(
        self, tokens: TokenFile | None, servers: AuthServers | None, pool: Pool, clock: Clock
    ) -> None:
        self._tokens = tokens
        self._servers = servers
        self._pool = pool
        self._clock = clock

    @classmethod
    def from_settings(
        cls, settings: Settings, pool: Pool, clock: Clock | None = None
    ) -> Authorizer | None:
        """None if nobody needs to authenticate; ConfigError for a file or address that is wrong.

        The pool must not be the disk's: a server that does not answer would hold up commits.
        """
        clock = clock or SystemClock()
        tokens = TokenFile(settings.auth_token_file, clock) if settings.auth_token_file else None
        servers = _servers(settings) if settings.auth_http_addresses else None
        return cls(tokens, servers, pool, clock) if tokens or servers else None

    def authorize(
        self, secret: str, remote_ip: str, tls: bool, common_name: str, then: Then
    ) -> None:
        """Ask; ``then`` is called on the loop with grants that are not empty, or with an error.

        A secret that is not UTF-8 comes in as ``surrogateescape`` has it.
        """
        question = Question(secret, remote_ip, tls, common_name)
        asked_at_ns = self._clock.monotonic_ns()

        def told(grants: Grants | None, failure: Exception | None) -> None:
            if isinstance(failure, PeerError):
                then(None, failure)
            elif failure is not None or grants is None:
                if isinstance(failure, OperatingError):
                    log.warning("AUTH of %s failed: %s", remote_ip, failure)
                else:
                    log.error("AUTH of %s failed", remote_ip, exc_info=failure)
                then(None, PeerError("E_AUTH_FAILED", "AUTH failed"))
            else:
                then(grants, None)

        self._pool.submit(lambda: self._ask(question, asked_at_ns), told)

    def _ask(self, question: Question, asked_at_ns: int) -> Grants:
        """In a pool's thread."""
        token = self._tokens.find(question.secret) if self._tokens else None
        if token is not None:
            return Grants(
                token.identity, token.identity_url, token.authorizations, self._in(_FILE_TTL_S)
            )
        if self._servers is not None:
            self._check_patience(self._servers, asked_at_ns)
            grants = self._servers.ask(question, self._read_answer)
            if grants:
                return grants
        raise PeerError("E_UNAUTHORIZED", "AUTH no authorizations found")

    def _check_patience(self, servers: AuthServers, asked_at_ns: int) -> None:
        """Slow servers must not make a queue of clients who have long given up."""
        waited_s = (self._clock.monotonic_ns() - asked_at_ns) / _SECOND_NS
        if waited_s > servers.request_timeout_s:
            raise OperatingError(
                f"it waited {waited_s:.1f} s for others, because auth servers answer too slowly",
                retry=True,
            )

    def _read_answer(self, body: bytes) -> Grants:
        """What an auth server said; ValueError if it cannot be used."""
        answer = decode(body, _ANSWER)
        ttl_s, lines = answer.get("ttl", 0), answer.get("authorizations", [])
        assert isinstance(ttl_s, int) and isinstance(lines, list)
        authorizations = tuple(map(_authorization, lines))
        if ttl_s <= 0:
            raise ValueError(f"invalid TTL {ttl_s} (must be >0)")
        identity, url = answer.get("identity", ""), answer.get("identity_url", "")
        return Grants(str(identity), str(url), authorizations, self._in(ttl_s))

    def _in(self, seconds: int) -> int:
        return self._clock.monotonic_ns() + seconds * _SECOND_NS


_ANSWER = {
    "ttl": Kind.INT64,
    "identity": Kind.TEXT,
    "identity_url": Kind.TEXT,
    "authorizations": Kind.OBJECTS,
}
_AUTHORIZATION = {"topic": Kind.TEXT, "channels": Kind.TEXTS, "permissions": Kind.TEXTS}


def _authorization(value: object) -> Authorization:
    found = fields(value, _AUTHORIZATION)
    channels, permissions = found.get("channels", []), found.get("permissions", [])
    assert isinstance(channels, list) and isinstance(permissions, list)
    return Authorization.of(str(found.get("topic", "")), channels, permissions)


def _servers(settings: Settings) -> AuthServers:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(context, settings.tls_root_ca_file, ssl.Purpose.SERVER_AUTH)
    return AuthServers(
        urls=tuple(map(parse_address, settings.auth_http_addresses)),
        method=settings.auth_http_request_method,
        connect_timeout_s=settings.http_client_connect_timeout_ms / 1000,
        request_timeout_s=settings.http_client_request_timeout_ms / 1000,
        tls=context,
    )
