"""An HTTP auth server as nsqd's users run one.

It answers what the test says and keeps what it was asked.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

ALL = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


class Asked(NamedTuple):
    method: str
    path: str
    raw_query: str
    query: dict[str, str]
    accept: str | None
    body: bytes


class AuthServer:
    """`answer` is called with what was asked and gives (status, JSON value)."""

    def __init__(self, answer: Callable[[Asked], tuple[int, Any]]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base's name
                pass

            def serve(self) -> None:
                parts = urlsplit(self.path)
                fields = parse_qs(parts.query, keep_blank_values=True)
                asked = Asked(
                    self.command,
                    parts.path,
                    parts.query,
                    {name: values[0] for name, values in fields.items()},
                    self.headers.get("Accept"),
                    self.rfile.read(int(self.headers.get("Content-Length") or 0)),
                )
                outer.asked.append(asked)
                status, value = outer.answer(asked)
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = serve  # noqa: N815  the base's names
            do_POST = serve  # noqa: N815  the base's names

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None and self._thread is not None
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def granting(*authorizations: dict[str, Any], ttl: int = 3600, **more: Any) -> AuthServer:
    """A server that gives everybody the same."""
    value = {"ttl": ttl, "authorizations": list(authorizations)} | more
    return AuthServer(lambda asked: (200, value))
