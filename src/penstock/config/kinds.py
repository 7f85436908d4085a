"""Kinds of settings: how a value from TOML, the environment or a flag is read and shown.

`parse` and `show` are a pair: `parse(show(value)) == value`. A parser raises ValueError with a
clause that says what is wrong; `sources` makes the sentence of it. Nothing here knows a setting.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.config.units import (
    DURATION_HINT,
    SIZE_HINT,
    parse_duration_ms,
    parse_size,
    show_duration,
    show_size,
)

T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)


class Durability(StrEnum):
    """What an OK promises: the message survives power loss, kill -9, or nothing at all."""

    SYNCED = "synced"
    WRITTEN = "written"
    MEMORY = "memory"


class TlsRequired(StrEnum):
    """Whether clients must speak TLS; `tcp-https` leaves plain HTTP open."""

    NO = "false"
    YES = "true"
    TCP_HTTPS = "tcp-https"

    def __bool__(self) -> bool:
        # a text is true unless it is empty, and "false" must not be
        return self is not TlsRequired.NO


class TlsClientAuth(StrEnum):
    """What is asked of a client's certificate."""

    NONE = ""
    REQUIRE = "require"
    REQUIRE_VERIFY = "require-verify"


class TlsVersion(StrEnum):
    """The oldest version of TLS that is accepted."""

    TLS_1_0 = "tls1.0"
    TLS_1_1 = "tls1.1"
    TLS_1_2 = "tls1.2"
    TLS_1_3 = "tls1.3"


class HttpMethod(StrEnum):
    """How an auth server is asked."""

    GET = "get"
    POST = "post"


class LogLevel(StrEnum):
    """nsqd's levels."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    FATAL = "fatal"

    @property
    def standard(self) -> int:
        """The standard library's number for it."""
        return logging.getLevelNamesMapping()[{"fatal": "CRITICAL"}.get(self, self.upper())]


class EventLoop(StrEnum):
    """Which event loop runs the broker."""

    AUTO = "auto"
    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


class Address(NamedTuple):
    """Where to listen or connect. An empty host is every interface, port 0 any free port; a host
    with a slash in it is a path, which has no port."""

    host: str
    port: int

    @property
    def is_path(self) -> bool:
        return "/" in self.host

    def __str__(self) -> str:
        if self.is_path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """A sort of value; `hint` is how to write one, `several` that a flag may be repeated."""

    hint: str
    parse: Callable[[object], T_co]
    show: Callable[[Any], str]
    several: bool = False


def _parse_text(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is not a text (put it in quotes)")
    return given


def _parse_path(given: object) -> Path:
    text = _parse_text(given)
    if not text:
        raise ValueError("it cannot be empty")
    return Path(text).expanduser()


def _parse_flag(given: object) -> bool:
    # the words that Go's strconv.ParseBool takes, which nsqd's users know, and yes/no
    words = {"1": True, "t": True, "true": True, "yes": True}
    words |= {"0": False, "f": False, "false": False, "no": False}
    word = str(given).lower()
    if word not in words:
        raise ValueError(f"{given!r} is neither true nor false")
    return words[word]


def _parse_duration(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool) and given != 0:
        raise ValueError(f"{given} has no unit ({DURATION_HINT})")
    return parse_duration_ms(str(given))


def _parse_size(given: object) -> int:
    if isinstance(given, bool):
        raise ValueError(f"{given} is not a size ({SIZE_HINT})")
    return parse_size(str(given))


def _parse_address(given: object) -> Address:
    text = _parse_text(given).strip()
    host, separator, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not (port.isascii() and port.isdecimal() and int(port) <= 65_535):
        raise ValueError(f"'{text}' is not an address (write 127.0.0.1:4150 or [::1]:4150)")
    return Address(host, int(port))


def _parse_listening(given: object) -> Address:
    text = _parse_text(given).strip()
    # as in nsqd, what is no host:port is a path; to be one here it needs a slash
    if "/" in text:
        return Address(text, 0)
    return _parse_address(text)


def _items(given: object) -> list[object]:
    if isinstance(given, str):
        return [item.strip() for item in given.split(",") if item.strip()]
    if isinstance(given, Sequence):
        return [item for one in given for item in (_items(one) if isinstance(one, str) else [one])]
    raise ValueError(f"{given!r} is not a list")


def _show_flag(value: bool) -> str:
    return "true" if value else "false"


def _show_several(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


def or_none(kind: Kind[T_co], word: str) -> Kind[T_co | None]:
    """The same kind, with a word (often the empty one) that means none."""

    def parse(given: object) -> T_co | None:
        return None if given == word else kind.parse(given)

    def show(value: object) -> str:
        return word if value is None else kind.show(value)

    return Kind(f"{kind.hint}; {word or 'empty'} for none", parse, show)


def count(lowest: int, highest: int | None = None) -> Kind[int]:
    """A whole number between two bounds, both included."""
    hint = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"

    def parse(given: object) -> int:
        text = str(given)
        if isinstance(given, bool) or not (text.removeprefix("-").isdecimal() and text.isascii()):
            raise ValueError(f"{given!r} is not a whole number")
        number = int(text)
        if number < lowest or (highest is not None and number > highest):
            raise ValueError(f"{number} is out of range ({hint})")
        return number

    return Kind(hint, parse, str)


def choice(choices: type[E]) -> Kind[E]:
    """One of an enum's words."""
    hint = ", ".join(one.value or "empty" for one in choices)

    def parse(given: object) -> E:
        try:
            return choices(str(given).lower())
        except ValueError:
            raise ValueError(f"{given!r} is none of {hint}") from None

    return Kind(hint, parse, str)


def _parse_tls_required(given: object) -> TlsRequired:
    if given == TlsRequired.TCP_HTTPS:
        return TlsRequired.TCP_HTTPS
    return TlsRequired.YES if _parse_flag(given) else TlsRequired.NO


TEXT = Kind("a text", _parse_text, str)
PATH = Kind("a path", _parse_path, str)
PATH_OR_NONE = or_none(PATH, "")
FLAG = Kind("true or false", _parse_flag, _show_flag)
DURATION = Kind(DURATION_HINT, _parse_duration, show_duration)
DURATION_OR_NONE = or_none(DURATION, "none")
SIZE = Kind(SIZE_HINT, _parse_size, show_size)
ADDRESS = Kind("write host:port, :port for every interface, or a path", _parse_listening, str)
ADDRESS_OR_NONE = or_none(ADDRESS, "")
ADDRESSES: Kind[tuple[Address, ...]] = Kind(
    "write host:port,host:port",
    lambda given: tuple(_parse_address(item) for item in _items(given)),
    _show_several,
    several=True,
)
TEXTS: Kind[tuple[str, ...]] = Kind(
    "write one,two",
    lambda given: tuple(_parse_text(item) for item in _items(given)),
    _show_several,
    several=True,
)
TLS_REQUIRED = Kind("true, false or tcp-https", _parse_tls_required, str)
