"""However the bytes of requests are cut, the answers and the messages are the same."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.doors.http.rig import HttpRig, get, post

CHUNKED = (
    b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=y\r\none\r\n1\r\n\n\r\n3\r\ntwo\r\n0\r\nX: y\r\n\r\n"
)
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
REQUESTS = [
    get("/ping").replace(b"Host: a\r\n", b"Host: a\r\n" + UPGRADE),
    post("/pub?topic=t", b"hello").replace(b"Host: a\r\n", UPGRADE + b"Host: a\r\n"),
    CHUNKED.replace(b"Host: a\r\n", UPGRADE + b"Host: a\r\n"),
    get("/ping"),
    get("/nope"),
    get("/config/max_msg_size"),
    post("/pub?topic=t", b"hello"),
    post("/pub?topic=t", b""),
    post("/pub?topic=t", b"x" * 1001),
    post("/mpub?topic=t&binary=1", b"\0\0\0\1\0\0\0\2ok"),
    post("/mpub?topic=t&binary=1", b"\0\0\0\2\0\0\0\2ok"),
    post("/topic/create?topic=u"),
    post("/channel/create?topic=u&channel=c"),
    post("/topic/delete?topic=u"),
    b"GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    CHUNKED,
]
ENDS = [
    b"",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\nwhatever",
    post("/pub?topic=t", b"bye").replace(b"Host", b"Connection: close\r\n" + UPGRADE + b"Host"),
    b"nonsense\r\n\r\n",
    b"GET /ping HTTP/1.0\r\n\r\nnonsense\r\n\r\n",
    b"GET /ping\r\nHost: a\r\n\r\n",
    b"GET /ping HTTP/1.0\r\n\r\n",
    b"GET /ping HTTP/1.1\r\n\r\n",
    post("/pub?topic=t", b"not whole")[:-1],
    post("/nope", b"x" * 300_000),
]


def outcome(pieces: list[bytes]) -> tuple[bytes, bool, int]:
    rig = HttpRig()
    connection, line = rig.connect()
    for piece in pieces:
        if line.closed or line.half_closed:
            break
        connection.data_received(piece)
        rig.settle()
    topic = rig.host.broker.topics.get("t")
    return line.said, line.closed or line.half_closed, topic.message_count if topic else 0


@given(
    st.lists(st.sampled_from(REQUESTS), max_size=6),
    st.sampled_from(ENDS),
    st.lists(st.integers(0, 600), max_size=30),
)
def test_any_cutting_gives_the_same(requests: list[bytes], end: bytes, cuts: list[int]) -> None:
    data = b"".join(requests) + end
    places = sorted({0, len(data), *[cut for cut in cuts if cut < len(data)]})
    pieces = [data[low:high] for low, high in pairwise(places)]
    assert outcome(pieces) == outcome([data])


def test_byte_by_byte() -> None:
    data = b"".join(REQUESTS)
    assert outcome([data[at : at + 1] for at in range(len(data))]) == outcome([data])
