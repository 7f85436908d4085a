"""nsqlookupd's HTTP API: what each path answers, in status and value."""

from __future__ import annotations

import pytest

from penstock.http.answers import Refused
from penstock.lookup.answers import HANDLERS, Asked
from penstock.lookup.registry import Producer, Registry
from penstock.protocol.lookup import Node

S = 1_000_000_000
A = {
    "remote_address": "10.0.0.1:5000",
    "hostname": "host-a",
    "broadcast_address": "a",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


@pytest.fixture
def registry() -> Registry:
    """Broker a with topic t and channel c, and topic u."""
    made = Registry()
    one = Producer("10.0.0.1:5000", Node("a", "host-a", 4150, 4151, "1.3.0"), 100 * S)
    made.add(one)
    made.register(one, "t", "c")
    made.register(one, "u", "")
    return made


def ask(registry: Registry, method: str, url: str, at_s: int = 101) -> object:
    path, _, query = url.partition("?")
    expected, handler = HANDLERS[path]
    assert method == expected
    return handler(Asked(registry, query.encode(), "1.3.0", at_s * S, (at_s + 5_000) * S))


def get(registry: Registry, url: str, at_s: int = 101) -> object:
    return ask(registry, "GET", url, at_s)


def post(registry: Registry, url: str) -> None:
    assert ask(registry, "POST", url) is None


def test_what_is_there(registry: Registry) -> None:
    assert get(registry, "/ping") == "OK"
    assert get(registry, "/info") == {"version": "1.3.0"}
    assert get(registry, "/topics") == {"topics": ["t", "u"]}
    assert get(registry, "/channels?topic=t") == {"channels": ["c"]}
    assert get(registry, "/channels?topic=nowhere") == {"channels": []}
    assert get(registry, "/lookup?topic=t") == {"channels": ["c"], "producers": [A]}
    assert get(registry, "/nodes") == {
        "producers": [A | {"topics": ["t", "u"], "tombstones": [False, False]}]
    }
    assert get(registry, "/nodes", at_s=401) == {"producers": []}
    assert get(registry, "/lookup?topic=t", at_s=401) == {"channels": ["c"], "producers": []}


def test_by_hand(registry: Registry) -> None:
    post(registry, "/topic/create?topic=new")
    assert get(registry, "/lookup?topic=new") == {"channels": [], "producers": []}
    post(registry, "/channel/create?topic=newer&channel=d")
    assert get(registry, "/channels?topic=newer") == {"channels": ["d"]}
    post(registry, "/channel/delete?topic=t&channel=c")
    assert get(registry, "/lookup?topic=t") == {"channels": [], "producers": [A]}
    post(registry, "/topic/delete?topic=t")
    post(registry, "/topic/delete?topic=t")
    assert get(registry, "/topics") == {"topics": ["u", "new", "newer"]}
    registry.verify()


def test_tombstones(registry: Registry) -> None:
    post(registry, "/topic/tombstone?topic=u&node=a:4151")
    assert get(registry, "/lookup?topic=u") == {"channels": [], "producers": []}
    nodes = get(registry, "/nodes")
    assert nodes == {"producers": [A | {"topics": ["t", "u"], "tombstones": [False, True]}]}
    assert get(registry, "/lookup?topic=u", at_s=146) == {"channels": [], "producers": [A]}
    post(registry, "/topic/tombstone?topic=u&node=nobody:1")


def test_debug_shows_all_with_people_s_time(registry: Registry) -> None:
    post(registry, "/topic/tombstone?topic=u&node=a:4151")
    one = {"id": "10.0.0.1:5000"} | A | {"last_update": 5_100 * S}
    del one["remote_address"]
    alive = one | {"tombstoned": False, "tombstoned_at": 0}
    buried = one | {"tombstoned": True, "tombstoned_at": 5_101 * S}
    shown = {"client::": [alive], "topic:t:": [alive], "channel:t:c": [alive], "topic:u:": [buried]}
    assert get(registry, "/debug") == shown


@pytest.mark.parametrize(
    ("request_line", "status", "sign"),
    [
        ("GET /lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET /lookup?topic", 404, "TOPIC_NOT_FOUND"),
        ("GET /lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET /lookup?topic=a;b", 400, "INVALID_REQUEST"),
        ("GET /channels", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/create?topic=a/b", 400, "INVALID_ARG_TOPIC"),
        ("POST /topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/tombstone?node=a:1", 400, "MISSING_ARG_TOPIC"),
        ("POST /topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST /channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST /channel/create?topic=t&channel=", 400, "INVALID_ARG_CHANNEL"),
        ("POST /channel/delete?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("POST /channel/delete?topic=t&channel=d", 404, "CHANNEL_NOT_FOUND"),
    ],
)
def test_what_is_refused(registry: Registry, request_line: str, status: int, sign: str) -> None:
    method, url = request_line.split(" ")
    with pytest.raises(Refused) as caught:
        ask(registry, method, url)
    assert (caught.value.status, caught.value.code) == (status, sign)


def test_a_query_that_nobody_reads_may_be_anything(registry: Registry) -> None:
    for path in ("/ping", "/info", "/topics", "/nodes", "/debug"):
        assert ask(registry, "GET", f"{path}?%zz;")
