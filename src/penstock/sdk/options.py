"""Every setting of the SDK with its default and its reason, checked once when a program gives it.

Programs give them as keywords (``client.producer(linger=0.01)``); the ``…Keywords`` dictionaries
type those calls, and a test holds them equal to the dataclasses. Durations are seconds, as
everywhere in Python; only the wire counts in milliseconds.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from socket import gethostname
from typing import Literal, NamedTuple, TypedDict

from penstock.errors import ConfigError
from penstock.limits import (
    DEFLATE_LEVEL_DEFAULT,
    DEFLATE_LEVEL_MAX,
    DEFLATE_LEVEL_MIN,
    MSG_SIZE_BYTES_MAX,
    SAMPLE_RATE_PERCENT_MAX,
)

PORT = 4150
LOOKUP_PORT = 4161
LINGER_MAX = 1.0
BATCH_MESSAGES = 1000

Compression = Literal["snappy", "deflate"]
OnLost = Literal["resend", "fail"]


class Address(NamedTuple):
    """Where a broker listens; a host with a slash in it is a path, which has no port."""

    host: str
    port: int

    @property
    def is_path(self) -> bool:
        return "/" in self.host

    def __str__(self) -> str:
        if self.is_path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, port_default: int = PORT) -> Address:
    """``host``, ``host:port``, ``[v6]:port`` or the path of a socket."""
    if "/" in text:
        return Address(text, 0)
    host, port = text, str(port_default)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"{text!r} is not an address; write [v6-address]:port")
        port = rest[1:] if rest else port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{text!r} is not an address; write host:port, for example localhost:4150"
        )
    return Address(host, int(port))


def parse_addresses(texts: str | Iterable[str], port_default: int = PORT) -> tuple[Address, ...]:
    """One address or several, each once."""
    given = [texts] if isinstance(texts, str) else texts
    return tuple(dict.fromkeys(parse_address(text, port_default) for text in given))


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ConfigError(sentence)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How connections are made; shared by a client's producers and consumers."""

    # True verifies the broker against the system's authorities; a context of one's own decides
    # itself.
    tls: bool | ssl.SSLContext = False
    compression: Compression | None = None
    deflate_level: int = DEFLATE_LEVEL_DEFAULT
    # Asked by brokers that authorize; never printed.
    auth_secret: str | None = field(default=None, repr=False)
    user_agent: str = "penstock-python"
    client_id: str = field(default_factory=lambda: gethostname().partition(".")[0])
    # The broker gives a sign of life so often; without one for twice as long a connection is dead.
    heartbeat_interval: float = 30.0
    connect_timeout: float = 5.0
    # Waits between attempts double from the first to the last, each with jitter, so that a thousand
    # clients do not come back in the same instant.
    reconnect_delay: float = 0.1
    reconnect_delay_max: float = 15.0

    def __post_init__(self) -> None:
        _require(
            self.compression in {None, "snappy", "deflate"},
            f"compression is {self.compression!r}; it can be 'snappy', 'deflate' or None",
        )
        _require(
            DEFLATE_LEVEL_MIN <= self.deflate_level <= DEFLATE_LEVEL_MAX,
            f"deflate_level is from {DEFLATE_LEVEL_MIN} (fast) to {DEFLATE_LEVEL_MAX} (small)",
        )
        _require(
            1.0 <= self.heartbeat_interval <= 60.0,
            "heartbeat_interval is from 1 to 60 seconds, the range that NSQ's brokers allow",
        )
        _require(self.connect_timeout > 0, "connect_timeout must be above 0 seconds")
        _require(
            0 < self.reconnect_delay <= self.reconnect_delay_max,
            "reconnect_delay must be above 0 and not above reconnect_delay_max",
        )


