"""What nsqd 1.3 says, word for word, and how runs of commands become one."""

from struct import pack

import pytest

from penstock.errors import PeerError
from penstock.protocol import nsq
from penstock.protocol.nsq import Command, Limits, scan

LIMITS = Limits(message_size_max=1048576, body_size_max=5242880, req_timeout_ms_max=3_600_000)
ID = b"0123456789abcdef"
NUMBER = 0x0123456789ABCDEF
HUGE = pack(">i", 0x7FFFFFFF)


def sized(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def mpub(*bodies: bytes, count: int | None = None, more: bytes = b"") -> bytes:
    number = len(bodies) if count is None else count
    return b"MPUB t\n" + sized(pack(">i", number) + b"".join(map(sized, bodies)) + more)


def one(data: bytes) -> Command:
    commands, at, _ = scan(data, 0, LIMITS)
    assert len(commands) == 1
    assert at <= len(data)
    return commands[0]


# -- commands that are right


def test_a_run_of_pubs_to_one_topic_is_one_command() -> None:
    data = b"".join(b"PUB t\n" + sized(body) for body in (b"a", b"bb", b"ccc"))
    assert scan(data, 0, LIMITS) == ([("PUB", "t", [b"a", b"bb", b"ccc"], 6)], len(data), 0)


def test_another_topic_begins_another_command() -> None:
    data = b"PUB t\n" + sized(b"a") + b"PUB u\n" + sized(b"b") + b"PUB t\n" + sized(b"c")
    assert scan(data, 0, LIMITS)[0] == [
        ("PUB", "t", [b"a"], 1),
        ("PUB", "u", [b"b"], 1),
        ("PUB", "t", [b"c"], 1),
    ]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 143, 144, 145, 1000, 2500])
def test_a_run_of_fins_is_one_command(count: int) -> None:
    raw = [b"%016x" % (NUMBER + i) for i in range(count)]
    data = b"".join(b"FIN %b\n" % one for one in raw)
    expected = ("FIN", [*range(NUMBER, NUMBER + count)], b"".join(raw))
    assert scan(data, 0, LIMITS) == ([expected], len(data), 0)
    commands, at, _ = scan(data + b"NOP\n" + data, 0, LIMITS)
    assert commands == [expected, ("NOP",), expected]
    assert at == 2 * len(data) + 4
    assert scan(data[:-1], 0, LIMITS)[1] == len(data) - nsq.FIN_BYTES


def test_what_only_looks_like_a_run_of_fins_is_not_one() -> None:
    hidden = b"FIN 01234567\nFIN 89\nFIN %b\n" % ID
    assert scan(hidden, 0, LIMITS)[0][0][0] == "BAD"
    returns = b"FIN %b\r\nFIN %b\r\n" % (ID, ID)
    assert scan(returns, 0, LIMITS)[0] == [("FIN", [NUMBER], ID)] * 2


def test_an_id_that_is_not_ours_is_a_number_nobody_has() -> None:
    foreign = b"zz23456789abcdef"
    data = b"FIN %b\nFIN %b\nFIN %b\n" % (ID, foreign, ID)
    assert scan(data, 0, LIMITS)[0] == [
        ("FIN", [NUMBER], ID),
        ("FIN", [-1], foreign),
        ("FIN", [NUMBER], ID),
    ]
    assert one(b"TOUCH %b\n" % foreign) == ("TOUCH", -1, foreign)
    assert one(b"REQ %b 5\n" % foreign) == ("REQ", -1, 5, foreign)


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (b"NOP\n", ("NOP",)),
        (b"NOP more words\r\n", ("NOP",)),
        (b"CLS\n", ("CLS",)),
        (b"RDY\n", ("RDY", 1)),
        (b"RDY \n", ("RDY", 0)),
        (b"RDY 2500\n", ("RDY", 2500)),
        (b"RDY 18446744073709551615\n", ("RDY", -1)),
        (b"RDY 18446744073709551617\n", ("RDY", 1)),
        (b"SUB t c#ephemeral\n", ("SUB", "t", "c#ephemeral")),
        (b"SUB t c surplus\n", ("SUB", "t", "c")),
        (b"TOUCH %b\n" % ID, ("TOUCH", NUMBER, ID)),
        (b"REQ %b 1500\n" % ID, ("REQ", NUMBER, 1500, ID)),
        (b"REQ %b \n" % ID, ("REQ", NUMBER, 0, ID)),
        (b"REQ %b 99999999\n" % ID, ("REQ", NUMBER, 99999999, ID)),
        (b"PUB t\r\n" + sized(b"x\r\n"), ("PUB", "t", [b"x\r\n"], 3)),
        (b"DPUB t 100\n" + sized(b"x"), ("DPUB", "t", 100, [b"x"], 1)),
        (b"DPUB t 3600000\n" + sized(b"x"), ("DPUB", "t", 3600000, [b"x"], 1)),
        (mpub(b"a", b"bb"), ("MPUB", "t", [b"a", b"bb"], 3)),
        (b"IDENTIFY\n" + sized(b"{}"), ("IDENTIFY", b"{}")),
        (b"AUTH\n" + sized(b"secret"), ("AUTH", b"secret")),
    ],
)
def test_commands(data: bytes, command: Command) -> None:
    assert scan(data, 0, LIMITS) == ([command], len(data), 0)


