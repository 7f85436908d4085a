"""However the bytes of an HTTP client are cut, the answers, the messages and the end are the same,
each answer is well formed, and nothing that was taken in is held on to."""

import re

from tests.unit.doors.http.rig import HttpRig, get, post

_ANSWER = re.compile(rb"HTTP/1\.[01] [0-9]{3} [A-Za-z -]+\r\n(?:[A-Za-z-]+: [^\r\n]*\r\n)+\r\n")


def seeds() -> list[bytes]:
    """The first byte says how to cut the rest."""
    chunked = (
        b"POST /mpub?topic=t HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\none\r\n1\r\n\n\r\n3\r\ntwo\r\n0\r\nX: y\r\n\r\n"
    )
    upgrade = b"Host: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    return [
        b"\x02" + get("/ping") + post("/pub?topic=t&defer=5", b"hello") + get("/nope"),
        b"\x05" + post("/mpub?topic=t&binary=true", b"\0\0\0\1\0\0\0\2ok") + get("/config/deflate"),
        b"\x00" + chunked + get("/config/max_msg_size"),
        b"\x07" + post("/topic/create?topic=u") + post("/channel/create?topic=u&channel=%63"),
        b"\x01" + post("/pub?topic=t", b"hello").replace(b"Host: a\r\n", upgrade) + get("/ping"),
        b"\x09GET /ping HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /ping/?a HTTP/1.0\r\n\r\n",
        b"\x03POST /pub?topic=t HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
        b"Content-Length: 2\r\n\r\nok" + post("/topic/pause?topic=t"),
        b"\x04CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n\0\0",
    ]


def check(data: bytes) -> None:
    step = (data[0] if data else 0) % 64 + 1
    stream = data[1:]
    at_once = _outcome([stream])
    assert _outcome([stream[at : at + step] for at in range(0, len(stream), step)]) == at_once
    if b"HEAD" not in stream:
        _check_answers(at_once[0])


def _check_answers(said: bytes) -> None:
    at = 0
    while at < len(said):
        head = _ANSWER.match(said, at)
        assert head is not None, said[at : at + 200]
        length = re.search(rb"\r\nContent-Length: ([0-9]+)\r\n", head[0])
        assert length is not None, head[0]
        at = head.end() + int(length[1])
    assert at == len(said)


def _outcome(pieces: list[bytes]) -> tuple[bytes, bool, dict[str, int]]:
    rig = HttpRig()
    connection, line = rig.connect()
    for piece in pieces:
        if line.closed or line.half_closed:
            break
        connection.data_received(piece)
        rig.settle()
    said = line.said.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    counts = {name: topic.message_count for name, topic in rig.host.broker.topics.items()}
    connection.connection_lost(None)
    assert rig.door.bodies_bytes == 0
    assert not rig.door.connections
    return said, line.closed or line.half_closed, counts
