"""How a load speaks to a server: how it connects, what a publish is, how answers are counted.

Penstock is spoken to in NSQ's protocol. The loop that keeps publishes in flight does not depend on
that, so the comparison with other servers (`bench/vs`) drives them with the same loop.
"""

from __future__ import annotations

import socket
from typing import Protocol

from penstock.bench.link import Address, open_link
from penstock.bench.wire import OK_FRAME, command_of, count_ok


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
