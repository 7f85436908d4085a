"""One question to HTTP auth servers, as nsqd asks it: who has this secret, and what may they do?

Blocking, for a pool's thread: the standard library's HTTP client with nsqd's two time limits around
it, one for connecting, one for the whole of a request, which a server that trickles its answer
cannot stretch. Proxies of the environment are not used and redirections not followed: the secret
goes where the setting says. What the answer means is for ``auth``.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from penstock.config import HttpMethod
from penstock.errors import ConfigError, OperatingError
from penstock.limits import MIB

log = logging.getLogger("penstock.auth")

T = TypeVar("T")

_ACCEPT = "application/vnd.nsq; version=1.0"
_ANSWER_BYTES_MAX = 1 * MIB
_ANSWER_SHOWN_CHARS_MAX = 200
_FORBIDDEN = 403


@dataclass(frozen=True, slots=True)
class Question:
    """Who wants to come in."""

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


@dataclass(frozen=True, slots=True)
class AuthServers:
    """Where auth servers are, and how they are asked."""

    urls: tuple[SplitResult, ...]
    method: HttpMethod
    connect_timeout_s: float
    request_timeout_s: float
    tls: ssl.SSLContext

    def ask(self, question: Question, read: Callable[[bytes], T]) -> T:
        """What ``read`` makes of the first answer that it can use, starting with any server.

        ``read`` raises ValueError for an answer that it cannot use.
        """
        start = random.randrange(len(self.urls))
        for url in self.urls[start:] + self.urls[:start]:
            try:
                return read(self._ask_one(url, question))
            except (OSError, HTTPException, ValueError) as error:
                # not the whole URL, which may have a password in it
                log.warning("failed to auth against %s - %r", url.hostname, error)
        raise OperatingError("no auth server gave an answer that can be used", retry=True)

    def _ask_one(self, url: SplitResult, question: Question) -> bytes:
        status, body = self._request(url, question)
        if status == _FORBIDDEN and url.scheme == "http":
            secure = _https_port(body)
            if secure is not None:
                host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
                url = url._replace(scheme="https", netloc=f"{host}:{secure}")
                status, body = self._request(url, question)
        if status != 200:
            shown = body[:_ANSWER_SHOWN_CHARS_MAX].decode("utf-8", "replace")
            raise OSError(f"got response {status} {shown!r}")
        return body

    def _request(self, url: SplitResult, question: Question) -> tuple[int, bytes]:
        """Status and body, all of it within the time limits."""
        deadline_s = time.monotonic() + self.request_timeout_s
        host = url.hostname or ""
        port = url.port or (443 if url.scheme == "https" else 80)
        method, target, body, headers = self._spoken(url, question)
        connection = HTTPConnection(host, port)
        connected = socket.create_connection((host, port), timeout=self.connect_timeout_s)
        line = _Deadline(connected)
        try:
            if url.scheme == "https":
                line.socket = self.tls.wrap_socket(
                    connected, server_hostname=host, do_handshake_on_connect=False
                )
            line.start(deadline_s - time.monotonic())
            if isinstance(line.socket, ssl.SSLSocket):
                line.socket.do_handshake()
            connection.sock = line.socket
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer = response.read(_ANSWER_BYTES_MAX + 1)
        except (OSError, HTTPException, ValueError) as error:
            line.check(error)
            raise
        finally:
            line.stop()
            connection.close()
        line.check(None)
        if len(answer) > _ANSWER_BYTES_MAX:
            raise OSError(f"the answer has more than {_ANSWER_BYTES_MAX} bytes")
        return response.status, answer

    def _spoken(
        self, url: SplitResult, question: Question
    ) -> tuple[str, str, bytes | None, dict[str, str]]:
        """Method, target, body and headers."""
        values = {  # in the order in which nsqd writes them
            "common_name": question.common_name,
            "remote_ip": question.remote_ip,
            "secret": question.secret,
            "tls": "true" if question.tls else "false",
        }
        headers = {"Accept": _ACCEPT}
        if url.username is not None:
            user = f"{unquote(url.username)}:{unquote(url.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        path = url.path or "/"
        if self.method is HttpMethod.POST:
            headers["Content-Type"] = "application/json"
            texts = {name: [_clean(value)] for name, value in values.items()}
            target = f"{path}?{url.query}" if url.query else path
            return "POST", target, json.dumps(texts, separators=(",", ":")).encode(), headers
        # a secret may be any bytes
        query = urlencode(values, errors="surrogateescape")
        return (
            "GET",
            f"{path}?{url.query}&{query}" if url.query else f"{path}?{query}",
            None,
            headers,
        )


class _Deadline:
    """Ends what a socket does at a moment, whichever call is waiting then."""

    def __init__(self, line: socket.socket) -> None:
        self.socket = line
        self._passed = False
        self._timer: threading.Timer | None = None

    def start(self, seconds: float) -> None:
        self.socket.settimeout(None)
        self._timer = threading.Timer(max(seconds, 0.0), self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self._passed = True
        try:
            # not the TLS socket's own shutdown, which takes its state away from a reader's hands
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
        except OSError:
            # the server was faster: it has closed, or the answer was whole and we have
            pass

    def check(self, error: Exception | None) -> None:
        """TimeoutError if that is why the socket ended."""
        if self._passed:
            raise TimeoutError("timed out") from error

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.socket.close()


def parse_address(address: str) -> SplitResult:
    """An auth server's setting: host:port, or a whole URL."""
    text = address if "://" in address else f"http://{address}/auth"
    try:
        url = urlsplit(text)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return url
        reason = "it has no host" if url.scheme in ("http", "https") else "it is not http or https"
    except ValueError as error:
        reason = str(error)
    raise ConfigError(
        f"auth_http_addresses has '{address}': {reason}; write host:port or a whole URL."
    )


def _https_port(body: bytes) -> int | None:
    """Where a server that refuses plain HTTP wants to be asked."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    port = value.get("https_port") if isinstance(value, dict) else None
    return port if type(port) is int and 0 < port < 65_536 else None


def _clean(text: str) -> str:
    """JSON has no place for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
