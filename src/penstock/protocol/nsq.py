"""NSQ's TCP protocol V2, the broker's side: what clients send becomes commands, answers become
frames.

Everything one socket read brought is scanned in one flat pass (``scan``); a run of PUBs to one
topic and a run of FINs each become one command, so that 500 of them cost one call further in.
Commands are tuples whose first member is the verb. No state is known here: whether a command is
allowed is for the door to say, and a command with bad parameters comes out as (BAD, verb, error)
in its place.

    (PUB, topic, bodies, bytes)            (SUB, topic, channel)      (IDENTIFY, json)
    (MPUB, topic, bodies, bytes)           (RDY, count)               (AUTH, secret)
    (DPUB, topic, delay_ms, bodies, bytes) (REQ, id, delay_ms, raw)   (CLS,)
    (FIN, ids, raw ids)                    (TOUCH, id, raw)           (NOP,)
    (BAD, verb, PeerError)                 (CUT,)  a line that never ends: close without a word

The scan stops behind IDENTIFY, AUTH and SUB, which may change how the bytes after them must be
read or make the connection wait, and behind what is wrong, which mostly ends the connection; it is
called again for the rest.
"""

from __future__ import annotations

import sys
from array import array
from binascii import Error as NotHex
from binascii import unhexlify
from collections.abc import Callable
from struct import Struct
from typing import Final, Literal

from penstock.errors import PeerError
from penstock.limits import COMMAND_LINE_BYTES_MAX
from penstock.names import is_valid_name_bytes

# The version of nsqd that clients and tools are told to expect; some switch features by it.
NSQD_VERSION = "1.3.0"

MAGIC_V2 = b"  V2"
FRAME_RESPONSE, FRAME_ERROR = 0, 1
FIN_BYTES = 21

PUB: Final = "PUB"
MPUB: Final = "MPUB"
DPUB: Final = "DPUB"
FIN: Final = "FIN"
REQ: Final = "REQ"
TOUCH: Final = "TOUCH"
RDY: Final = "RDY"
SUB: Final = "SUB"
IDENTIFY: Final = "IDENTIFY"
AUTH: Final = "AUTH"
CLS: Final = "CLS"
NOP: Final = "NOP"
BAD: Final = "BAD"
CUT: Final = "CUT"

Command = (
    tuple[Literal["PUB", "MPUB"], str, list[bytes], int]
    | tuple[Literal["DPUB"], str, int, list[bytes], int]
    | tuple[Literal["FIN"], list[int], bytes]
    | tuple[Literal["REQ"], int, int, bytes]
    | tuple[Literal["TOUCH"], int, bytes]
    | tuple[Literal["RDY"], int]
    | tuple[Literal["SUB"], str, str]
    | tuple[Literal["IDENTIFY", "AUTH"], bytes]
    | tuple[Literal["CLS", "NOP", "CUT"]]
    | tuple[Literal["BAD"], str, PeerError]
)

_size_at: Callable[[bytes, int], tuple[int]] = Struct(">i").unpack_from
_HEAD = Struct(">II")
_LITTLE = sys.byteorder == "little"
_NO_ID = -1


class Limits:
    """The sizes a scan must know."""

    __slots__ = ("body_size_max", "message_size_max", "req_timeout_ms_max")

    def __init__(self, message_size_max: int, body_size_max: int, req_timeout_ms_max: int) -> None:
        self.message_size_max = message_size_max
        self.body_size_max = body_size_max
        self.req_timeout_ms_max = req_timeout_ms_max


def frame(kind: int, data: bytes) -> bytes:
    return _HEAD.pack(len(data) + 4, kind) + data


def error_frame(error: PeerError) -> bytes:
    return frame(FRAME_ERROR, str(error).encode("utf-8", "surrogateescape"))


OK_FRAME = frame(FRAME_RESPONSE, b"OK")
HEARTBEAT_FRAME = frame(FRAME_RESPONSE, b"_heartbeat_")
CLOSE_WAIT_FRAME = frame(FRAME_RESPONSE, b"CLOSE_WAIT")
BAD_PROTOCOL_FRAME = frame(FRAME_ERROR, b"E_BAD_PROTOCOL")


