"""/pub and /mpub: the same ``topic.publish`` as PUB and MPUB, answered when messages are safe."""

from __future__ import annotations

import struct

from penstock.doors.http.request import Request
from penstock.errors import OperatingError
from penstock.http.answers import Refused
from penstock.http.parameters import FLAGS, defer_ms_of, topic_of

# nsqd's word for every publish that was not kept; the log says why
_NOT_KEPT = (503, "EXITING")


def pub(request: Request) -> None:
    door = request.door
    body = request.body
    if not body:
        raise Refused(400, "MSG_EMPTY")
    name, delay_ms = door.publish_queries.get(request.query) or _pub_query(request)
    _publish(request, name, [body], len(body), delay_ms)


def _pub_query(request: Request) -> tuple[str, int]:
    door = request.door
    parameters = request.parameters()
    asked = topic_of(parameters), defer_ms_of(parameters, door.delay_ms_max)
    door.remember_query(request.query, asked)
    return asked


def mpub(request: Request) -> None:
    parameters = request.parameters()
    name = topic_of(parameters)
    limit = request.door.settings.max_msg_size
    if FLAGS.get(parameters.get("binary", "false"), True):
        bodies = split_binary(request.body, limit, request.door.settings.max_body_size)
    else:
        bodies = split_text(request.body, limit)
    if bodies:
        _publish(request, name, bodies, sum(map(len, bodies)), 0)
    elif request.topic(name, Refused(*_NOT_KEPT)) is not None:
        # nothing to publish, yet it makes the topic
        request.when(request.door.host.state_turn(), Refused(*_NOT_KEPT), b"OK")


def _publish(request: Request, name: str, bodies: list[bytes], size: int, delay_ms: int) -> None:
    host = request.door.host
    if request.door.draining:
        raise Refused(*_NOT_KEPT)
    topic = host.broker.topics.get(name) or request.topic(name, Refused(*_NOT_KEPT))
    if topic is None:
        return
    if host.crowded:
        host.held_back.append(request.again)
        return
    now_ns = host.clock.now_ns()
    try:
        if delay_ms:
            due_ns = now_ns + delay_ms * 1_000_000
            turn = topic.publish_delayed(bodies, size, due_ns, now_ns)
        else:
            turn = topic.publish(bodies, size, now_ns)
    except OperatingError as error:
        raise Refused(*_NOT_KEPT) from error
    request.when(turn, Refused(*_NOT_KEPT), b"OK")
    host.wake()


def split_text(body: bytes, message_bytes_max: int) -> list[bytes]:
    """A message a line; empty lines are none."""
    bodies = [line for line in body.split(b"\n") if line]
    if any(len(one) > message_bytes_max for one in bodies):
        raise Refused(413, "MSG_TOO_BIG")
    return bodies


def split_binary(body: bytes, message_bytes_max: int, body_bytes_max: int) -> list[bytes]:
    """count i32 | size i32, bytes | size i32, bytes … and nothing behind them."""
    if len(body) < 4:
        raise Refused(413, "BAD_BODY")
    (count,) = struct.unpack_from(">i", body)
    if not 0 < count <= (body_bytes_max - 4) // 5:
        raise Refused(413, "BAD_BODY")
    end = len(body)
    at = 4
    bodies: list[bytes] = []
    for _ in range(count):
        if at + 4 > end:
            raise Refused(413, "BAD_MESSAGE")
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        at += 4
        if not 0 < size <= message_bytes_max or at + size > end:
            raise Refused(413, "BAD_MESSAGE")
        bodies.append(body[at : at + size])
        at += size
    if at != end:
        raise Refused(413, "BAD_BODY")
    return bodies
