"""One request to the broker: answered at once, or when a turn is over (``when``), or when a topic
is open (``topic``, which calls the handler anew).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.broker.lanes import Turn
from penstock.broker.topic import Topic
from penstock.errors import PenstockError
from penstock.http import request
from penstock.http.answers import Refused
from penstock.http.connection import Connection

if TYPE_CHECKING:
    from penstock.doors.http.door import HttpDoor


class Request(request.Request):
    """A whole request, and what its answer waits for."""

    __slots__ = ("failure", "success", "turn")

    def __init__(self, connection: Connection, method: bytes, path: bytes, query: bytes) -> None:
        super().__init__(connection, method, path, query)
        self.turn: Turn | None = None
        self.success = b""
        self.failure: Refused | None = None

    @property
    def door(self) -> HttpDoor:
        return cast("HttpDoor", self.connection.door)

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
