"""One request on its way: what was asked, and what its handler does to answer it.

A handler answers at once, or later: when a turn is over (``when``), or when a topic is open
(``again``, which calls it anew). It raises ``Refused`` for an error. An answer to a connection that
is gone goes nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.lanes import Turn
from penstock.broker.topic import Topic
from penstock.doors.http.answers import JSON, NSQ, TEXT, Refused
from penstock.doors.http.parameters import Parameters, parse_query
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.doors.http.connection import Connection
    from penstock.doors.http.door import HttpDoor
    from penstock.doors.http.routes import Route


class Request:
    """A whole request. ``old`` is HTTP/1.0; ``keep``: the connection stays open behind it."""

    __slots__ = (
        "answered",
        "body",
        "connection",
        "failure",
        "keep",
        "method",
        "old",
        "path",
        "query",
        "route",
        "success",
        "turn",
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
        self.turn: Turn | None = None
        self.success = b""
        self.failure: Refused | None = None

    @property
    def door(self) -> HttpDoor:
        return self.connection.door

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

    def when(self, turn: Turn, failure: Refused, success: bytes = b"") -> None:
        """Answer when the turn is over: what was asked for is safe then."""
        self.turn, self.failure, self.success = turn, failure, success
        if turn.over:
            self.turn_over()
        else:
            turn.waiters.append(self)

    def turn_over(self) -> None:
        assert self.turn is not None and self.failure is not None
        if self.turn.error is None:
            self.answer(self.success)
        else:
            self.refuse(self.failure)

    # -- topics

    def topic(self, name: str, failure: Refused) -> Topic | None:
        """The topic, made if nobody has used it; None: the handler is called again when it is
        open, or ``failure`` is the answer."""
        host = self.door.host
        topic = host.broker.topics.get(name)
        if topic is not None:
            return topic

        def then(topic: Topic | None, error: PenstockError | None) -> None:
            if topic is None:
                self.refuse(failure)
            else:
                self.again()

        return host.topic(name, then)

    def existing_topic(self, name: str) -> Topic | None:
        """The same, for one that there is; else that is the answer."""
        broker = self.door.host.broker
        if name not in broker.topics and name not in broker.known:
            raise Refused(404, "TOPIC_NOT_FOUND")
        return self.topic(name, Refused(500, "INTERNAL_ERROR"))

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