class ClientKeywords(TypedDict, total=False):
    """``ClientOptions`` as keywords."""

    tls: bool | ssl.SSLContext
    compression: Compression | None
    deflate_level: int
    auth_secret: str | None
    user_agent: str
    client_id: str
    heartbeat_interval: float
    connect_timeout: float
    reconnect_delay: float
    reconnect_delay_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How messages are gathered, held back and repeated on their way out."""

    # The longest a message waits for company while earlier batches are unanswered. With nothing
    # unanswered it leaves at the end of the loop's turn, so a lone publish pays no linger.
    linger: float = 0.005
    batch_messages: int = BATCH_MESSAGES
    batch_bytes: int = 512 * 1024
    # More batches hide the broker's fdatasync; fewer make them larger.
    batches_in_flight: int = 8
    # Above it publishes wait: a slow broker slows the program instead of filling its memory.
    pending_bytes_max: int = 32 * 1024 * 1024
    # The broker's own limit (nsqd's default); checked here since a broker that sees a larger
    # message closes the connection on everybody else's.
    message_bytes_max: int = MSG_SIZE_BYTES_MAX
    # What becomes of publishes that were unanswered when a connection ended: sent again (at least
    # once, maybe twice) or failed with PublishLost.
    on_lost: OnLost = "resend"
    # A publish that no broker acknowledged for so long fails with PublishTimeout.
    publish_timeout: float = 30.0

    def __post_init__(self) -> None:
        _require(
            0 <= self.linger <= LINGER_MAX,
            f"linger is from 0 to {LINGER_MAX:g} seconds: no message may wait longer for company",
        )
        _require(self.batch_messages >= 1, "batch_messages must be at least 1")
        _require(self.batch_bytes >= 1, "batch_bytes must be at least 1")
        _require(self.batches_in_flight >= 1, "batches_in_flight must be at least 1")
        _require(self.pending_bytes_max >= 1, "pending_bytes_max must be at least 1")
        _require(self.message_bytes_max >= 1, "message_bytes_max must be at least 1")
        _require(
            self.on_lost in {"resend", "fail"},
            f"on_lost is {self.on_lost!r}; it can be 'resend' or 'fail'",
        )
        _require(self.publish_timeout > 0, "publish_timeout must be above 0 seconds")


class ProducerKeywords(TypedDict, total=False):
    """``ProducerOptions`` as keywords."""

    linger: float
    batch_messages: int
    batch_bytes: int
    batches_in_flight: int
    pending_bytes_max: int
    message_bytes_max: int
    on_lost: OnLost
    publish_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How much a consumer takes at once, and what happens to messages that are not finished."""

    # Messages in flight over all connections together. More hides the network, fewer shares better
    # among many consumers with slow handlers.
    max_in_flight: int = 200
    # How long the broker waits for a message to be finished; None leaves it to the broker (60 s).
    msg_timeout: float | None = None
    # In `async for`: a message not settled is finished when the next one is asked for.
    auto_finish: bool = True
    # Keep messages in flight from timing out for as long as the process lives.
    auto_touch: bool = False
    # After a handler's exception the message comes back later and later: first, then doubling.
    retry_delay: float = 1.0
    retry_delay_max: float = 600.0
    # How long `stop()` waits for messages that a handler or the program still has in hand.
    drain_timeout: float = 30.0
    # When there are more connections than max_in_flight, credit moves on to the next ones so often.
    rotate_interval: float = 5.0
    # Percent of the channel's messages to take; 0 takes all.
    sample_rate: int = 0
    # HTTP addresses of name servers: the brokers they know are consumed from, not the client's.
    lookup: str | Sequence[str] = ()
    # They are asked so often (and up to 30 % less often), as NSQ's clients do it.
    lookup_interval: float = 60.0

    def __post_init__(self) -> None:
        _require(self.max_in_flight >= 1, "max_in_flight must be at least 1")
        _require(
            self.msg_timeout is None or self.msg_timeout > 0, "msg_timeout must be above 0 seconds"
        )
        _require(
            0 <= self.retry_delay <= self.retry_delay_max,
            "retry_delay must be at least 0 and not above retry_delay_max",
        )
        _require(self.drain_timeout >= 0, "drain_timeout must be at least 0 seconds")
        _require(self.rotate_interval > 0, "rotate_interval must be above 0 seconds")
        _require(
            0 <= self.sample_rate <= SAMPLE_RATE_PERCENT_MAX,
            f"sample_rate is from 0 (all messages) to {SAMPLE_RATE_PERCENT_MAX} percent",
        )
        for address in parse_addresses(self.lookup, LOOKUP_PORT):
            _require(not address.is_path, f"{address} is a path; a name server has host:port")
        _require(self.lookup_interval > 0, "lookup_interval must be above 0 seconds")


class ConsumerKeywords(TypedDict, total=False):
    """``ConsumerOptions`` as keywords."""

    max_in_flight: int
    msg_timeout: float | None
    auto_finish: bool
    auto_touch: bool
    retry_delay: float
    retry_delay_max: float
    drain_timeout: float
    rotate_interval: float
    sample_rate: int
    lookup: str | Sequence[str]
    lookup_interval: float
