"""/ping and /info: whether the broker is well, and what it is."""

from __future__ import annotations

import json
import socket

from penstock.doors.http.request import Request
from penstock.http.answers import JSON
from penstock.protocol.nsq import NSQD_VERSION

_MS_NS = 1_000_000


def ping(request: Request) -> None:
    health = request.door.health()
    request.answer(health.encode(), status=200 if health == "OK" else 500, headers="")


def info(request: Request) -> None:
    door = request.door
    settings = door.settings
    hostname = socket.gethostname()
    document = {
        "version": NSQD_VERSION,
        "broadcast_address": settings.broadcast_address or hostname,
        "hostname": hostname,
        "http_port": door.http_port,
        "tcp_port": door.tcp_port(),
        "start_time": door.started_at_ns // 1_000_000_000,
        "max_heartbeat_interval": settings.max_heartbeat_interval_ms * _MS_NS,
        "max_output_buffer_size": settings.max_output_buffer_size,
        "max_output_buffer_timeout": settings.max_output_buffer_timeout_ms * _MS_NS,
        "max_deflate_level": settings.max_deflate_level,
    }
    request.answer(json.dumps(document, separators=(",", ":")).encode(), JSON)
