"""Answers as bytes."""

from __future__ import annotations

import pytest

from penstock.http.answers import JSON, NSQ, TEXT, Refused, encode_answer, encode_fault

DATE = "Thu, 01 Jan 1970 00:00:00 GMT"


def test_an_answer_has_nsqds_headers() -> None:
    assert encode_answer(200, b"OK", TEXT, NSQ, DATE) == (
        b"HTTP/1.1 200 OK\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"X-Nsq-Content-Type: nsq; version=1.0\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        b"Content-Length: 2\r\n"
        b"\r\nOK"
    )


@pytest.mark.parametrize(
    ("old", "keep", "expected"),
    [
        (False, True, None),
        (False, False, b"Connection: close"),
        (True, True, b"Connection: keep-alive"),
        (True, False, b"Connection: close"),
    ],
)
def test_it_says_whether_the_connection_stays(
    old: bool, keep: bool, expected: bytes | None
) -> None:
    head = encode_answer(200, b"", TEXT, "", DATE, old=old, keep=keep).split(b"\r\n")
    assert head[0] == (b"HTTP/1.0 200 OK" if old else b"HTTP/1.1 200 OK")
    said = [line for line in head if line.startswith(b"Connection")]
    assert said == ([expected] if expected else [])


def test_an_error_is_json_with_nsqds_word() -> None:
    refused = Refused(404, "TOPIC_NOT_FOUND")
    answer = encode_answer(refused.status, refused.body, JSON, NSQ, DATE)
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json; charset=")
    assert answer.endswith(b'\r\n\r\n{"message":"TOPIC_NOT_FOUND"}')


def test_what_is_no_http_is_told_so() -> None:
    fault = encode_fault(400, "missing required Host header")
    head, _, body = fault.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"Connection: close" in head
    assert body == b"400 Bad Request: missing required Host header"
