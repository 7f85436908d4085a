"""Connections of the load generator: blocking sockets, shaken hands, no buffering of their own.

A link is opened before the clock starts. Heartbeats are as rare as the protocol lets them be: at
full load they would be the only frames that do not fit the stride, and a bench's connections are
watched by its deadline. A publisher has none; a subscriber must have them, once a minute at least.
"""

from __future__ import annotations

import socket

from penstock.bench.wire import BenchError, cut_whole_frames
from penstock.limits import HEARTBEAT_INTERVAL_MAX_MS
from penstock.protocol.nsq_client import (
    CLOSE_WAIT,
    CLS,
    MAGIC,
    OK,
    TYPE_ANSWER,
    TYPE_MESSAGE,
    cut_frame,
    encode_identify,
    encode_rdy,
    encode_sub,
)

# The longest silence of a broker that is not stuck; a bench that waits longer is void.
SILENCE_S = 60.0

NO_HEARTBEATS = -1

Address = tuple[str, int]


def open_link(address: Address, heartbeat_interval_ms: int = NO_HEARTBEATS) -> socket.socket:
    """A connection behind IDENTIFY, with no heartbeats unless asked for."""
    try:
        link = socket.create_connection(address, timeout=SILENCE_S)
    except OSError as error:
        raise BenchError(f"no broker answers at {address[0]}:{address[1]}: {error}") from error
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    settings: dict[str, str | int | bool] = {
        "client_id": "bench",
        "heartbeat_interval": heartbeat_interval_ms,
        "feature_negotiation": False,
    }
    link.sendall(MAGIC + encode_identify(settings))
    expect_answer(link, OK)
    return link


def open_subscription(address: Address, topic: str, channel: str) -> socket.socket:
    """A connection behind SUB. Nothing flows before ``grant``."""
    link = open_link(address, HEARTBEAT_INTERVAL_MAX_MS)
    link.sendall(encode_sub(topic, channel))
    expect_answer(link, OK)
    return link


def grant(link: socket.socket, credit: int) -> None:
    """RDY."""
    link.sendall(encode_rdy(credit))


def close_subscription(link: socket.socket, unread: bytes = b"") -> int:
    """CLS, answered: the broker has read every FIN that was sent before it.

    ``unread`` is the beginning of a frame that was read already. Returns how many messages came
    after the consumer had all it wanted.
    """
    link.sendall(CLS)
    surplus = 0
    while True:
        frames, taken = cut_whole_frames(unread)
        surplus += sum(kind == TYPE_MESSAGE for kind, _ in frames)
        if (TYPE_ANSWER, CLOSE_WAIT) in frames:
            link.close()
            return surplus
        unread = unread[taken:] + receive(link, 65_536)


def expect_answer(link: socket.socket, expected: bytes) -> None:
    """Read one answer frame; it must be the expected one and the only one."""
    received = b""
    while (frame := cut_frame(received)) is None:
        received += receive(link, 4096)
    kind, data, rest = frame
    if kind != TYPE_ANSWER or data != expected or rest:
        raise BenchError(f"the broker answered {data[:200]!r} where {expected!r} was expected")


def receive(link: socket.socket, bytes_max: int) -> bytes:
    """What one read brings; the end of the stream and a long silence are errors."""
    try:
        data = link.recv(bytes_max)
    except TimeoutError as error:
        raise BenchError(f"the broker was silent for {SILENCE_S:.0f} s") from error
    except OSError as error:
        raise BenchError(f"the connection broke: {error}") from error
    if not data:
        raise BenchError("the broker closed the connection in the middle of the run")
    return data