@pytest.mark.parametrize(
    "stops",
    [b"IDENTIFY\n" + sized(b"{}"), b"AUTH\n" + sized(b"s"), b"SUB t c\n", b"PUB \n", b"?\n"],
)
def test_the_scan_stops_behind_what_may_change_everything(stops: bytes) -> None:
    commands, at, _ = scan(b"NOP\n" + stops + b"NOP\n", 0, LIMITS)
    assert len(commands) == 2
    assert at == 4 + len(stops)


# -- commands that are not whole yet


@pytest.mark.parametrize(
    ("data", "needed"),
    [
        (b"PUB t", 0),
        (b"PUB t\n", 10),
        (b"PUB t\n\0\0", 10),
        (b"PUB t\n\0\0\0\x05", 15),
        (b"PUB t\n\0\0\0\x05four", 15),
        (b"MPUB t\n", 11),
        (b"MPUB t\n\0\0\0\x20", 15),
        (b"MPUB t\n\0\0\0\x20\0\0\0\2", 43),
        (b"DPUB t 5\n\0\0\0\x05x", 18),
        (b"IDENTIFY\n\0\0", 13),
        (b"AUTH\n\0\0\0\x06sec", 15),
    ],
)
def test_what_is_not_whole_waits_and_says_for_how_much(data: bytes, needed: int) -> None:
    assert scan(b"NOP\n" + data, 0, LIMITS) == ([("NOP",)], 4, needed)


def test_a_line_is_cut_when_it_does_not_fit_into_nsqds_buffer() -> None:
    longest = b"NOP" + b" " * 16380 + b"\n"
    assert len(longest) == 16384
    assert one(longest) == ("NOP",)
    assert scan(b" " + longest, 0, LIMITS) == ([("CUT",)], 16385, 0)
    assert scan(longest[:-1], 0, LIMITS) == ([], 0, 0)


# -- commands that are wrong, in nsqd's words


