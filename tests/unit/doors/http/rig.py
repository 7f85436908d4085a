"""A door over a host by hand, and a client whose bytes go in and come out as the test says."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.config import Settings
from penstock.doors.http.door import HttpDoor
from penstock.http.connection import Connection
from tests.unit.runtime.rig import Rig


class Line(asyncio.Transport):
    """What a connection says, and whether it reads, is ended or cut off."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5000)})
        self.said = b""
        self.reading = True
        self.half_closed = False
        self.closed = False
        self.cut = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += bytes(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.cut = True


class HttpRig(Rig):
    """A host by hand, with HTTP before it."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = replace(Settings(), max_msg_size=1000, max_body_size=5000)
        self.door = HttpDoor(self.host, self.settings, self.clock, lambda: 4150)

    def connect(self) -> tuple[Connection, Line]:
        connection, line = Connection(self.door, secure=False), Line()
        connection.connection_made(line)
        return connection, line

    def ask(self, data: bytes) -> bytes:
        """What one client is answered."""
        connection, line = self.connect()
        connection.data_received(data)
        self.settle()
        connection.connection_lost(None)
        return line.said


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def post(path: str, body: bytes = b"") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