# What becomes of a command that was right in itself. Who settles what is not theirs may go on.
FAILED = {
    PUB: "E_PUB_FAILED",
    MPUB: "E_MPUB_FAILED",
    DPUB: "E_DPUB_FAILED",
    SUB: "E_SUB_FAILED",
    FIN: "E_FIN_FAILED",
    REQ: "E_REQ_FAILED",
    TOUCH: "E_TOUCH_FAILED",
}
SETTLING = (FIN, REQ, TOUCH)


def failed(verb: str, reason: object, raw_id: bytes = b"") -> PeerError:
    what = f"{verb} {text(raw_id)}" if raw_id else verb
    return PeerError(FAILED[verb], f"{what} failed {reason}", fatal=verb not in SETTLING)


def scan(data: bytes, at: int, limits: Limits) -> tuple[list[Command], int, int]:
    """Commands that are whole in ``data`` from ``at`` on, where the rest begins, and how many
    bytes the rest must have before another scan can find anything (0: unknown)."""
    commands: list[Command] = []
    end = len(data)
    plain_until = 0
    while at < end:
        if data.startswith(b"FIN ", at) and at >= plain_until:
            run = _fin_run(data, at)
            if run:
                raw = data[at + 4 : at + FIN_BYTES * run - 1].replace(b"\nFIN ", b"")
                ids = _hex_ids(raw)
                if len(ids) == run:
                    commands.append((FIN, ids, raw))
                    at += FIN_BYTES * run
                    continue
                plain_until = at + FIN_BYTES * run  # not ours, or no lines at all: one by one
        line_end = data.find(b"\n", at, at + COMMAND_LINE_BYTES_MAX)
        if line_end < 0:
            if end - at >= COMMAND_LINE_BYTES_MAX:
                commands.append((CUT,))
                return commands, end, 0
            return commands, at, 0
        line = data[at : line_end - 1 if data[line_end - 1] == 13 else line_end]
        body_at = line_end + 1
        verb, *params = line.split(b" ")
        if verb == b"PUB":
            found = _scan_pub(data, at, body_at, params, limits)
        elif verb in _WITH_BODY:
            found = _WITH_BODY[verb](data, body_at, params, limits)
        else:
            command = _plain(verb, params)
            commands.append(command)
            at = body_at
            if verb == b"SUB" or command[0] == BAD:
                break
            continue
        if isinstance(found, int):
            return commands, at, body_at - at + found
        command, at = found
        commands.append(command)
        if verb in (b"IDENTIFY", b"AUTH") or command[0] == BAD:
            break
    return commands, at, 0


Found = tuple[Command, int] | int
"""A command and where the next begins; or the bytes needed behind the line to find it."""


def _fin_run(data: bytes, at: int) -> int:
    """How many lines of FIN's length follow each other at ``at`` with FIN in front. What stands for
    their ids is not looked at."""
    if not data.startswith(b"\nFIN ", at + FIN_BYTES - 1):
        return 1 if data.startswith(b"\n", at + FIN_BYTES - 1) else 0
    run, width = 0, 16
    while True:
        # a window of lines, column by column; each is wider than the one before, so that a short
        # run does not look at all there is
        low = at + FIN_BYTES * run
        high = low + FIN_BYTES * width
        found = width
        for offset, byte in _FIN_COLUMNS:
            column = data[low + offset : high : FIN_BYTES]
            same = len(column) - len(column.lstrip(byte))
            if same < found:
                found = same
        run += found
        if found < width:
            return run
        width *= 8


_FIN_COLUMNS = ((0, b"F"), (1, b"I"), (2, b"N"), (3, b" "), (20, b"\n"))


def _hex_ids(raw: bytes) -> list[int]:
    """Ids of 16 hex characters each, put together; none when one of them is something else."""
    try:
        numbers = array("Q", unhexlify(raw))
    except (NotHex, ValueError):
        return []
    if _LITTLE:
        numbers.byteswap()
    return numbers.tolist()


def _id(raw: bytes) -> int:
    """One id; what is not hex is no id of ours."""
    ids = _hex_ids(raw)
    return ids[0] if ids else _NO_ID


