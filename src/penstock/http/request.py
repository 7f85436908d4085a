"""One request on its way: what was asked, and what its handler does to answer it.

A handler answers at once, or later. It raises ``Refused`` for an error. An answer to a connection
that is gone goes nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.http.answers import JSON, NSQ, TEXT, Refused
from penstock.http.parameters import Parameters, parse_query

if TYPE_CHECKING:
    from penstock.http.connection import Connection
    from penstock.http.routes import Route


class Request:
    """A whole request. ``old`` is HTTP/1.0; ``keep``: the connection stays open behind it."""

    __slots__ = (
        "answered",
        "body",
        "connection",
        "keep",
        "method",
        "old",
        "path",
        "query",
        "route",
    )

    def __init__(self, connection: Connection, method: bytes, path: bytes, query: bytes) -> None:
        self.connection = connection
        self.method = method
        self.path = path
        self.query = query
        self.route: Route | Refused
        self.body = b""
        self.keep = True
        self.old = False
        self.answered = False

    def parameters(self) -> Parameters:
        return parse_query(self.query)

    # -- answering

    def answer(
        self, body: bytes = b"", content_type: str = TEXT, status: int = 200, headers: str = NSQ
    ) -> None:
        if not self.answered:
            self.answered = True
            self.connection.answer(self, status, body, content_type, headers)

    def refuse(self, refused: Refused) -> None:
        self.answer(refused.body, JSON, refused.status, refused.headers + NSQ)

    def again(self) -> None:
        if not self.answered and self.connection.transport is not None:
            self.carry_out()

    def carry_out(self) -> None:
        route = self.route
        if isinstance(route, Refused):
            self.refuse(route)
            return
        try:
            route.handler(self)
        except Refused as refused:
            self.refuse(refused)
