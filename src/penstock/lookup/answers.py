"""nsqlookupd's HTTP API as functions of what is registered: method, path and query in, status and
value out. Pure: whoever speaks HTTP writes the value down (``None`` is an empty body, a text is
sent as it is, anything else as JSON), and the times are handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs

from penstock.lookup.registry import Producer, Registry
from penstock.names import is_valid_name


class Answer(NamedTuple):
    status: int
    value: object = None


class Refused(Exception):
    """nsqlookupd's sign for what is wrong, and its status."""

    def __init__(self, status: int, sign: str) -> None:
        super().__init__(sign)
        self.answer = Answer(status, {"message": sign})


class Asked(NamedTuple):
    """What a question is about, and when it is asked: by the clock that ages are counted with, and
    by the one that people know."""

    registry: Registry
    given: Mapping[str, list[str]]
    version: str
    monotonic_ns: int
    wall_ns: int


Route = Callable[[Asked], object]

# What Go takes for no query at all.
_BAD_QUERY = re.compile(r"%(?![0-9a-fA-F]{2})|;")


def answer(
    registry: Registry,
    version: str,
    method: str,
    path: str,
    query: str,
    monotonic_ns: int,
    wall_ns: int,
) -> Answer:
    """What nsqlookupd of that version would answer if it knew what the registry knows."""
    try:
        if path not in ROUTES:
            raise Refused(404, "NOT_FOUND")
        route = ROUTES[path].get(method)
        if route is None:
            raise Refused(405, "METHOD_NOT_ALLOWED")
        given = {} if route in _WITHOUT_PARAMETERS else _parsed(query)
        return Answer(200, route(Asked(registry, given, version, monotonic_ns, wall_ns)))
    except Refused as refused:
        return refused.answer


def _parsed(query: str) -> Mapping[str, list[str]]:
    if _BAD_QUERY.search(query):
        raise Refused(400, "INVALID_REQUEST")
    return parse_qs(query, keep_blank_values=True)


def _ping(asked: Asked) -> str:
    return "OK"


def _info(asked: Asked) -> object:
    return {"version": asked.version}


def _topics(asked: Asked) -> object:
    return {"topics": asked.registry.topics()}


def _channels(asked: Asked) -> object:
    return {"channels": asked.registry.channels(_one(asked, "topic"))}


def _lookup(asked: Asked) -> object:
    topic = _one(asked, "topic")
    if topic not in asked.registry:
        raise Refused(404, "TOPIC_NOT_FOUND")
    producers = asked.registry.producers_of(topic, asked.monotonic_ns)
    return {
        "channels": asked.registry.channels(topic),
        "producers": [_shown(producer) for producer in producers],
    }


def _nodes(asked: Asked) -> object:
    nodes = []
    for producer in asked.registry.active(asked.monotonic_ns):
        topics = asked.registry.topics_of(producer, asked.monotonic_ns)
        buried = [*topics.values()]
        nodes.append(_shown(producer) | {"tombstones": buried, "topics": [*topics]})
    return {"producers": nodes}


def _debug(asked: Asked) -> object:
    """All there is, by category, topic and channel."""
    wall_less_monotonic_ns = asked.wall_ns - asked.monotonic_ns
    found: dict[str, list[object]] = {}

    def note(key: str, producer: Producer, buried_at_ns: int | None) -> None:
        one = {"id": producer.remote_address} | _shown(producer)
        del one["remote_address"]
        one["last_update"] = producer.heard_at_ns + wall_less_monotonic_ns
        one["tombstoned"] = buried_at_ns is not None
        one["tombstoned_at"] = (buried_at_ns or 0) and buried_at_ns + wall_less_monotonic_ns
        found.setdefault(key, []).append(one)

    for producer in asked.registry.producers:
        note("client::", producer, None)
    for topic, channel, producer, buried_at_ns in asked.registry.registrations():
        category = "channel" if channel else "topic"
        note(f"{category}:{topic}:{channel}", producer, buried_at_ns)
    return found


def _make_topic(asked: Asked) -> None:
    asked.registry.make_topic(_valid(asked, "topic"))


def _delete_topic(asked: Asked) -> None:
    asked.registry.delete_topic(_one(asked, "topic"))


def _tombstone(asked: Asked) -> None:
    topic, node = _one(asked, "topic"), _one(asked, "node")
    asked.registry.tombstone(topic, node, asked.monotonic_ns)


def _make_channel(asked: Asked) -> None:
    asked.registry.make_channel(_valid(asked, "topic"), _valid(asked, "channel"))


def _delete_channel(asked: Asked) -> None:
    if not asked.registry.delete_channel(_valid(asked, "topic"), _valid(asked, "channel")):
        raise Refused(404, "CHANNEL_NOT_FOUND")


def _one(asked: Asked, name: str) -> str:
    if name not in asked.given:
        raise Refused(400, f"MISSING_ARG_{name.upper()}")
    return asked.given[name][0]


def _valid(asked: Asked, name: str) -> str:
    value = _one(asked, name)
    if not is_valid_name(value):
        raise Refused(400, f"INVALID_ARG_{name.upper()}")
    return value


def _shown(producer: Producer) -> dict[str, object]:
    node = producer.node
    return {
        "remote_address": producer.remote_address,
        "hostname": node.hostname,
        "broadcast_address": node.broadcast_address,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": node.version,
    }


_WITHOUT_PARAMETERS: tuple[Route, ...] = (_ping, _info, _topics, _nodes, _debug)

ROUTES: Mapping[str, Mapping[str, Route]] = {
    "/ping": {"GET": _ping},
    "/info": {"GET": _info},
    "/lookup": {"GET": _lookup},
    "/topics": {"GET": _topics},
    "/channels": {"GET": _channels},
    "/nodes": {"GET": _nodes},
    "/debug": {"GET": _debug},
    "/topic/create": {"POST": _make_topic},
    "/topic/delete": {"POST": _delete_topic},
    "/topic/tombstone": {"POST": _tombstone},
    "/channel/create": {"POST": _make_channel},
    "/channel/delete": {"POST": _delete_channel},
}
