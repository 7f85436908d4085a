"""nsqlookupd's TCP protocol V1 from both sides: bytes to values and back.

A broker tells a name server who it is and which topics and channels it has. The name server reads
with a ``CommandReader``, which also holds the protocol's one rule of order (IDENTIFY first, and
once); the broker reads with an ``AnswerReader``. However the bytes are cut into reads, the same
values come out. No socket, no clock.

The stream begins with the four bytes ``␣␣V1``. Commands are lines of words::

    IDENTIFY\\n  i32 size, and JSON that says where the broker is reached
    REGISTER topic [channel]\\n
    UNREGISTER topic [channel]\\n
    PING\\n                          also before IDENTIFY

Each is answered by u32 size and data: ``OK``, JSON after IDENTIFY, or ``E_CODE explanation``. There
is no type that tells an error apart; but every error is the last thing that is said.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import NamedTuple

from penstock.errors import PeerError
from penstock.limits import COMMAND_LINE_BYTES_MAX, KIB, MIB
from penstock.names import is_valid_name

MAGIC = b"  V1"
OK = b"OK"
PING = b"PING\n"

# A broker's IDENTIFY has a few hundred bytes, and so has the answer.
IDENTIFY_BYTES_MAX = 64 * KIB
ANSWER_BYTES_MAX = 1 * MIB

PORT_MAX = 65_535

_SIZE = Struct(">I")
_SHOWN_BYTES_MAX = 80


class Node(NamedTuple):
    """Where a broker or a name server is reached, as it says itself."""

    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    version: str


class Identify(NamedTuple):
    node: Node


class Register(NamedTuple):
    """This broker has the topic, and the channel if one is named."""

    topic: str
    channel: str


class Unregister(NamedTuple):
    """It has the channel, or the topic with all channels, no more."""

    topic: str
    channel: str


class Ping(NamedTuple):
    pass


Command = Identify | Register | Unregister | Ping


class CommandReader:
    """Cuts a broker's stream into commands. After the first error nothing more is read."""

    __slots__ = ("_rest", "_greeted", "_identified", "_failed", "_body_expected")

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = False
        self._identified = False
        self._failed = False
        self._body_expected = False

    def feed(self, data: bytes) -> list[Command | PeerError]:
        """What ``data`` completes, in order; an error is always the last."""
        found: list[Command | PeerError] = []
        if self._failed:
            return found
        data = self._rest + data
        at = 0
        try:
            while (step := self._next(data, at)) is not None:
                command, at = step
                if command is not None:
                    found.append(command)
        except PeerError as error:
            self._failed = True
            found.append(error)
        self._rest = b"" if self._failed else data[at:]
        return found

    def _next(self, data: bytes, at: int) -> tuple[Command | None, int] | None:
        """The step that begins at ``at`` and where the next begins; None if it is not whole."""
        if not self._greeted:
            return self._greeting(data, at)
        if self._body_expected:
            return self._identify(data, at)
        end = data.find(b"\n", at)
        if (len(data) if end < 0 else end) - at >= COMMAND_LINE_BYTES_MAX:
            raise PeerError("E_INVALID", "the line is too long")
        if end < 0:
            return None
        words = data[at:end].strip().decode("utf-8", "replace").split(" ")
        return self._command(words), end + 1

    def _greeting(self, data: bytes, at: int) -> tuple[None, int] | None:
        if len(data) - at < len(MAGIC):
            return None
        if not data.startswith(MAGIC, at):
            raise PeerError("E_BAD_PROTOCOL", "")
        self._greeted = True
        return None, at + len(MAGIC)

    def _command(self, words: list[str]) -> Command | None:
        verb = words[0]
        if verb == "PING":
            return Ping()
        if verb == "IDENTIFY":
            if self._identified:
                raise PeerError("E_INVALID", "cannot IDENTIFY again")
            self._body_expected = True
            return None
        if verb == "REGISTER":
            return Register(*self._names(verb, words[1:]))
        if verb == "UNREGISTER":
            return Unregister(*self._names(verb, words[1:]))
        raise PeerError("E_INVALID", f"invalid command {verb}")

    def _names(self, verb: str, words: list[str]) -> tuple[str, str]:
        if not self._identified:
            raise PeerError("E_INVALID", "client must IDENTIFY")
        if not words:
            raise PeerError("E_INVALID", f"{verb} insufficient number of params")
        topic, channel = words[0], words[1] if len(words) > 1 else ""
        if not is_valid_name(topic):
            raise PeerError("E_BAD_TOPIC", f"{verb} topic name '{topic}' is not valid")
        if channel and not is_valid_name(channel):
            raise PeerError("E_BAD_CHANNEL", f"{verb} channel name '{channel}' is not valid")
        return topic, channel

    def _identify(self, data: bytes, at: int) -> tuple[Command, int] | None:
        begin = at + _SIZE.size
        if len(data) < begin:
            return None
        size = _SIZE.unpack_from(data, at)[0]
        if size > IDENTIFY_BYTES_MAX:
            raise PeerError("E_BAD_BODY", "IDENTIFY body is too large")
        if len(data) < begin + size:
            return None
        node = decode_node(data[begin : begin + size])
        if not (node.broadcast_address and node.tcp_port and node.http_port and node.version):
            raise PeerError("E_BAD_BODY", "IDENTIFY missing fields")
        self._body_expected = False
        self._identified = True
        return Identify(node), begin + size


class AnswerReader:
    """Cuts a name server's stream into answers."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The answers that ``data`` completes."""
        data = self._rest + data
        answers = []
        at = 0
        while len(data) - at >= _SIZE.size:
            size = _SIZE.unpack_from(data, at)[0]
            if size > ANSWER_BYTES_MAX:
                shown = data[at : at + _SHOWN_BYTES_MAX]
                raise PeerError("E_BAD_BODY", f"{shown!r} is no answer of a name server")
            begin = at + _SIZE.size
            if len(data) < begin + size:
                break
            answers.append(data[begin : begin + size])
            at = begin + size
        self._rest = data[at:]
        return answers


def decode_node(body: bytes) -> Node:
    """IDENTIFY's JSON, or that of its answer; what is not said is empty. As Go reads it: names of
    fields count in any case, null says nothing."""
    try:
        value = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise PeerError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise PeerError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    given = {key.lower(): one for key, one in value.items() if one is not None}
    return Node(
        _text(given, "broadcast_address"),
        _text(given, "hostname"),
        _port(given, "tcp_port"),
        _port(given, "http_port"),
        _text(given, "version"),
    )


def _text(given: dict[str, object], field: str) -> str:
    value = given.get(field, "")
    if not isinstance(value, str):
        raise PeerError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    # half a surrogate pair can be written in JSON, and nowhere else
    return value.encode("utf-8", "replace").decode()


def _port(given: dict[str, object], field: str) -> int:
    value = given.get(field, 0)
    if type(value) is not int or not 0 <= value <= PORT_MAX:
        raise PeerError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    return value


def encode_node(node: Node) -> bytes:
    """The JSON of IDENTIFY and of its answer."""
    return json.dumps(node._asdict(), separators=(",", ":")).encode()


def encode_identify(node: Node) -> bytes:
    body = encode_node(node)
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def encode_register(topic: str, channel: str) -> bytes:
    return f"REGISTER {topic} {channel}".rstrip().encode() + b"\n"


def encode_unregister(topic: str, channel: str) -> bytes:
    return f"UNREGISTER {topic} {channel}".rstrip().encode() + b"\n"


def encode_answer(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data
