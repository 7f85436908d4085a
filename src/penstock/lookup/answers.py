"""nsqlookupd's HTTP API as functions of what is registered. Pure: whoever speaks HTTP finds the
function by method and path (``HANDLERS``) and writes down what it returns (``None`` is an empty
body, a text is sent as it is, anything else as JSON), or the ``Refused`` that it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.http.answers import Refused
from penstock.http.parameters import Parameters, parse_query, topic_and_channel_of
from penstock.lookup.registry import Producer, Registry
from penstock.names import is_valid_name


class Asked(NamedTuple):
    """What a question is about, and when it is asked: by the clock that ages are counted with, and
    by the one that people know."""

    registry: Registry
    query: bytes
    version: str
    monotonic_ns: int
    wall_ns: int

    @property
    def given(self) -> Parameters:
        return parse_query(self.query)


Handler = Callable[[Asked], object]


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
    topic = _one(asked, "topic")
    if not is_valid_name(topic):
        raise Refused(400, "INVALID_ARG_TOPIC")
    asked.registry.make_topic(topic)


def _delete_topic(asked: Asked) -> None:
    asked.registry.delete_topic(_one(asked, "topic"))


def _tombstone(asked: Asked) -> None:
    topic, node = _one(asked, "topic"), _one(asked, "node")
    asked.registry.tombstone(topic, node, asked.monotonic_ns)


def _make_channel(asked: Asked) -> None:
    asked.registry.make_channel(*topic_and_channel_of(asked.given))


def _delete_channel(asked: Asked) -> None:
    if not asked.registry.delete_channel(*topic_and_channel_of(asked.given)):
        raise Refused(404, "CHANNEL_NOT_FOUND")


def _one(asked: Asked, name: str) -> str:
    value = asked.given.get(name)
    if value is None:
        raise Refused(400, f"MISSING_ARG_{name.upper()}")
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


HANDLERS: Mapping[str, tuple[str, Handler]] = {
    "/ping": ("GET", _ping),
    "/info": ("GET", _info),
    "/lookup": ("GET", _lookup),
    "/topics": ("GET", _topics),
    "/channels": ("GET", _channels),
    "/nodes": ("GET", _nodes),
    "/debug": ("GET", _debug),
    "/topic/create": ("POST", _make_topic),
    "/topic/delete": ("POST", _delete_topic),
    "/topic/tombstone": ("POST", _tombstone),
    "/channel/create": ("POST", _make_channel),
    "/channel/delete": ("POST", _delete_channel),
}
