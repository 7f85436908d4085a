"""HTTP from a client's side, for black-box tests: the standard library's client, and raw bytes.

site = Site(broker.http_port)
assert site.post("/pub?topic=t", b"hello") == (200, b"OK")
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from types import TracebackType
from typing import Any, NamedTuple, Self

PATIENCE_SECONDS = 25.0


class Reply(NamedTuple):
    """What came back; headers under their lower-case names."""

    status: int
    body: bytes
    headers: dict[str, str]


class Site:
    """One keep-alive connection."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.connection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
            if tls is None
            else http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=PATIENCE_SECONDS, context=tls
            )
        )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        self.connection.request(method, path, body, headers)
        response = self.connection.getresponse()
        shown = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, response.read(), shown)

    def get(self, path: str) -> tuple[int, bytes]:
        return self.ask("GET", path)[:2]

    def post(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        return self.ask("POST", path, body)[:2]

    def done(self, path: str) -> None:
        """An act that must succeed, and says nothing then."""
        assert self.post(path) == (200, b""), path

    def stats(self, **parameters: str) -> Any:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        status, body = self.get(f"/stats?format=json&{query}")
        assert status == 200
        return json.loads(body)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.connection.close()


def refusal(status: int, code: str) -> tuple[int, bytes]:
    return status, f'{{"message":"{code}"}}'.encode()


class RawSite:
    """Bytes out, answers in."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self.file = self.socket.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def reply(self) -> Reply:
        line = self.file.readline()
        assert line.startswith(b"HTTP/1."), line
        headers: dict[str, str] = {}
        while (header := self.file.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = self.file.read(int(headers.get("content-length", "0")))
        return Reply(int(line.split()[1]), body, headers)

    def ended(self) -> bool:
        """Whether the broker has nothing more to say."""
        return self.file.read(1) == b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.file.close()
        self.socket.close()
