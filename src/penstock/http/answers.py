"""Answers as bytes, byte by byte as nsqd's: status line, headers, body. Pure."""

from __future__ import annotations

from http import HTTPStatus

from penstock.errors import PenstockError

NSQ = "X-Nsq-Content-Type: nsq; version=1.0\r\n"
TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
JSON = "application/json; charset=utf-8"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# as Go's net/http says them
_PHRASES[413] = "Request Entity Too Large"


class Refused(PenstockError):
    """The answer is an error; ``code`` is nsqd's word for it."""

    def __init__(
        self, status: int, code: str, headers: str = "", body: bytes | None = None
    ) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.headers = headers
        self.body = f'{{"message":"{code}"}}'.encode() if body is None else body


def encode_answer(
    status: int,
    body: bytes,
    content_type: str,
    headers: str,
    date: str,
    *,
    old: bool = False,
    keep: bool = True,
    with_body: bool = True,
) -> bytes:
    """``old`` is HTTP/1.0, whose clients take a connection for over unless told otherwise."""
    version = "1.0" if old else "1.1"
    lines = f"HTTP/{version} {status} {_PHRASES[status]}\r\n"
    if body or content_type == JSON:
        lines += f"Content-Type: {content_type}\r\n"
    lines += f"{headers}Date: {date}\r\nContent-Length: {len(body)}\r\n"
    if not keep:
        lines += "Connection: close\r\n"
    elif old:
        lines += "Connection: keep-alive\r\n"
    head = f"{lines}\r\n".encode("latin-1")
    return head + body if with_body else head


def encode_fault(status: int, reason: str = "") -> bytes:
    """What is said to a peer that does not speak HTTP, before the connection is closed."""
    phrase = f"{status} {_PHRASES[status]}"
    body = f"{phrase}: {reason}" if reason else phrase
    return (
        f"HTTP/1.1 {phrase}\r\nContent-Type: {TEXT}\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
