"""What nsqd's TCP protocol V2 answers to what no client should send, byte for byte.

Black box: raw sockets against a broker in a process of its own. The table says for each state
which command gets which error; all errors but three (E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED)
are fatal: the broker says what was wrong, then closes. Below the table stand the peers that
misbehave in time or in number: they may cost their own connection, never memory without bound and
never a message of someone else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
import zlib
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import (
    CLS,
    ERROR,
    MAGIC,
    NO_SUCH_ID,
    NOP,
    Peer,
    Quiet,
    auth,
    dpub,
    fin,
    identify,
    line,
    mpub,
    pub,
    rdy,
    req,
    sized,
    sub,
    touch,
)

MSG_BYTES_MAX = 1024 * 1024
BODY_BYTES_MAX = 5 * 1024 * 1024
MPUB_COUNT_MAX = (BODY_BYTES_MAX - 4) // 5

ID = NO_SUCH_ID


def be32(*numbers: int) -> bytes:
    return b"".join(struct.pack(">i", number) for number in numbers)


# --- every state, every error ------------------------------------------------------------------

ANY_STATE: list[tuple[bytes, str]] = [
    # commands that are none
    (b"\n", "E_INVALID invalid command "),
    (b"\r\n", "E_INVALID invalid command "),
    (b"FOO\n", "E_INVALID invalid command FOO"),
    (b"FOO bar baz\n", "E_INVALID invalid command FOO"),
    (b"pub topic\n", "E_INVALID invalid command pub"),
    (b" PUB topic\n", "E_INVALID invalid command "),
    (b"NOP\r\r\n", "E_INVALID invalid command NOP\r"),
    (b"GET / HTTP/1.1\r\n", "E_INVALID invalid command GET"),
    # PUB
    (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (pub("", b"x"), 'E_BAD_TOPIC PUB topic name "" is not valid'),
    (pub("a:b", b"x"), 'E_BAD_TOPIC PUB topic name "a:b" is not valid'),
    (b"PUB topic\n" + be32(0), "E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB topic\n" + be32(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    (
        b"PUB topic\n" + be32(MSG_BYTES_MAX + 1),
        f"E_BAD_MESSAGE PUB message too big {MSG_BYTES_MAX + 1} > {MSG_BYTES_MAX}",
    ),
    (
        b"PUB topic\n" + be32(2**31 - 1),
        f"E_BAD_MESSAGE PUB message too big {2**31 - 1} > {MSG_BYTES_MAX}",
    ),
    # MPUB
    (b"MPUB\n", "E_INVALID MPUB insufficient number of parameters"),
    (mpub("a b", []), "E_BAD_BODY MPUB invalid message count 0"),
    (mpub("a/b", [b"x"]), 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a/b" is not valid'),
    (b"MPUB topic\n" + be32(0), "E_BAD_BODY MPUB invalid body size 0"),
    (b"MPUB topic\n" + be32(-5), "E_BAD_BODY MPUB invalid body size -5"),
    (
        b"MPUB topic\n" + be32(BODY_BYTES_MAX + 1),
        f"E_BAD_BODY MPUB body too big {BODY_BYTES_MAX + 1} > {BODY_BYTES_MAX}",
    ),
    (b"MPUB topic\n" + be32(4, 0), "E_BAD_BODY MPUB invalid message count 0"),
    (b"MPUB topic\n" + be32(4, -1), "E_BAD_BODY MPUB invalid message count -1"),
    (
        b"MPUB topic\n" + be32(100, MPUB_COUNT_MAX + 1),
        f"E_BAD_BODY MPUB invalid message count {MPUB_COUNT_MAX + 1}",
    ),
    (mpub("topic", [b""]), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (mpub("topic", [b"a", b"b", b""]), "E_BAD_MESSAGE MPUB invalid message(2) body size 0"),
    (
        b"MPUB topic\n" + be32(17, 2, 1) + b"a" + be32(-7) + b"xxxx",
        "E_BAD_MESSAGE MPUB invalid message(1) body size -7",
    ),
    (
        mpub("topic", [b"x" * (MSG_BYTES_MAX + 1)]),
        f"E_BAD_MESSAGE MPUB message too big {MSG_BYTES_MAX + 1} > {MSG_BYTES_MAX}",
    ),
    # DPUB
    (b"DPUB\n", "E_INVALID DPUB insufficient number of parameters"),
    (b"DPUB topic\n", "E_INVALID DPUB insufficient number of parameters"),
    (dpub("a?b", 1, b"x"), 'E_BAD_TOPIC DPUB topic name "a?b" is not valid'),
    (dpub("topic", "soon", b"x"), "E_INVALID DPUB could not parse timeout soon"),
    (dpub("topic", "-1", b"x"), "E_INVALID DPUB could not parse timeout -1"),
    (dpub("topic", "+1", b"x"), "E_INVALID DPUB could not parse timeout +1"),
    (dpub("topic", "1.5", b"x"), "E_INVALID DPUB could not parse timeout 1.5"),
    (dpub("topic", 3600001, b"x"), "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (b"DPUB topic 5\n" + be32(0), "E_BAD_MESSAGE DPUB invalid message body size 0"),
    (b"DPUB topic 5\n" + be32(-9), "E_BAD_MESSAGE DPUB invalid message body size -9"),
    (
        b"DPUB topic 5\n" + be32(MSG_BYTES_MAX + 1),
        f"E_BAD_MESSAGE DPUB message too big {MSG_BYTES_MAX + 1} > {MSG_BYTES_MAX}",
    ),
]

INIT: list[tuple[bytes, str]] = [
    (rdy(1), "E_INVALID cannot RDY in current state"),
    (b"RDY nonsense\n", "E_INVALID cannot RDY in current state"),
    (fin(ID), "E_INVALID cannot FIN in current state"),
    (b"FIN\n", "E_INVALID cannot FIN in current state"),
    (req(ID), "E_INVALID cannot REQ in current state"),
    (b"REQ\n", "E_INVALID cannot REQ in current state"),
    (touch(ID), "E_INVALID cannot TOUCH in current state"),
    (b"TOUCH\n", "E_INVALID cannot TOUCH in current state"),
    (CLS, "E_INVALID cannot CLS in current state"),
    # SUB
    (b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
    (b"SUB topic\n", "E_INVALID SUB insufficient number of parameters"),
    (sub("a@b", "channel"), 'E_BAD_TOPIC SUB topic name "a@b" is not valid'),
    (sub("topic", "a@b"), 'E_BAD_CHANNEL SUB channel name "a@b" is not valid'),
    (b"SUB topic  channel\n", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
    (b"SUB  topic channel\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    # AUTH, where no auth server is set up
    (b"AUTH secret\n", "E_INVALID AUTH invalid number of parameters"),
    (b"AUTH \n" + sized(b"secret"), "E_INVALID AUTH invalid number of parameters"),
    (b"AUTH\n" + be32(0), "E_BAD_BODY AUTH invalid body size 0"),
    (b"AUTH\n" + be32(-1), "E_BAD_BODY AUTH invalid body size -1"),
    (
        b"AUTH\n" + be32(BODY_BYTES_MAX + 1),
        f"E_BAD_BODY AUTH body too big {BODY_BYTES_MAX + 1} > {BODY_BYTES_MAX}",
    ),
    (auth("secret"), "E_AUTH_DISABLED AUTH disabled"),
    # the size before IDENTIFY's body
    (b"IDENTIFY\n" + be32(0), "E_BAD_BODY IDENTIFY invalid body size 0"),
    (b"IDENTIFY\n" + be32(-1), "E_BAD_BODY IDENTIFY invalid body size -1"),
    (
        b"IDENTIFY\n" + be32(BODY_BYTES_MAX + 1),
        f"E_BAD_BODY IDENTIFY body too big {BODY_BYTES_MAX + 1} > {BODY_BYTES_MAX}",
    ),
]

SUBSCRIBED_OR_CLOSING: list[tuple[bytes, str]] = [
    (identify(), "E_INVALID cannot IDENTIFY in current state"),
    (auth("secret"), "E_INVALID cannot AUTH in current state"),
    (sub("topic", "channel"), "E_INVALID cannot SUB in current state"),
    (b"SUB\n", "E_INVALID cannot SUB in current state"),
    # FIN, REQ, TOUCH
    (b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (b"FIN \n", "E_INVALID invalid message ID"),
    (fin(ID[:-1]), "E_INVALID invalid message ID"),
    (fin(ID + b"0"), "E_INVALID invalid message ID"),
    (b"REQ\n", "E_INVALID REQ insufficient number of params"),
    (line("REQ", ID), "E_INVALID REQ insufficient number of params"),
    (req(ID[:-1]), "E_INVALID invalid message ID"),
    (req(ID, "soon"), "E_INVALID REQ could not parse timeout soon"),
    (req(ID, "-1"), "E_INVALID REQ could not parse timeout -1"),
    (b"TOUCH\n", "E_INVALID TOUCH insufficient number of params"),
    (touch(b"x"), "E_INVALID invalid message ID"),
]

SUBSCRIBED: list[tuple[bytes, str]] = [
    (rdy(-1), "E_INVALID RDY could not parse count -1"),
    (rdy("many"), "E_INVALID RDY could not parse count many"),
    (rdy("1.0"), "E_INVALID RDY could not parse count 1.0"),
    (rdy(2501), "E_INVALID RDY count 2501 out of range 0-2500"),
    (rdy(10**12), f"E_INVALID RDY count {10**12} out of range 0-2500"),
]

CLOSING: list[tuple[bytes, str]] = [
    (CLS, "E_INVALID cannot CLS in current state"),
]

TABLE = (
    [("init", *case) for case in INIT + ANY_STATE]
    + [("subscribed", *case) for case in SUBSCRIBED + SUBSCRIBED_OR_CLOSING + ANY_STATE]
    + [("closing", *case) for case in CLOSING + SUBSCRIBED_OR_CLOSING + ANY_STATE]
)


def in_state(peer: Peer, state: str, topic: str) -> Peer:
    if state != "init":
        peer.subscribe(topic, "channel")
    if state == "closing":
        peer.send(CLS)
        peer.expect_response(b"CLOSE_WAIT")
    return peer


def case_name(case: tuple[str, bytes, str]) -> str:
    state, command, error = case
    words = command[:24].decode("ascii", "replace").split("\n")[0].strip()
    return f"{state}-{words or 'empty'}-{error}"[:80]


@pytest.mark.parametrize(
    ("state", "command", "error"), TABLE, ids=[case_name(case) for case in TABLE]
)
def test_fatal_error(
    shared_broker: Broker, connect: Connect, state: str, command: bytes, error: str
) -> None:
    peer = in_state(connect(shared_broker.port), state, "states")
    peer.send(command)
    peer.expect_fatal(error)


@pytest.mark.parametrize("state", ["subscribed", "closing"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (fin(ID), "E_FIN_FAILED FIN"),
        (req(ID, 5), "E_REQ_FAILED REQ"),
        (touch(ID), "E_TOUCH_FAILED TOUCH"),
    ],
)
def test_an_unknown_message_is_an_error_that_is_not_fatal(
    shared_broker: Broker, connect: Connect, topic: str, state: str, command: bytes, code: str
) -> None:
    peer = in_state(connect(shared_broker.port), state, topic)
    peer.send(command, command, pub(topic, b"still here"))
    peer.expect_error(f"{code} {ID.decode()} failed ID not in flight")
    peer.expect_error(f"{code} {ID.decode()} failed ID not in flight")
    peer.expect_ok()


def test_an_id_of_any_bytes_is_looked_up_and_echoed(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.subscribe(topic, "channel")
    for strange in (b"\xff" * 16, b"0123456789ABCDEF", b"zzzzzzzzzzzzzzzz", b"\x00" * 16):
        peer.send(fin(strange))
        peer.expect_error(b"E_FIN_FAILED FIN " + strange + b" failed ID not in flight")


def test_rdy_after_cls_is_ignored_whatever_it_says(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = in_state(connect(shared_broker.port), "closing", topic)
    peer.send(rdy(1), rdy(-1), rdy(99999), b"RDY what\n", fin(ID))
    peer.expect_error(f"E_FIN_FAILED FIN {ID.decode()} failed ID not in flight")


def test_surplus_parameters_are_ignored(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(line("NOP", "x"), line("PUB", topic, "x", "y") + sized(b"body"))
    peer.expect_ok()
    peer.send(line("SUB", topic, "channel", "x"), line("RDY", 1, 2))
    peer.expect_ok()
    message = peer.expect_message(b"body")
    peer.send(line("FIN", message.id, "x"), line("CLS", "x"))
    peer.expect_response(b"CLOSE_WAIT")


# --- IDENTIFY's body ---------------------------------------------------------------------------

NOT_JSON = [
    b"{",
    b"x",
    b"[]",
    b'"text"',
    b"7",
    b"{} {}",
    b"{'client_id': 'a'}",
    b"\xff\xfe{}",
    b'{"heartbeat_interval": "1000"}',
    b'{"heartbeat_interval": 1000.5}',
    b'{"heartbeat_interval": 1e3}',
    b'{"heartbeat_interval": true}',
    b'{"heartbeat_interval": 99999999999999999999}',
    b'{"sample_rate": 3000000000}',
    b'{"tls_v1": 1}',
    b'{"feature_negotiation": "true"}',
    b'{"client_id": 5}',
    b'{"unknown": NaN}',
    b'{"user_agent": ["a"]}',
]


@pytest.mark.parametrize("body", NOT_JSON, ids=repr)
def test_identify_with_a_body_that_does_not_decode(
    shared_broker: Broker, connect: Connect, body: bytes
) -> None:
    peer = connect(shared_broker.port)
    peer.send(identify(body))
    peer.expect_fatal("E_BAD_BODY IDENTIFY failed to decode JSON body")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("heartbeat_interval", -2, "heartbeat interval (-2)"),
        ("heartbeat_interval", 1, "heartbeat interval (1)"),
        ("heartbeat_interval", 999, "heartbeat interval (999)"),
        ("heartbeat_interval", 60001, "heartbeat interval (60001)"),
        ("output_buffer_size", -2, "output buffer size (-2)"),
        ("output_buffer_size", 1, "output buffer size (1)"),
        ("output_buffer_size", 63, "output buffer size (63)"),
        ("output_buffer_size", 65537, "output buffer size (65537)"),
        ("output_buffer_timeout", -2, "output buffer timeout (-2)"),
        ("output_buffer_timeout", 24, "output buffer timeout (24)"),
        ("output_buffer_timeout", 30001, "output buffer timeout (30001)"),
        ("sample_rate", -1, "sample rate (-1)"),
        ("sample_rate", 100, "sample rate (100)"),
        ("msg_timeout", -1, "msg timeout (-1)"),
        ("msg_timeout", 999, "msg timeout (999)"),
        ("msg_timeout", 900001, "msg timeout (900001)"),
    ],
)
@pytest.mark.parametrize("negotiation", [False, True])
def test_identify_with_a_value_out_of_range(
    shared_broker: Broker, connect: Connect, field: str, value: int, said: str, negotiation: bool
) -> None:
    peer = connect(shared_broker.port)
    peer.send(identify({field: value, "feature_negotiation": negotiation}))
    peer.expect_fatal(f"E_BAD_BODY IDENTIFY {said} is invalid")


def test_identify_checks_its_values_in_nsqds_order(shared_broker: Broker, connect: Connect) -> None:
    wrong = {
        "msg_timeout": 5,
        "sample_rate": 100,
        "output_buffer_size": 5,
        "output_buffer_timeout": 5,
        "heartbeat_interval": 5,
    }
    for said in (
        "heartbeat interval (5)",
        "output buffer timeout (5)",
        "output buffer size (5)",
        "sample rate (100)",
        "msg timeout (5)",
    ):
        peer = connect(shared_broker.port)
        peer.send(identify(wrong))
        peer.expect_fatal(f"E_BAD_BODY IDENTIFY {said} is invalid")
        wrong.popitem()


def test_identify_with_both_compressions(shared_broker: Broker, connect: Connect) -> None:
    peer = connect(shared_broker.port)
    peer.send(identify({"feature_negotiation": True, "deflate": True, "snappy": True}))
    peer.expect_fatal("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a", "A-Z_0.9", ".", "-", "x" * 64, "e#ephemeral", "y" * 54 + "#ephemeral", "..", "0"],
)
def test_valid_names(shared_broker: Broker, connect: Connect, name: str) -> None:
    peer = connect(shared_broker.port)
    peer.subscribe(name, name, ready=0)
    peer.send(pub(name, b"x"), mpub(name, [b"x"]), dpub(name, 0, b"x"))
    peer.expect_ok(3)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"x" * 65, '"' + "x" * 65 + '"'),
        (b"y" * 55 + b"#ephemeral", '"' + "y" * 55 + '#ephemeral"'),
        (b"#ephemeral", '"#ephemeral"'),
        (b"a#ephemera", '"a#ephemera"'),
        (b"a#ephemeral#ephemeral", '"a#ephemeral#ephemeral"'),
        (b"a#EPHEMERAL", '"a#EPHEMERAL"'),
        (b"../../etc", '"../../etc"'),
        (b"a*", '"a*"'),
        (b"a\tb", r'"a\tb"'),
        (b"a\x00b", r'"a\x00b"'),
        (b"a\rb", r'"a\rb"'),
        (b"a\x7fb", r'"a\x7fb"'),
        (b'a"b', r'"a\"b"'),
        (b"a\\b", r'"a\\b"'),
        ("tøpic".encode(), '"tøpic"'),
        (b"\xffa", r'"\xffa"'),
        ("zero\u200bwidth".encode(), r'"zero\u200bwidth"'),
        ("\U0001f422".encode(), '"\U0001f422"'),
    ],
    ids=repr,
)
def test_invalid_names_are_quoted_back(
    shared_broker: Broker, connect: Connect, name: bytes, quoted: str
) -> None:
    for command, error in (
        (pub(name, b"x"), f"E_BAD_TOPIC PUB topic name {quoted} is not valid"),
        (mpub(name, [b"x"]), f"E_BAD_TOPIC E_BAD_TOPIC MPUB topic name {quoted} is not valid"),
        (dpub(name, 0, b"x"), f"E_BAD_TOPIC DPUB topic name {quoted} is not valid"),
        (sub(name, "channel"), f"E_BAD_TOPIC SUB topic name {quoted} is not valid"),
        (sub("topic", name), f"E_BAD_CHANNEL SUB channel name {quoted} is not valid"),
    ):
        peer = connect(shared_broker.port)
        peer.send(command)
        peer.expect_fatal(error)


# --- limits set on the command line ------------------------------------------------------------


def test_limits_from_the_command_line(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(
        "--max-msg-size=100",
        "--max-body-size=1000",
        "--max-rdy-count=50",
        "--max-req-timeout=1m",
        "--max-msg-timeout=2m",
        "--max-heartbeat-interval=10s",
        "--max-output-buffer-size=1000",
        "--max-output-buffer-timeout=1s",
    )

    def refused(error: str, *commands: bytes, subscribed: bool = False) -> None:
        peer = connect(broker.port)
        if subscribed:
            peer.subscribe("limits", "channel")
        peer.send(*commands)
        peer.expect_fatal(error)

    peer = connect(broker.port)
    peer.send(pub("limits", b"x" * 100), mpub("limits", [b"x" * 100] * 9))
    peer.send(dpub("limits", 60000, b"x"))
    peer.expect_ok(3)
    refused("E_BAD_MESSAGE PUB message too big 101 > 100", pub("limits", b"x" * 101))
    refused("E_BAD_MESSAGE DPUB message too big 101 > 100", dpub("limits", 1, b"x" * 101))
    refused("E_BAD_MESSAGE MPUB message too big 101 > 100", mpub("limits", [b"x" * 101]))
    refused("E_BAD_BODY MPUB body too big 1044 > 1000", mpub("limits", [b"x" * 100] * 10))
    refused("E_BAD_BODY MPUB invalid message count 200", line("MPUB", "limits") + be32(8, 200, 1))
    refused("E_BAD_BODY IDENTIFY body too big 1001 > 1000", line("IDENTIFY") + be32(1001))
    refused("E_INVALID RDY count 51 out of range 0-50", rdy(51), subscribed=True)
    refused("E_INVALID DPUB timeout 60001 out of range 0-60000", dpub("limits", 60001, b"x"))
    for field, value, said in (
        ("heartbeat_interval", 10001, "heartbeat interval (10001)"),
        ("output_buffer_size", 1001, "output buffer size (1001)"),
        ("output_buffer_timeout", 1001, "output buffer timeout (1001)"),
        ("msg_timeout", 120001, "msg timeout (120001)"),
    ):
        refused(f"E_BAD_BODY IDENTIFY {said} is invalid", identify({field: value}))


# --- wrong magic, lines and bodies that end early ----------------------------------------------


@pytest.mark.parametrize("magic", [b"  V1", b"  V3", b"\x00\x00\x00\x00", b"GET ", b"V2  "])
def test_wrong_magic(shared_broker: Broker, connect: Connect, magic: bytes) -> None:
    peer = connect(shared_broker.port, magic=magic)
    peer.expect_fatal("E_BAD_PROTOCOL")


@pytest.mark.parametrize("sent", [b"", b" ", b"  V", MAGIC, MAGIC + b"PU", MAGIC + b"PUB topic"])
def test_an_end_inside_magic_or_line_closes_without_a_word(
    shared_broker: Broker, connect: Connect, sent: bytes
) -> None:
    peer = connect(shared_broker.port, magic=b"")
    peer.send(sent)
    peer.half_close()
    peer.expect_closed()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"PUB topic\n", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB topic\n\x00\x00", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB topic\n" + be32(10), "E_BAD_MESSAGE PUB failed to read message body"),
        (b"PUB topic\n" + be32(10) + b"123456789", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB topic 5\n\x00", "E_BAD_MESSAGE DPUB failed to read message body size"),
        (b"DPUB topic 5\n" + be32(2) + b"1", "E_BAD_MESSAGE DPUB failed to read message body"),
        (b"MPUB topic\n\x00", "E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB topic\n" + be32(20) + b"\x00", "E_BAD_BODY MPUB failed to read message count"),
        (
            b"MPUB topic\n" + be32(20, 2) + b"\x00",
            "E_BAD_MESSAGE MPUB failed to read message(0) body size",
        ),
        (
            b"MPUB topic\n" + be32(20, 2, 3) + b"12",
            "E_BAD_MESSAGE MPUB failed to read message body",
        ),
        (
            b"MPUB topic\n" + be32(20, 2, 3) + b"123\x00",
            "E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (b"IDENTIFY\n\x00", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n" + be32(3) + b"{", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n\x00", "E_BAD_BODY AUTH failed to read body size"),
        (b"AUTH\n" + be32(3) + b"x", "E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_an_end_inside_a_body_is_answered(
    shared_broker: Broker, connect: Connect, sent: bytes, error: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(sent)
    peer.half_close()
    peer.expect_fatal(error)


def test_a_half_close_after_whole_commands_still_gets_the_answers(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(pub(topic, b"one"), mpub(topic, [b"two", b"three"]), dpub(topic, 0, b"four"))
    peer.half_close()
    peer.expect_ok(3)
    peer.expect_closed()


def test_a_line_may_have_16384_bytes(shared_broker: Broker, connect: Connect) -> None:
    word = b"A" * 16383
    peer = connect(shared_broker.port)
    peer.send(word + b"\n")
    peer.expect_fatal(b"E_INVALID invalid command " + word)


@pytest.mark.parametrize("length", [16384, 20000, 300_000])
def test_a_longer_line_closes_without_a_word(
    shared_broker: Broker, connect: Connect, length: int
) -> None:
    peer = connect(shared_broker.port)
    # It may be gone before all was sent.
    with contextlib.suppress(ConnectionError):
        peer.send(b"A" * length)
    peer.expect_closed()


@pytest.mark.parametrize("announced", [8, 200])
def test_an_mpub_whose_body_size_lies_publishes_nothing(
    shared_broker: Broker, connect: Connect, topic: str, announced: int
) -> None:
    # nsqd never looks at the difference and takes what follows for a message or a command; a body
    # that does not add up is refused here as a whole (docs/nsq.md).
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"one", b"two"], size=announced))
    peer.half_close()
    frame = peer.next_frame()
    assert frame.kind == ERROR
    assert frame.data.startswith((b"E_BAD_BODY MPUB ", b"E_BAD_MESSAGE MPUB "))
    peer.expect_closed()
    assert_only(shared_broker, connect, topic, [])


# --- what is refused leaves nothing behind, what was answered stays ------------------------------


def assert_only(broker: Broker, connect: Connect, topic: str, bodies: list[bytes]) -> None:
    """These messages, and no other, are in the topic: a fresh first channel gets them all."""
    marker = b"the last one"
    peer = connect(broker.port)
    peer.publish(topic, marker)
    peer.subscribe(topic, "all", ready=2500)
    got = [message.body for message in peer.expect_messages(len(bodies) + 1)]
    assert sorted(got) == sorted([*bodies, marker])
    peer.close()


def test_all_or_nothing_of_an_mpub(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"a", b"b"]), mpub(topic, [b"c", b"d", b""]))
    peer.expect_ok()
    peer.expect_fatal("E_BAD_MESSAGE MPUB invalid message(2) body size 0")
    assert_only(shared_broker, connect, topic, [b"a", b"b"])


def test_commands_before_a_fatal_one_count_and_those_after_it_do_not(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(pub(topic, b"before"), b"WHAT\n", pub(topic, b"after"))
    peer.expect_ok()
    peer.expect_fatal("E_INVALID invalid command WHAT")
    assert_only(shared_broker, connect, topic, [b"before"])


def test_fin_of_someone_elses_message(shared_broker: Broker, connect: Connect, topic: str) -> None:
    owner, other = connect(shared_broker.port), connect(shared_broker.port)
    owner.subscribe(topic, "channel", ready=1)
    other.subscribe(topic, "channel")
    other.publish(topic, b"mine")
    message = owner.expect_message(b"mine")
    name = message.id.decode()
    other.send(fin(message.id), touch(message.id), req(message.id, 0))
    other.expect_error(f"E_FIN_FAILED FIN {name} failed client does not own message")
    other.expect_error(f"E_TOUCH_FAILED TOUCH {name} failed client does not own message")
    other.expect_error(f"E_REQ_FAILED REQ {name} failed client does not own message")
    owner.send(fin(message.id), fin(message.id))
    owner.expect_error(f"E_FIN_FAILED FIN {name} failed ID not in flight")


def test_a_message_is_known_to_its_channel_only(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    one, two = connect(shared_broker.port), connect(shared_broker.port)
    one.subscribe(topic, "one", ready=1)
    two.subscribe(topic, "two", ready=0)
    one.publish(topic, b"x")
    message = one.expect_message(b"x")
    two.send(fin(message.id))
    two.expect_error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")
    two.send(rdy(1))
    assert two.expect_message(b"x").id == message.id


# --- bytes cut anywhere ------------------------------------------------------------------------


def session(topic: str) -> tuple[bytes, list[bytes]]:
    """One of each, and the data of the frames that must come back, in order."""
    sent = b"".join(
        (
            MAGIC,
            identify({"client_id": "cut", "heartbeat_interval": 30000}),
            NOP,
            pub(topic, b"a\nb\r\nPUB c\n"),
            mpub(topic, [b"\n", b"\x00\x00\x00\x01x"]),
            dpub(topic, 0, b"d"),
            line("PUB", topic)[:-1] + b"\r\n" + sized(b"crlf"),
            sub(topic, "channel"),
            fin(ID),
            CLS,
            b"WHAT\n",
        )
    )
    return sent, [
        *[b"OK"] * 6,
        b"E_FIN_FAILED FIN " + ID + b" failed ID not in flight",
        b"CLOSE_WAIT",
        b"E_INVALID invalid command WHAT",
    ]


def read_all(peer: Peer) -> list[bytes]:
    data = []
    while (frame := peer.read_frame()) is not None:
        data.append(frame.data)
    return data


def test_a_session_cut_into_single_bytes(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    sent, expected = session(topic)
    peer = connect(shared_broker.port, magic=b"")
    for start in range(len(sent)):
        peer.send(sent[start : start + 1])
    assert read_all(peer) == expected


def test_a_session_cut_in_two_at_each_byte(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    sent, expected = session(topic)
    # A round trip on another connection in between: the broker has turned its loop, so it has most
    # likely seen the first part alone. (That any cut gives the same is proven by property tests.)
    other = connect(shared_broker.port)
    other.subscribe(topic, "channel", ready=0)
    for cut in range(1, len(sent)):
        with Peer(shared_broker.port, magic=b"") as peer:
            peer.send(sent[:cut])
            other.send(fin(ID))
            other.next_frame()
            peer.send(sent[cut:])
            assert read_all(peer) == expected, f"cut at byte {cut}"


# --- peers that misbehave in time or in number --------------------------------------------------

MIB = 1024 * 1024


def grown_bytes(broker: Broker, before: int) -> int:
    return broker.resident_bytes() - before


@pytest.mark.slow
def test_a_subscriber_that_never_reads_costs_bounded_memory_and_loses_nothing(
    start_broker: StartBroker, connect: Connect, topic: str
) -> None:
    broker = start_broker(verify=False)
    bodies = [struct.pack(">I", number) + b"\xa5" * (MIB - 4) for number in range(96)]
    publisher = connect(broker.port)
    publisher.publish(topic, bodies[0])
    before = broker.resident_bytes()
    for body in bodies[1:]:
        publisher.publish(topic, body)

    deaf = connect(broker.port)
    deaf.negotiate(heartbeat_interval=1000, msg_timeout=1000)
    deaf.subscribe(topic, "channel", ready=2500)

    reader = connect(broker.port)
    reader.negotiate(msg_timeout=60000)
    reader.subscribe(topic, "channel", ready=4)
    left = {body[:4] for body in bodies}
    largest = 0
    while left:
        message = reader.expect_message()
        reader.send(fin(message.id))
        left.discard(message.body[:4])
        largest = max(largest, grown_bytes(broker, before))
    assert largest < 64 * MIB, f"the broker grew by {largest / MIB:.0f} MiB"


@pytest.mark.slow
def test_a_subscriber_that_never_reads_is_dropped(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    publisher = connect(shared_broker.port)
    for _ in range(24):
        publisher.publish(topic, b"\xa5" * MIB)
    deaf = connect(shared_broker.port)
    deaf.negotiate(heartbeat_interval=1000)
    deaf.subscribe(topic, "channel", ready=2500)
    # It goes on talking, so that only its not reading can be the reason.
    deadline = time.monotonic() + 30
    dropped = False
    while not dropped and time.monotonic() < deadline:
        try:
            deaf.send(NOP)
        except (ConnectionResetError, BrokenPipeError):
            dropped = True
        time.sleep(0.25)
    assert dropped, "still connected after 30 s of not reading"


@pytest.mark.slow
def test_a_peer_that_never_reads_its_answers_is_no_longer_read(
    start_broker: StartBroker, connect: Connect, topic: str
) -> None:
    broker = start_broker(verify=False)
    peer = connect(broker.port)
    peer.subscribe(topic, "channel")
    before = broker.resident_bytes()
    asked = fin(ID) * 5000  # each is answered with three times its size
    sent = 0
    with peer.patience(2.0), contextlib.suppress(TimeoutError):
        while sent < 64 * MIB:
            peer.send_raw(asked)
            sent += len(asked)
    assert grown_bytes(broker, before) < 48 * MIB
    # And nobody else notices.
    connect(broker.port).publish(topic, b"x")


@pytest.mark.slow
def test_sizes_announced_and_never_sent_cost_nothing(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(verify=False)
    connect(broker.port).publish("announced", b"x")
    before = broker.resident_bytes()
    for number in range(100):
        peer = connect(broker.port)
        peer.send(line("MPUB", f"announced.{number}") + be32(BODY_BYTES_MAX, 5, MIB))
        peer.send(b"x" * 100)
    connect(broker.port).publish("announced", b"y")
    assert grown_bytes(broker, before) < 48 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "error"),
    [
        (b"PUB topic\n" + be32(100), "E_BAD_MESSAGE PUB failed to read message body"),
        (b"PUB to", None),
    ],
)
def test_one_byte_at_a_time_does_not_keep_a_connection(
    shared_broker: Broker, connect: Connect, begin: bytes, error: str | None
) -> None:
    # A whole command within two heartbeat intervals, or the peer counts as gone: bytes that trickle
    # in do not help.
    peer = connect(shared_broker.port, answer_heartbeats=False)
    peer.negotiate(heartbeat_interval=1000)
    peer.send(begin)
    began_at = time.monotonic()
    frames: list[Any] = []
    with peer.patience(0.5):
        while time.monotonic() < began_at + 30:
            with contextlib.suppress(ConnectionError):
                peer.send(b"\x00" if begin.endswith(b"\n") else b"x")
            try:
                frame = peer.read_frame()
            except Quiet:
                continue
            if frame is None:
                break
            frames.append(frame)
        else:
            pytest.fail(f"still open after 30 s: {frames}")
    assert time.monotonic() - began_at >= 1.9
    errors = [frame.data.decode() for frame in frames if frame.kind == ERROR]
    # A peer whose last byte crossed the close may see a reset in place of the error.
    assert errors in ([] if error is None else [error], [])


@pytest.mark.slow
def test_a_peer_that_vanishes_with_2500_messages_in_flight_loses_none(
    start_broker: StartBroker, connect: Connect, topic: str
) -> None:
    broker = start_broker("--msg-timeout=1s")
    bodies = {b"%d" % number for number in range(2500)}
    connect(broker.port).send(mpub(topic, sorted(bodies)))
    gone = connect(broker.port)
    gone.subscribe(topic, "channel", ready=2500)
    assert {message.body for message in gone.expect_messages(2500)} == bodies
    gone.reset()
    after = connect(broker.port)
    after.subscribe(topic, "channel", ready=2500)
    seen = set()
    for message in after.expect_messages(2500):
        assert message.attempts == 2
        seen.add(message.body)
        after.send(fin(message.id))
    assert seen == bodies


@pytest.mark.slow
def test_a_thousand_connects_and_drops(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(verify=False)
    keeper = connect(broker.port)
    keeper.subscribe("drops", "channel", ready=1)
    keeper.publish("drops", b"kept")
    kept = keeper.expect_message(b"kept")
    files, memory = broker.open_files(), broker.resident_bytes()
    ways = [
        b"",
        b" ",
        MAGIC,
        MAGIC + identify(),
        MAGIC + b"PUB dr",
        MAGIC + line("PUB", "drops") + be32(1000) + b"x" * 10,
        MAGIC + sub("drops", "channel"),
        MAGIC + sub("drops", "channel") + rdy(5),
        MAGIC + b"WHAT\n",
        b"WHAT",
    ]
    for number in range(1000):
        peer = Peer(broker.port, magic=b"")
        peer.send(ways[number % len(ways)])
        if number % 3:
            peer.close()
        else:
            peer.reset()
    keeper.publish("drops", b"next")
    keeper.send(fin(kept.id), rdy(2))
    next_one = keeper.expect_message(b"next")
    keeper.send(fin(next_one.id), fin(kept.id))
    keeper.expect_error(f"E_FIN_FAILED FIN {kept.id.decode()} failed ID not in flight")
    deadline = time.monotonic() + 30
    while broker.open_files() > files + 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert broker.open_files() <= files + 5
    assert grown_bytes(broker, memory) < 32 * MIB


# --- compressed nonsense -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense",
    [
        b"PUB topic\n" + be32(1) + b"x",
        b"\x00\x05\x00\x00" + b"\x00" * 5,  # data before the stream identifier
        b"\xff\x06\x00\x00sNaPpX",
        b"\xff\x06\x00\x00sNaPpY" + b"\x01\x05\x00\x00" + b"\x00\x00\x00\x00N",  # wrong checksum
        b"\xff\x06\x00\x00sNaPpY" + b"\x02\x04\x00\x00" + b"\x00" * 4,  # a reserved type
        b"\xff\x06\x00\x00sNaPpY" + b"\x00\x06\x00\x00" + b"\x00" * 4 + b"\xff\xff",
    ],
)
def test_a_broken_snappy_stream_ends_its_connection(
    shared_broker: Broker, connect: Connect, nonsense: bytes
) -> None:
    peer = connect(shared_broker.port)
    assert peer.negotiate(snappy=True)["snappy"] is True
    peer.start_snappy()
    peer.send_raw(nonsense)
    peer.expect_closed()


def test_a_broken_deflate_stream_ends_its_connection(
    shared_broker: Broker, connect: Connect
) -> None:
    peer = connect(shared_broker.port)
    assert peer.negotiate(deflate=True)["deflate"] is True
    peer.start_deflate()
    peer.send_raw(b"\xff" * 64)
    peer.expect_closed()


@pytest.mark.slow
@pytest.mark.parametrize("after", [b"", line("PUB", "topic") + be32(MIB), line("NOP") * 20000])
def test_a_deflate_bomb_costs_bounded_memory(
    start_broker: StartBroker, connect: Connect, after: bytes
) -> None:
    broker = start_broker(verify=False)
    peer = connect(broker.port)
    peer.negotiate(deflate=True)
    peer.start_deflate()
    before = broker.resident_bytes()
    bomb = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    parts = [bomb.compress(after)]
    parts += [bomb.compress(b"A" * MIB) for _ in range(256)]
    parts.append(bomb.flush(zlib.Z_SYNC_FLUSH))
    with contextlib.suppress(ConnectionError):
        peer.send_raw(b"".join(parts))
    largest = 0
    closed = False
    until = time.monotonic() + 60
    with peer.patience(0.2):
        while not closed:
            assert time.monotonic() < until, "still open after a minute"
            largest = max(largest, grown_bytes(broker, before))
            try:
                closed = peer.read_frame() is None
            except Quiet:
                continue
    assert largest < 64 * MIB, f"the broker grew by {largest / MIB:.0f} MiB"


# --- noise -------------------------------------------------------------------------------------


def test_an_http_request_on_the_tcp_port(shared_broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", shared_broker.port), 30) as conn:
        conn.sendall(b"GET /stats HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := conn.recv(4096):
                answer += data
    assert answer in {struct.pack(">II", 18, 1) + b"E_BAD_PROTOCOL", b""}


def test_a_tls_hello_on_a_plain_connection(shared_broker: Broker, connect: Connect) -> None:
    peer = connect(shared_broker.port, magic=b"")
    peer.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert (frame := peer.read_frame()) is None or frame.data == b"E_BAD_PROTOCOL"


def test_deep_json_in_identify(shared_broker: Broker, connect: Connect) -> None:
    # Ten thousand levels: Go's limit, and far above Python's. Refused, and nobody falls.
    peer = connect(shared_broker.port)
    peer.send(identify(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    peer.expect_fatal("E_BAD_BODY IDENTIFY failed to decode JSON body")
    fine = connect(shared_broker.port)
    fine.send(identify(json.dumps({"unknown": [[[[1]]]]}).encode()))
    fine.expect_ok()
