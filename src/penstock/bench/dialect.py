"""How a load speaks to a server: how it connects, what a publish is, how answers are counted.

Penstock is spoken to in NSQ's protocol or over HTTP. The loop that keeps publishes in flight does
not depend on that, so the comparison with other servers (`bench/vs`) drives them with it, too.
"""

from __future__ import annotations

import socket
from typing import Protocol

from penstock.bench.link import SILENCE_S, Address, open_link
from penstock.bench.wire import OK_FRAME, BenchError, command_of, count_ok


class Line(Protocol):
    """One connection that publishes."""

    link: socket.socket

    def command(self, topic: str, body: bytes, per_command: int) -> bytes:
        """What publishes ``per_command`` messages and is answered as one."""
        ...

    def feed(self, data: bytes) -> int:
        """How many commands ``data`` completes the answers of; a refusal raises BenchError."""
        ...


class Dialect(Protocol):
    """Opens lines; a class or function of a module, because it travels to the workers by name."""

    def __call__(self, address: Address, per_command: int) -> Line: ...


class NsqLine:
    """PUB and MPUB, answered OK."""

    __slots__ = ("link", "_tail")

    def __init__(self, address: Address, per_command: int) -> None:
        self.link = open_link(address)
        self._tail = b""  # an answer that is not all here

    def command(self, topic: str, body: bytes, per_command: int) -> bytes:
        return command_of(topic, body, per_command)

    def feed(self, data: bytes) -> int:
        if self._tail:
            data = self._tail + data
        count = count_ok(data)
        self._tail = data[count * len(OK_FRAME) :]
        return count


_ANSWER_END = b"\r\n\r\nOK"
_ANSWER_START = b"HTTP/1.1 "
_ACCEPTED = b"HTTP/1.1 200 OK\r\n"


class HttpLine:
    """/pub, and /mpub with a message a line, on a connection that is kept."""

    __slots__ = ("link", "_host", "_tail")

    def __init__(self, address: Address, per_command: int) -> None:
        self._host = f"{address[0]}:{address[1]}"
        try:
            self.link = socket.create_connection(address, timeout=SILENCE_S)
        except OSError as error:
            raise BenchError(f"nobody answers at {self._host}: {error}") from error
        self.link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tail = b""

    def command(self, topic: str, body: bytes, per_command: int) -> bytes:
        path = f"/pub?topic={topic}" if per_command == 1 else f"/mpub?topic={topic}"
        lines = b"\n".join([body] * per_command)
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(lines)}\r\n\r\n"
        return head.encode() + lines

    def feed(self, data: bytes) -> int:
        count, self._tail = count_http_ok(self._tail + data)
        return count


def count_http_ok(answers: bytes) -> tuple[int, bytes]:
    """How many whole answers say that it was accepted, and what is behind them; another answer is
    an error."""
    count = answers.count(_ANSWER_END)
    end = answers.rfind(_ANSWER_END) + len(_ANSWER_END) if count else 0
    tail = answers[end:]
    said, accepted = answers.count(_ANSWER_START, 0, end), answers.count(_ACCEPTED, 0, end)
    if not said == accepted == count or not _may_be_accepted(tail):
        raise BenchError(f"the broker answered {answers[-300:]!r}; the run is void")
    return count, tail


def _may_be_accepted(tail: bytes) -> bool:
    return tail.startswith(_ACCEPTED) or _ACCEPTED.startswith(tail)
