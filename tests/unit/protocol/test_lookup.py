"""nsqlookupd's TCP protocol as bytes: what is read, what is refused and in which words."""

from __future__ import annotations

import json
from struct import pack

import pytest

from penstock.errors import PeerError
from penstock.protocol.lookup import (
    ANSWER_BYTES_MAX,
    MAGIC,
    PING,
    AnswerReader,
    Command,
    CommandReader,
    Identify,
    Node,
    Ping,
    Register,
    Unregister,
    decode_node,
    encode_answer,
    encode_identify,
    encode_node,
    encode_register,
    encode_unregister,
)

NODE = Node("broker.example", "host", 4150, 4151, "1.3.0")


def read(data: bytes) -> list[Command | str]:
    """Commands, and the errors' words."""
    found = CommandReader().feed(MAGIC + data)
    return [str(one) if isinstance(one, PeerError) else one for one in found]


def identify(body: bytes) -> bytes:
    return b"IDENTIFY\n" + pack(">I", len(body)) + body


def test_what_is_written_is_read() -> None:
    data = encode_identify(NODE) + encode_register("t", "") + encode_register("t", "c#ephemeral")
    data += PING + encode_unregister("t", "c#ephemeral") + encode_unregister("t", "")
    assert read(data) == [
        Identify(NODE),
        Register("t", ""),
        Register("t", "c#ephemeral"),
        Ping(),
        Unregister("t", "c#ephemeral"),
        Unregister("t", ""),
    ]


def test_bytes_are_nsqs() -> None:
    assert encode_register("t", "c") == b"REGISTER t c\n"
    assert encode_register("t", "") == b"REGISTER t\n"
    assert encode_unregister("t", "c") == b"UNREGISTER t c\n"
    assert encode_answer(b"OK") == b"\0\0\0\2OK"
    sent = encode_identify(NODE)
    assert sent[:13] == b"IDENTIFY\n" + pack(">I", len(sent) - 13)
    assert json.loads(sent[13:]) == {
        "broadcast_address": "broker.example",
        "hostname": "host",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }


def test_what_go_reads() -> None:
    body = (
        b'{"Broadcast_Address":"b","tcp_PORT":1,"http_port":2,"version":"v","hostname":null,"x":[]}'
    )
    assert read(identify(body)) == [Identify(Node("b", "", 1, 2, "v"))]
    assert read(b"  PING \r\n") == [Ping()]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\n", "E_INVALID invalid command "),
        (b"ping\n", "E_INVALID invalid command ping"),
        (b"REGISTER t c\n", "E_INVALID client must IDENTIFY"),
        (b"REGISTER ?\n", "E_INVALID client must IDENTIFY"),
        (b"UNREGISTER t\n", "E_INVALID client must IDENTIFY"),
        (b"x" * 16_384, "E_INVALID the line is too long"),
        (identify(b"{"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"[]"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"[" * 60_000), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b'{"tcp_port":"1"}'), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b'{"tcp_port":true}'), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b'{"tcp_port":65536}'), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b'{"version":1}'), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(b"null"), "E_BAD_BODY IDENTIFY missing fields"),
        (identify(b""), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify(encode_node(NODE._replace(http_port=0))), "E_BAD_BODY IDENTIFY missing fields"),
        (b"IDENTIFY\n\xff\xff\xff\xff", "E_BAD_BODY IDENTIFY body is too large"),
    ],
)
def test_what_is_refused_before_identify(data: bytes, words: str) -> None:
    assert read(data + PING) == [words]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"IDENTIFY\n", "E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", "E_INVALID REGISTER insufficient number of params"),
        (b"REGISTER  c\n", "E_BAD_TOPIC REGISTER topic name '' is not valid"),
        (b"REGISTER a/b\n", "E_BAD_TOPIC REGISTER topic name 'a/b' is not valid"),
        (b"UNREGISTER t \xff\n", "E_BAD_CHANNEL UNREGISTER channel name '\ufffd' is not valid"),
    ],
)
def test_what_is_refused_after_it(data: bytes, words: str) -> None:
    assert read(encode_identify(NODE) + PING + data + PING) == [Identify(NODE), Ping(), words]


def test_another_protocol_is_told_from_the_first_bytes() -> None:
    reader = CommandReader()
    (error,) = reader.feed(b"  V2")
    assert str(error) == "E_BAD_PROTOCOL"
    assert reader.feed(MAGIC + PING) == []


def test_half_a_surrogate_pair_can_be_written_again() -> None:
    node = decode_node(b'{"hostname":"\\ud800"}')
    encode_node(node)
    assert node.hostname == "?"


def test_answers_are_cut_and_bounded() -> None:
    reader = AnswerReader()
    assert reader.feed(encode_answer(b"OK") + encode_answer(b"")) == [b"OK", b""]
    with pytest.raises(PeerError, match="HTTP/1"):
        reader.feed(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(PeerError, match="no answer of a name server"):
        AnswerReader().feed(pack(">I", ANSWER_BYTES_MAX + 1))
