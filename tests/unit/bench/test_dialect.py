"""Answers over HTTP, counted by the read."""

from __future__ import annotations

import pytest

from penstock.bench.dialect import count_http_ok
from penstock.bench.wire import BenchError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


@pytest.mark.parametrize("cut", range(len(OK)))
def test_whole_answers_are_counted(cut: int) -> None:
    assert count_http_ok(OK * 3 + OK[:cut]) == (3, OK[:cut])


@pytest.mark.parametrize(
    "answers",
    [
        b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"message":"EXITING"}',
        OK + b"HTTP/1.1 5",
        b"HTTP/1.1 404 Not Found\r\n\r\n" + OK,
        b"nonsense",
    ],
)
def test_any_other_answer_voids_the_run(answers: bytes) -> None:
    with pytest.raises(BenchError):
        count_http_ok(answers)
