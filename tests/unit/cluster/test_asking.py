"""What a name server's answer about a topic's channels is taken for."""

from __future__ import annotations

import pytest

from penstock.cluster.asking import decode_channels
from penstock.errors import OperatingError


def test_only_channels_that_stay_and_can_be() -> None:
    names = b'["c","d#ephemeral","a/b","",5,null,"c.d"]'
    answer = b'HTTP/1.1 200 OK\r\nX: y\r\n\r\n{"channels":%b}' % names
    assert decode_channels(answer) == ["c", "c.d"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "it answered ''"),
        (b"E_INVALID what", "it answered 'E_INVALID what'"),
        (b"HTTP/1.1", "it answered 'HTTP/1.1'"),
        (b"HTTP/1.1 500 Oh\r\n\r\n{}", "it answered 'HTTP/1.1 500 Oh'"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", "it answered '{', not JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "not JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "without channels"),
        (b'HTTP/1.1 200 OK\r\n\r\n{"channels":{}}', "without channels"),
    ],
)
def test_what_is_no_such_answer(answer: bytes, words: str) -> None:
    with pytest.raises(OperatingError) as caught:
        decode_channels(answer)
    assert words in str(caught.value)
