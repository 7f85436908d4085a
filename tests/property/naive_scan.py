"""NSQ's commands read one at a time in the plainest way: what the real scan is compared with.

``naive_scan`` gives one event a message or command; ``events`` takes the runs of the real scan
apart in the same way. An error is known by its verb and code here; its words are tested elsewhere.
"""

import re
from collections.abc import Iterable
from struct import unpack_from

from penstock.protocol.nsq import Command, Limits, parse_number, scan

Event = tuple[object, ...]
LINE_BYTES_MAX = 16384
PARAMETERS_MIN = {"PUB": 1, "MPUB": 1, "DPUB": 2, "FIN": 1, "TOUCH": 1, "REQ": 2, "SUB": 2}
WORDS = {"PUB", "MPUB", "DPUB", "FIN", "TOUCH", "REQ", "SUB", "RDY", "CLS", "NOP"}
WORDS |= {"IDENTIFY", "AUTH"}
is_name = re.compile(rb"(?=.{1,64}\Z)[.a-zA-Z0-9_-]+(#ephemeral)?").fullmatch


class Short(Exception):
    """The command goes on behind the end of the data."""


class Bad(Exception):
    """Verb and code of what is wrong."""


def naive_scan(data: bytes, limits: Limits) -> tuple[list[Event], int]:
    """Events up to the first error, and where the first command that is not whole begins."""
    found: list[Event] = []
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at, at + LINE_BYTES_MAX)
        if newline < 0 and len(data) - at < LINE_BYTES_MAX:
            break
        if newline < 0:
            return [*found, ("CUT",)], len(data)
        verb, *params = data[at:newline].removesuffix(b"\r").split(b" ")
        try:
            event, at = _command(verb.decode("latin-1"), params, data, newline + 1, limits)
        except Short:
            break
        except Bad as wrong:
            return [*found, ("BAD", *wrong.args)], len(data)
        found.append(event)
    return found, at


def _command(
    verb: str, params: list[bytes], data: bytes, at: int, limits: Limits
) -> tuple[Event, int]:
    if verb not in WORDS:
        raise Bad("", "E_INVALID")
    if len(params) < PARAMETERS_MIN.get(verb, 0) or (verb == "AUTH" and params):
        raise Bad(verb, "E_INVALID")
    if verb in ("PUB", "MPUB", "DPUB", "SUB") and not is_name(params[0]):
        raise Bad(verb, "E_BAD_TOPIC")
    if verb == "SUB" and not is_name(params[1]):
        raise Bad(verb, "E_BAD_CHANNEL")
    if verb in ("FIN", "TOUCH", "REQ") and len(params[0]) != 16:
        raise Bad(verb, "E_INVALID")
    number: int | None = 1
    if verb in ("REQ", "DPUB") or (verb == "RDY" and params):
        number = parse_number(params[0 if verb == "RDY" else 1])
    if number is None or (verb == "DPUB" and not 0 <= number <= limits.req_timeout_ms_max):
        raise Bad(verb, "E_INVALID")
    if verb in ("CLS", "NOP"):
        return (verb,), at
    if verb in ("FIN", "TOUCH"):
        return (verb, params[0]), at
    if verb == "REQ":
        return (verb, params[0], number), at
    if verb == "RDY":
        return (verb, number), at
    if verb == "SUB":
        return (verb, *params[:2]), at
    if verb in ("PUB", "DPUB"):
        body, at = _sized(data, at, 1, limits.message_size_max, (verb, "E_BAD_MESSAGE"))
        return (verb, params[0], *([number] if verb == "DPUB" else []), body), at
    least = 4 if verb == "MPUB" else 1
    try:
        body, at = _sized(data, at, least, limits.body_size_max, (verb, "E_BAD_BODY"))
    except Short:
        if verb == "MPUB" and len(data) - at >= 8:
            _count(data[at + 4 : at + 8], limits)  # it is judged before the rest is there
        raise
    return (verb, params[0], *_batch(body, limits)) if verb == "MPUB" else (verb, body), at