def _scan_pub(data: bytes, at: int, body_at: int, params: list[bytes], limits: Limits) -> Found:
    """A PUB, and all PUBs to the same topic right behind it."""
    if not params:
        return bad(PUB, "E_INVALID", "PUB insufficient number of parameters"), body_at
    if not is_valid_name_bytes(params[0]):
        return bad(PUB, "E_BAD_TOPIC", f"PUB topic name {quoted(params[0])} is not valid"), body_at
    found = _message(data, body_at, "PUB", limits)
    if isinstance(found, int):
        return found
    if not isinstance(found[0], bytes):
        return (BAD, PUB, found[0]), found[1]
    body, next_at = found
    bodies = [body]
    total = len(body)
    prefix = data[at:body_at]
    prefix_bytes = len(prefix)
    size_max = limits.message_size_max
    end = len(data)
    while data.startswith(prefix, next_at):
        size_at = next_at + prefix_bytes
        if size_at + 4 > end:
            break
        (size,) = _size_at(data, size_at)
        stop = size_at + 4 + size
        if stop > end or not 0 < size <= size_max:
            break  # the next round of the scan waits for it or says what is wrong
        bodies.append(data[size_at + 4 : stop])
        total += size
        next_at = stop
    return (PUB, params[0].decode(), bodies, total), next_at


def _message(
    data: bytes, at: int, verb: str, limits: Limits
) -> tuple[bytes, int] | tuple[PeerError, int] | int:
    """A size and a body."""
    if len(data) - at < 4:
        return 4
    (size,) = _size_at(data, at)
    if size <= 0:
        return PeerError("E_BAD_MESSAGE", f"{verb} invalid message body size {size}"), at
    if size > limits.message_size_max:
        reason = f"{verb} message too big {size} > {limits.message_size_max}"
        return PeerError("E_BAD_MESSAGE", reason), at
    stop = at + 4 + size
    if stop > len(data):
        return 4 + size
    return data[at + 4 : stop], stop


def _scan_mpub(data: bytes, at: int, params: list[bytes], limits: Limits) -> Found:
    if not params:
        return bad(MPUB, "E_INVALID", "MPUB insufficient number of parameters"), at
    if not is_valid_name_bytes(params[0]):
        # nsqd says the code twice here, and clients may look for it
        name = quoted(params[0])
        return bad(MPUB, "E_BAD_TOPIC", f"E_BAD_TOPIC MPUB topic name {name} is not valid"), at
    if len(data) - at < 4:
        return 4
    (size,) = _size_at(data, at)
    if size <= 0:
        return bad(MPUB, "E_BAD_BODY", f"MPUB invalid body size {size}"), at
    if size > limits.body_size_max:
        return bad(MPUB, "E_BAD_BODY", f"MPUB body too big {size} > {limits.body_size_max}"), at
    if size < 4:
        return bad(MPUB, "E_BAD_BODY", "MPUB failed to read message count"), at
    if len(data) - at < 8:
        return 8  # the count is judged as soon as it is there, as nsqd does
    fault = _count_fault(_size_at(data, at + 4)[0], limits)
    if fault is not None:
        return (BAD, MPUB, fault), at
    stop = at + 4 + size
    if stop > len(data):
        return 4 + size
    bodies = parse_mpub(data, at + 4, stop, limits)
    if isinstance(bodies, PeerError):
        return (BAD, MPUB, bodies), stop
    return (MPUB, params[0].decode(), bodies, size - 4 - 4 * len(bodies)), stop


def parse_mpub(data: bytes, at: int, stop: int, limits: Limits) -> list[bytes] | PeerError:
    """The bodies of an MPUB from its count on; all or nothing. (HTTP's binary mpub has the same
    layout.)"""
    (count,) = _size_at(data, at)
    fault = _count_fault(count, limits)
    if fault is not None:
        return fault
    at += 4
    start = at
    bodies: list[bytes] = []
    append = bodies.append
    size_at = _size_at
    if count * 5 <= stop - at:
        for _ in range(count):
            if at > stop - 4:
                break
            body_at = at + 4
            at = body_at + size_at(data, at)[0]
            append(data[body_at:at])
            if at <= body_at:
                break
        if at == stop and len(bodies) == count:
            lengths = {*map(len, bodies)}
            if max(lengths) <= limits.message_size_max and min(lengths) > 0:
                return bodies
    return _mpub_fault(data, start, stop, count, limits)


