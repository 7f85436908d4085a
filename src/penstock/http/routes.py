"""Method and path to a handler, and how large a body it takes.

A path that is not in the table is 404, or a redirect if only a slash at its end is wrong; a method
that its path does not have 405 with the ones it has, and OPTIONS says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.http.answers import HTML, Refused

if TYPE_CHECKING:
    from penstock.http.request import Request

BODY_IGNORED_BYTES_MAX = 256 * 1024  # of a route that takes none, and of what was refused


class Route(NamedTuple):
    """Who answers a request (of its server's own class). A body beyond ``body_bytes_max`` is
    refused as ``too_big``."""

    handler: Callable[[Any], None]
    body_bytes_max: int = BODY_IGNORED_BYTES_MAX
    too_big: str = "BODY_TOO_BIG"


Methods = Mapping[bytes, Route]


class Routes:
    """The table; paths that end in a slash stand for all below them."""

    def __init__(
        self, exact: Mapping[bytes, Methods], below: Mapping[bytes, Methods] | None = None
    ) -> None:
        self.exact = exact
        self.below = below or {}

    def find(self, method: bytes, path: bytes) -> Route | Refused:
        methods = self.exact.get(path)
        if methods is None:
            folder, slash, name = path.rpartition(b"/")
            methods = self.below.get(folder + slash) if name else None
            if methods is None:
                other = path[:-1] if path.endswith(b"/") else path + b"/"
                if method in self.exact.get(other, ()):
                    return Route(_moved_to(other))
                return Refused(404, "NOT_FOUND")
        route = methods.get(method)
        if route is not None:
            return route
        allowed = b", ".join(sorted([*methods, b"OPTIONS"])).decode()
        if method == b"OPTIONS":
            return Route(_allowing(allowed))
        return Refused(405, "METHOD_NOT_ALLOWED", f"Allow: {allowed}\r\n")


def _moved_to(path: bytes) -> Callable[[Request], None]:
    def handler(request: Request) -> None:
        place = (path + b"?" + request.query if request.query else path).decode("latin-1")
        status, body = 308, b""
        if request.method == b"GET":
            status, body = 301, f'<a href="{escape(place)}">Moved Permanently</a>.\n\n'.encode()
        request.answer(body, HTML, status, f"Location: {place}\r\n")

    return handler


def _allowing(methods: str) -> Callable[[Request], None]:
    def handler(request: Request) -> None:
        request.answer(headers=f"Allow: {methods}\r\n")

    return handler
