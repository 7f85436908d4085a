"""The name server's HTTP door: nsqlookupd's API on an HTTP server. What is answered is said in
``answers``; here it becomes JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from penstock.clock import Clock
from penstock.http.answers import JSON
from penstock.http.request import Request
from penstock.http.routes import Route, Routes
from penstock.http.server import HttpServer
from penstock.lookup.answers import HANDLERS, Asked, Handler
from penstock.lookup.registry import Registry
from penstock.protocol.nsq import NSQD_VERSION


class LookupHttpDoor(HttpServer):
    """nsqlookupd's HTTP API."""

    def __init__(self, registry: Registry, clock: Clock, shutdown_timeout_s: float) -> None:
        table = {
            path.encode(): {method.encode(): Route(_carry_out(handler))}
            for path, (method, handler) in HANDLERS.items()
        }
        super().__init__(Routes(table), clock, shutdown_timeout_s)
        self.registry = registry


def _carry_out(handler: Handler) -> Callable[[Request], None]:
    def carry_out(request: Request) -> None:
        door = cast("LookupHttpDoor", request.connection.door)
        clock = door.clock
        asked = Asked(
            door.registry, request.query, NSQD_VERSION, clock.monotonic_ns(), clock.now_ns()
        )
        value = handler(asked)
        if value is None:
            request.answer()
        elif isinstance(value, str):
            request.answer(value.encode(), headers="")
        else:
            request.answer(json.dumps(value, separators=(",", ":")).encode(), JSON)

    return carry_out
