"""What there is: nsqd's table, and what only Penstock has."""

from __future__ import annotations

from penstock.config import Settings
from penstock.doors.http import (
    about,
    administration,
    debugging,
    health,
    metrics,
    options,
    publishing,
    stats,
)
from penstock.http.routes import Methods, Route, Routes


def routes(settings: Settings) -> Routes:
    option = Route(options.option, settings.max_msg_size, "INVALID_VALUE")
    return Routes(_table(settings), {b"/config/": {b"GET": option, b"PUT": option}})


def _table(settings: Settings) -> dict[bytes, Methods]:
    table: dict[bytes, Methods] = {
        b"/ping": {b"GET": Route(about.ping)},
        b"/info": {b"GET": Route(about.info)},
        b"/stats": {b"GET": Route(stats.stats)},
        b"/metrics": {b"GET": Route(metrics.metrics)},
        b"/health": {b"GET": Route(health.ready)},
        b"/health/ready": {b"GET": Route(health.ready)},
        b"/health/live": {b"GET": Route(health.live)},
        b"/pub": {b"POST": Route(publishing.pub, settings.max_msg_size, "MSG_TOO_BIG")},
        b"/mpub": {b"POST": Route(publishing.mpub, settings.max_body_size)},
    }
    for path, handler in administration.HANDLERS.items():
        table[path] = {b"POST": Route(handler)}
    for path, methods in debugging.HANDLERS.items():
        table[path] = {method: Route(handler) for method, handler in methods.items()}
    return table
