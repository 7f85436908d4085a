"""nsqlookupd's HTTP API as a client speaks it: questions to bytes, answers to values.

In HTTP 1.0, whose answers are simply all that comes until the connection ends. Who asks sets the
time limit and bounds what it reads. Names of topics need no more escaping than their one `#`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import OperatingError
from penstock.limits import MIB
from penstock.names import is_ephemeral, is_valid_name
from penstock.protocol.lookup import PORT_MAX

ANSWER_BYTES_MAX = 4 * MIB
_SHOWN_BYTES_MAX = 200


class Place(NamedTuple):
    """Where a broker takes NSQ's protocol."""

    host: str
    port: int


def encode_question(path: str, topic: str, host: str) -> bytes:
    target = f"{path}?topic={topic.replace('#', '%23')}"
    return (
        f"GET {target} HTTP/1.0\r\nHost: {host}\r\nAccept: application/vnd.nsq; version=1.0\r\n\r\n"
    ).encode()


def decode_channels(answer: bytes) -> list[str]:
    """The channels of `/channels` that stay: ephemeral ones come with their consumers."""
    status, body = _cut(answer)
    if status != b"200":
        raise _not_meant(answer)
    return [
        name
        for name in _list(body, "channels")
        if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
    ]


def decode_brokers(answer: bytes) -> list[Place]:
    """The brokers of `/lookup`; none if nobody ever had the topic."""
    status, body = _cut(answer)
    if status == b"404":
        return []
    if status != b"200":
        raise _not_meant(answer)
    return [*_places(_list(body, "producers"))]


def _places(producers: Iterable[object]) -> Iterable[Place]:
    for one in producers:
        if isinstance(one, dict):
            host, port = one.get("broadcast_address"), one.get("tcp_port")
            if isinstance(host, str) and host and type(port) is int and 0 < port <= PORT_MAX:
                yield Place(host, port)


def _cut(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise _not_meant(answer)
    return words[1], body


def _not_meant(answer: bytes) -> OperatingError:
    status = answer.partition(b"\r\n")[0]
    return OperatingError(f"it answered {_shown(status)}", retry=True)


def _list(body: bytes, field: str) -> list[object]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OperatingError(f"it answered {_shown(body)}, not JSON", retry=True) from error
    found = value.get(field) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise OperatingError(f"it answered {_shown(body)}, without {field}", retry=True)
    return found


def _shown(data: bytes) -> str:
    return repr(data[:_SHOWN_BYTES_MAX].decode("utf-8", "replace"))
