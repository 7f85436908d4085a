"""What a name server is asked, and what its answers are taken for."""

from __future__ import annotations

import pytest

from penstock.errors import OperatingError
from penstock.protocol.lookup_http import Place, decode_brokers, decode_channels, encode_question


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
    with pytest.raises(OperatingError):
        decode_brokers(answer)


def test_a_question_is_one_that_nsqlookupd_reads() -> None:
    assert encode_question("/lookup", "t#ephemeral", "a:1").splitlines()[:2] == [
        b"GET /lookup?topic=t%23ephemeral HTTP/1.0",
        b"Host: a:1",
    ]


def test_brokers_that_can_be_connected_to() -> None:
    producers = (
        b'{"broadcast_address":"a","tcp_port":1},{"broadcast_address":"","tcp_port":1},5,'
        b'{"broadcast_address":"a","tcp_port":0},{"broadcast_address":"a","tcp_port":70000},'
        b'{"broadcast_address":"a","tcp_port":true},{"tcp_port":1},'
        b'{"broadcast_address":"::1","tcp_port":65535}'
    )
    answer = b'HTTP/1.0 200 OK\r\n\r\n{"channels":[],"producers":[%b]}' % producers
    assert decode_brokers(answer) == [Place("a", 1), Place("::1", 65535)]


def test_a_topic_that_nobody_has_has_no_brokers() -> None:
    assert decode_brokers(b'HTTP/1.0 404 Not Found\r\n\r\n{"message":"TOPIC_NOT_FOUND"}') == []