def _sized(
    data: bytes, at: int, least: int, longest: int, wrong: tuple[str, str]
) -> tuple[bytes, int]:
    if len(data) - at < 4:
        raise Short
    (size,) = unpack_from(">i", data, at)
    if not least <= size <= longest:
        raise Bad(*wrong)
    if len(data) - at - 4 < size:
        raise Short
    return data[at + 4 : at + 4 + size], at + 4 + size


def _count(body: bytes, limits: Limits) -> int:
    (count,) = unpack_from(">i", body)
    if not 0 < count <= (limits.body_size_max - 4) // 5:
        raise Bad("MPUB", "E_BAD_BODY")
    return int(count)


def _batch(body: bytes, limits: Limits) -> list[bytes]:
    count, at = _count(body, limits), 4
    bodies: list[bytes] = []
    for _ in range(count):
        try:
            one, at = _sized(body, at, 1, limits.message_size_max, ("MPUB", "E_BAD_MESSAGE"))
        except Short:
            raise Bad("MPUB", "E_BAD_MESSAGE") from None
        bodies.append(one)
    if at < len(body):
        raise Bad("MPUB", "E_BAD_BODY")
    return bodies


def events(commands: Iterable[Command]) -> list[Event]:
    """What the real scan found, one event a message, up to the first error."""
    out: list[Event] = []
    for command in commands:
        if command[0] == "PUB":
            out += [("PUB", command[1].encode(), body) for body in command[2]]
            assert command[3] == sum(map(len, command[2]))
        elif command[0] == "MPUB":
            out.append(("MPUB", command[1].encode(), *command[2]))
            assert command[3] == sum(map(len, command[2]))
        elif command[0] == "DPUB":
            out.append(("DPUB", command[1].encode(), command[2], *command[3]))
            assert command[4] == sum(map(len, command[3]))
        elif command[0] == "FIN":
            raws = [command[2][i : i + 16] for i in range(0, len(command[2]), 16)]
            assert command[1] == [_number(raw) for raw in raws]
            out += [("FIN", raw) for raw in raws]
        elif command[0] == "TOUCH":
            assert command[1] == _number(command[2])
            out.append(("TOUCH", command[2]))
        elif command[0] == "REQ":
            assert command[1] == _number(command[3])
            out.append(("REQ", command[3], command[2]))
        elif command[0] == "SUB":
            out.append(("SUB", command[1].encode(), command[2].encode()))
        elif command[0] == "BAD":
            assert command[2].fatal
            return [*out, ("BAD", command[1], command[2].code)]
        elif command[0] == "CUT":
            return [*out, command]
        else:
            out.append(command)
    return out


def whole(data: bytes, limits: Limits) -> tuple[list[Event], int]:
    """What the door makes of it when everything comes in one piece, and where it stopped."""
    commands: list[Command] = []
    at = 0
    while at < len(data):
        found, at, _ = scan(data, at, limits)
        if not found:
            break
        commands += found
        if found[-1][0] in ("BAD", "CUT"):
            at = len(data)
    return events(commands), at


def in_pieces(pieces: Iterable[bytes], limits: Limits) -> list[Event]:
    """The same as it arrives: the rest waits until it has as many bytes as the scan asked for."""
    commands: list[Command] = []
    rest, needed = b"", 0
    for piece in pieces:
        rest += piece
        if len(rest) < needed:
            continue
        at = 0
        while at < len(rest):
            found, at, needed = scan(rest, at, limits)
            if not found:
                break
            commands += found
            if found[-1][0] in ("BAD", "CUT"):
                return events(commands)
        rest = rest[at:]
    return events(commands)


def _number(raw: bytes) -> int:
    return int(raw, 16) if re.fullmatch(rb"[0-9a-fA-F]{16}", raw) else -1