def _count_fault(count: int, limits: Limits) -> PeerError | None:
    if 0 < count <= (limits.body_size_max - 4) // 5:
        return None
    return PeerError("E_BAD_BODY", f"MPUB invalid message count {count}")


def _mpub_fault(data: bytes, at: int, stop: int, count: int, limits: Limits) -> PeerError:
    """What exactly is wrong with a batch."""
    for index in range(count):
        if at + 4 > stop:
            return PeerError("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
        (size,) = _size_at(data, at)
        if size <= 0:
            return PeerError("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
        if size > limits.message_size_max:
            reason = f"MPUB message too big {size} > {limits.message_size_max}"
            return PeerError("E_BAD_MESSAGE", reason)
        at += 4 + size
        if at > stop:
            return PeerError("E_BAD_MESSAGE", "MPUB failed to read message body")
    return PeerError(
        "E_BAD_BODY", f"MPUB body has {stop - at} bytes more than its {count} messages"
    )


def _scan_dpub(data: bytes, at: int, params: list[bytes], limits: Limits) -> Found:
    if len(params) < 2:
        return bad(DPUB, "E_INVALID", "DPUB insufficient number of parameters"), at
    if not is_valid_name_bytes(params[0]):
        return bad(DPUB, "E_BAD_TOPIC", f"DPUB topic name {quoted(params[0])} is not valid"), at
    delay_ms = parse_number(params[1])
    if delay_ms is None:
        return bad(DPUB, "E_INVALID", f"DPUB could not parse timeout {text(params[1])}"), at
    if not 0 <= delay_ms <= limits.req_timeout_ms_max:
        shown = f"{delay_ms} out of range 0-{limits.req_timeout_ms_max}"
        return bad(DPUB, "E_INVALID", f"DPUB timeout {shown}"), at
    found = _message(data, at, "DPUB", limits)
    if isinstance(found, int):
        return found
    if not isinstance(found[0], bytes):
        return (BAD, DPUB, found[0]), found[1]
    return (DPUB, params[0].decode(), delay_ms, [found[0]], len(found[0])), found[1]


def _scan_identify(data: bytes, at: int, params: list[bytes], limits: Limits) -> Found:
    found = _body(data, at, IDENTIFY, limits)
    if isinstance(found, int):
        return found
    if not isinstance(found[0], bytes):
        return (BAD, IDENTIFY, found[0]), found[1]
    return (IDENTIFY, found[0]), found[1]


def _scan_auth(data: bytes, at: int, params: list[bytes], limits: Limits) -> Found:
    if params:
        return bad(AUTH, "E_INVALID", "AUTH invalid number of parameters"), at
    found = _body(data, at, AUTH, limits)
    if isinstance(found, int):
        return found
    if not isinstance(found[0], bytes):
        return (BAD, AUTH, found[0]), found[1]
    return (AUTH, found[0]), found[1]


def _body(
    data: bytes, at: int, verb: str, limits: Limits
) -> tuple[bytes, int] | tuple[PeerError, int] | int:
    if len(data) - at < 4:
        return 4
    (size,) = _size_at(data, at)
    if size > limits.body_size_max:
        return PeerError("E_BAD_BODY", f"{verb} body too big {size} > {limits.body_size_max}"), at
    if size <= 0:
        return PeerError("E_BAD_BODY", f"{verb} invalid body size {size}"), at
    stop = at + 4 + size
    if stop > len(data):
        return 4 + size
    return data[at + 4 : stop], stop


_WITH_BODY = {
    b"MPUB": _scan_mpub,
    b"DPUB": _scan_dpub,
    b"IDENTIFY": _scan_identify,
    b"AUTH": _scan_auth,
}


def _plain(verb: bytes, params: list[bytes]) -> Command:
    """Commands that are a line and nothing else."""
    if verb in (b"FIN", b"TOUCH"):
        name = verb.decode()
        if not params:
            return bad(name, "E_INVALID", f"{name} insufficient number of params")
        if len(params[0]) != 16:
            return bad(name, "E_INVALID", "invalid message ID")
        if verb == b"FIN":
            return (FIN, [_id(params[0])], params[0])
        return (TOUCH, _id(params[0]), params[0])
    if verb == b"RDY":
        count = 1 if not params else parse_number(params[0])
        if count is None:
            return bad(RDY, "E_INVALID", f"RDY could not parse count {text(params[0])}")
        return (RDY, count)
    if verb == b"REQ":
        if len(params) < 2:
            return bad(REQ, "E_INVALID", "REQ insufficient number of params")
        if len(params[0]) != 16:
            return bad(REQ, "E_INVALID", "invalid message ID")
        delay_ms = parse_number(params[1])
        if delay_ms is None:
            return bad(REQ, "E_INVALID", f"REQ could not parse timeout {text(params[1])}")
        return (REQ, _id(params[0]), delay_ms, params[0])
    if verb == b"SUB":
        if len(params) < 2:
            return bad(SUB, "E_INVALID", "SUB insufficient number of parameters")
        topic, channel = params[0], params[1]
        if not is_valid_name_bytes(topic):
            return bad(SUB, "E_BAD_TOPIC", f"SUB topic name {quoted(topic)} is not valid")
        if not is_valid_name_bytes(channel):
            return bad(SUB, "E_BAD_CHANNEL", f"SUB channel name {quoted(channel)} is not valid")
        return (SUB, topic.decode(), channel.decode())
    if verb == b"NOP":
        return (NOP,)
    if verb == b"CLS":
        return (CLS,)
    return bad("", "E_INVALID", f"invalid command {text(verb)}")


def bad(verb: str, code: str, message: str) -> Command:
    return (BAD, verb, PeerError(code, message))


def parse_number(digits: bytes) -> int | None:
    """nsqd's numbers: digits only, none is 0; 64 bits that wrap and may come out negative."""
    if not digits:
        return 0
    if not digits.isdigit():
        return None
    number = int(digits) if len(digits) < 20 else _wrapped(digits)
    return number if number < 1 << 63 else number - (1 << 64)


def _wrapped(digits: bytes) -> int:
    number = 0
    for digit in digits:
        number = (number * 10 + digit - 48) & 0xFFFFFFFFFFFFFFFF
    return number


def text(raw: bytes) -> str:
    """Bytes of a peer as they go back to it in an error."""
    return raw.decode("utf-8", "surrogateescape")


_ESCAPES = {
    7: "\\a",
    8: "\\b",
    9: "\\t",
    10: "\\n",
    11: "\\v",
    12: "\\f",
    13: "\\r",
    34: '\\"',
    92: "\\\\",
}


def quoted(raw: bytes) -> str:
    """A name in quotes as Go's %q writes it."""
    out: list[str] = []
    for char in raw.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in _ESCAPES:
            out.append(_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            out.append(char)
        elif code < 0x80:
            out.append(f"\\x{code:02x}")
        elif code < 0x10000:
            out.append(f"\\u{code:04x}")
        else:
            out.append(f"\\U{code:08x}")
    return f'"{"".join(out)}"'


def cut_short(data: bytes) -> PeerError | None:
    """What nsqd says when the peer hangs up inside the command that ``data`` begins (None:
    nothing)."""
    line, newline, rest = data.partition(b"\n")
    if not newline:
        return None
    verb = line.rstrip(b"\r").split(b" ")[0].decode("ascii", "replace")
    if verb in (PUB, DPUB):
        what = "body size" if len(rest) < 4 else "body"
        return PeerError("E_BAD_MESSAGE", f"{verb} failed to read message {what}")
    if verb in (IDENTIFY, AUTH):
        what = "body size" if len(rest) < 4 else "body"
        return PeerError("E_BAD_BODY", f"{verb} failed to read {what}")
    if verb == MPUB:
        if len(rest) < 4:
            return PeerError("E_BAD_BODY", "MPUB failed to read body size")
        if len(rest) < 8:
            return PeerError("E_BAD_BODY", "MPUB failed to read message count")
        index, at = 0, 8
        while len(rest) - at >= 4:
            (size,) = _size_at(rest, at)
            at += 4 + size
            if size <= 0 or at > len(rest):
                return PeerError("E_BAD_MESSAGE", "MPUB failed to read message body")
            index += 1
        return PeerError("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
    return None
