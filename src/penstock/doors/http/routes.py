"""What there is: method and path to a handler, and how large a body it takes.

The table is nsqd's. A path that is not in it is 404, a method that its path does not have 405 with
the ones it has, and OPTIONS says the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.config import Settings
from penstock.doors.http import about, administration, debugging, options, publishing, stats
from penstock.doors.http.answers import Refused
from penstock.doors.http.request import Request

BODY_IGNORED_BYTES_MAX = 256 * 1024  # of a route that takes none, and of what was refused


class Route(NamedTuple):
    """Who answers. A body beyond ``body_bytes_max`` is refused as ``too_big``."""

    handler: Callable[[Request], None]
    body_bytes_max: int = BODY_IGNORED_BYTES_MAX
    too_big: str = "BODY_TOO_BIG"


Methods = dict[bytes, Route]


class Routes:
    """The table; paths that end in a slash stand for all below them."""

    def __init__(self, settings: Settings) -> None:
        self.exact: dict[bytes, Methods] = _table(settings)
        option = Route(options.option, settings.max_msg_size, "INVALID_VALUE")
        self.below: dict[bytes, Methods] = {
            b"/config/": {b"GET": option, b"PUT": option},
        }

    def find(self, method: bytes, path: bytes) -> Route | Refused:
        methods = self.exact.get(path)
        if methods is None:
            folder, slash, name = path.rpartition(b"/")
            methods = self.below.get(folder + slash) if name else None
            if methods is None:
                return Refused(404, "NOT_FOUND")
        route = methods.get(method)
        if route is not None:
            return route
        allowed = b", ".join(sorted([*methods, b"OPTIONS"])).decode()
        if method == b"OPTIONS":
            return Route(about.allowing(allowed))
        return Refused(405, "METHOD_NOT_ALLOWED", f"Allow: {allowed}\r\n")


def _table(settings: Settings) -> dict[bytes, Methods]:
    table: dict[bytes, Methods] = {
        b"/ping": {b"GET": Route(about.ping)},
        b"/info": {b"GET": Route(about.info)},
        b"/stats": {b"GET": Route(stats.stats)},
        b"/pub": {b"POST": Route(publishing.pub, settings.max_msg_size, "MSG_TOO_BIG")},
        b"/mpub": {b"POST": Route(publishing.mpub, settings.max_body_size)},
    }
    for path, handler in administration.HANDLERS.items():
        table[path] = {b"POST": Route(handler)}
    for path, methods in debugging.HANDLERS.items():
        table[path] = {method: Route(handler) for method, handler in methods.items()}
    return table