@pytest.mark.parametrize(
    ("data", "verb", "words"),
    [
        (b"\n", "", b"E_INVALID invalid command "),
        (b"FOO bar\n", "", b"E_INVALID invalid command FOO"),
        (b"pub t\n", "", b"E_INVALID invalid command pub"),
        (b"\xff\xfe\n", "", b"E_INVALID invalid command \xff\xfe"),
        (b"PUB\n", "PUB", b"E_INVALID PUB insufficient number of parameters"),
        (b"PUB \n", "PUB", b'E_BAD_TOPIC PUB topic name "" is not valid'),
        (b"PUB a*b\n", "PUB", b'E_BAD_TOPIC PUB topic name "a*b" is not valid'),
        (b'PUB a"\t\n', "PUB", b'E_BAD_TOPIC PUB topic name "a\\"\\t" is not valid'),
        (b"PUB t\n\0\0\0\0", "PUB", b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n\xff\xff\xff\xff", "PUB", b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (b"PUB t\n" + HUGE, "PUB", b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"),
        (b"MPUB\n", "MPUB", b"E_INVALID MPUB insufficient number of parameters"),
        (b"MPUB \xe9\n", "MPUB", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "\\xe9" is not valid'),
        (b"MPUB t\n\0\0\0\0", "MPUB", b"E_BAD_BODY MPUB invalid body size 0"),
        (b"MPUB t\n" + HUGE, "MPUB", b"E_BAD_BODY MPUB body too big 2147483647 > 5242880"),
        (b"MPUB t\n\0\0\0\x03", "MPUB", b"E_BAD_BODY MPUB failed to read message count"),
        (mpub(count=0), "MPUB", b"E_BAD_BODY MPUB invalid message count 0"),
        (mpub(count=-1), "MPUB", b"E_BAD_BODY MPUB invalid message count -1"),
        (mpub(count=1048576), "MPUB", b"E_BAD_BODY MPUB invalid message count 1048576"),
        (
            mpub(count=1048575),
            "MPUB",
            b"E_BAD_MESSAGE MPUB failed to read message(0) body size",
        ),
        (
            mpub(b"a", count=2, more=b"\0\0"),
            "MPUB",
            b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (mpub(b"a", b""), "MPUB", b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (
            mpub(b"a", b"b", count=3, more=b"\xff\xff\xff\xffx"),
            "MPUB",
            b"E_BAD_MESSAGE MPUB invalid message(2) body size -1",
        ),
        (
            mpub(b"a", count=2, more=HUGE + b"x"),
            "MPUB",
            b"E_BAD_MESSAGE MPUB message too big 2147483647 > 1048576",
        ),
        (
            mpub(b"a", count=2, more=b"\0\0\0\x09x"),
            "MPUB",
            b"E_BAD_MESSAGE MPUB failed to read message body",
        ),
        (
            mpub(b"a", more=b"xyz"),
            "MPUB",
            b"E_BAD_BODY MPUB body has 3 bytes more than its 1 messages",
        ),
        (b"DPUB t\n", "DPUB", b"E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB ! 1\n", "DPUB", b'E_BAD_TOPIC DPUB topic name "!" is not valid'),
        (b"DPUB t -1\n", "DPUB", b"E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t 3600001\n", "DPUB", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
        (b"DPUB t 1\n\0\0\0\0", "DPUB", b"E_BAD_MESSAGE DPUB invalid message body size 0"),
        (b"DPUB t 1\n" + HUGE, "DPUB", b"E_BAD_MESSAGE DPUB message too big 2147483647 > 1048576"),
        (b"IDENTIFY\n\0\0\0\0", "IDENTIFY", b"E_BAD_BODY IDENTIFY invalid body size 0"),
        (
            b"IDENTIFY\n" + HUGE,
            "IDENTIFY",
            b"E_BAD_BODY IDENTIFY body too big 2147483647 > 5242880",
        ),
        (b"AUTH x\n", "AUTH", b"E_INVALID AUTH invalid number of parameters"),
        (b"AUTH\n\xff\xff\xff\xff", "AUTH", b"E_BAD_BODY AUTH invalid body size -1"),
        (b"AUTH\n" + HUGE, "AUTH", b"E_BAD_BODY AUTH body too big 2147483647 > 5242880"),
        (b"SUB t\n", "SUB", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB  c\n", "SUB", b'E_BAD_TOPIC SUB topic name "" is not valid'),
        (b"SUB t c#x\n", "SUB", b'E_BAD_CHANNEL SUB channel name "c#x" is not valid'),
        (b"RDY -1\n", "RDY", b"E_INVALID RDY could not parse count -1"),
        (b"RDY 1.5\n", "RDY", b"E_INVALID RDY could not parse count 1.5"),
        (b"FIN\n", "FIN", b"E_INVALID FIN insufficient number of params"),
        (b"FIN short\n", "FIN", b"E_INVALID invalid message ID"),
        (b"TOUCH\n", "TOUCH", b"E_INVALID TOUCH insufficient number of params"),
        (b"TOUCH %b0\n" % ID, "TOUCH", b"E_INVALID invalid message ID"),
        (b"REQ %b\n" % ID, "REQ", b"E_INVALID REQ insufficient number of params"),
        (b"REQ short 1\n", "REQ", b"E_INVALID invalid message ID"),
        (b"REQ %b 1s\n" % ID, "REQ", b"E_INVALID REQ could not parse timeout 1s"),
    ],
)
def test_what_is_wrong_comes_out_in_nsqds_words(data: bytes, verb: str, words: bytes) -> None:
    command = one(data)
    assert command[0] == "BAD"
    assert command[1] == verb
    assert nsq.error_frame(command[2]) == nsq.frame(nsq.FRAME_ERROR, words)
    assert command[2].fatal


def test_a_wrong_pub_behind_good_ones_does_not_take_them_along() -> None:
    data = b"PUB t\n" + sized(b"a") + b"PUB t\n\0\0\0\0"
    commands, _, _ = scan(data, 0, LIMITS)
    assert commands[0] == ("PUB", "t", [b"a"], 1)
    assert commands[1][0] == "BAD"


# -- the other way, and small things


def test_frames() -> None:
    assert nsq.OK_FRAME == b"\0\0\0\x06\0\0\0\0OK"
    assert nsq.BAD_PROTOCOL_FRAME == b"\0\0\0\x12\0\0\0\x01E_BAD_PROTOCOL"
    assert nsq.error_frame(PeerError("E_FIN_FAILED", "")) == b"\0\0\0\x10\0\0\0\x01E_FIN_FAILED"


@pytest.mark.parametrize(
    ("digits", "number"),
    [
        (b"", 0),
        (b"007", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", -(2**63)),
        (b"1" + b"0" * 25, 10**25 % 2**64),
        (b"-1", None),
        (b"+1", None),
        (b" 1", None),
        (b"1_0", None),
        ("١".encode(), None),
    ],
)
def test_numbers_are_nsqds(digits: bytes, number: int | None) -> None:
    if number is not None and number >= 2**63:
        number -= 2**64
    assert nsq.parse_number(digits) == number


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain-name_1.x", '"plain-name_1.x"'),
        (b'say "hi" \\', '"say \\"hi\\" \\\\"'),
        (b"\a\b\t\n\v\f\r", '"\\a\\b\\t\\n\\v\\f\\r"'),
        (b"\x00\x1b\x7f", '"\\x00\\x1b\\x7f"'),
        ("naïve 水".encode(), '"naïve 水"'),
        ("\u200b\u00a0\U000e0001".encode(), '"\\u200b\\u00a0\\U000e0001"'),
        (b"\xff\xc3(\xed\xa0\x80", '"\\xff\\xc3(\\xed\\xa0\\x80"'),
    ],
)
def test_names_are_quoted_as_go_does(raw: bytes, shown: str) -> None:
    assert nsq.quoted(raw) == shown


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PUB t", None),
        (b"NOP", None),
        (b"PUB t\n\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\r\n\0\0\0\x05ab", "E_BAD_MESSAGE PUB failed to read message body"),
        (b"DPUB t 5\n", "E_BAD_MESSAGE DPUB failed to read message body size"),
        (b"MPUB t\n\0", "E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n\0\0\0\x20\0", "E_BAD_BODY MPUB failed to read message count"),
        (b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\x05{}", "E_BAD_BODY IDENTIFY failed to read body"),
        (b"AUTH\n\0\0\0\x05s", "E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_a_peer_that_hangs_up_inside_a_command_is_told(data: bytes, words: str | None) -> None:
    fault = nsq.cut_short(data)
    assert (None if fault is None else str(fault)) == words


def mpub_body(*messages: bytes) -> bytes:
    return b"MPUB t\n\0\0\0\x40\0\0\0\x02" + b"".join(messages)


def test_a_peer_that_hangs_up_inside_a_batch_is_told_which_message() -> None:
    fault = nsq.cut_short(mpub_body(sized(b"a"), b"\0\0"))
    assert str(fault) == "E_BAD_MESSAGE MPUB failed to read message(1) body size"
    fault = nsq.cut_short(mpub_body(sized(b"a"), b"\0\0\0\x05x"))
    assert str(fault) == "E_BAD_MESSAGE MPUB failed to read message body"
