"""IDENTIFY: what a client asks for, what it may have, and the answer that says so.

The door hands in the command's body and keeps the outcome; what follows from it (TLS, compression,
heartbeats) is the connection's work. How the JSON is read is for ``gojson``.

What a client leaves out, or asks for with 0, stays as it was: ``before`` is what an earlier
IDENTIFY of the same connection came to. What NSQ's protocol has no place for (priority, key, tags)
is to be negotiated here too: as fields of their own in ``_FIELDS``, which nsqd skips and its
clients never send.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from penstock import limits as nsqd
from penstock.config import Settings
from penstock.doors.nsq.gojson import Kind, NotJson, decode, encode
from penstock.errors import PeerError
from penstock.protocol.nsq import NSQD_VERSION

# the value that stands for "none" in heartbeat_interval and the output buffer's fields
_OFF = -1


@dataclass(frozen=True, slots=True)
class IdentifyLimits:
    """What the broker allows and has as defaults; made once."""

    tls: bool
    auth_required: bool
    deflate: bool
    deflate_level_max: int
    snappy: bool
    ready_count_max: int
    msg_timeout_ms: int
    msg_timeout_ms_max: int
    heartbeat_interval_ms_max: int
    output_buffer_size_max: int
    output_buffer_timeout_ms: int
    output_buffer_timeout_ms_min: int
    output_buffer_timeout_ms_max: int

    @classmethod
    def from_settings(cls, settings: Settings, tls: bool, auth_required: bool) -> Self:
        return cls(
            tls=tls,
            auth_required=auth_required,
            deflate=settings.deflate,
            deflate_level_max=settings.max_deflate_level,
            snappy=settings.snappy,
            ready_count_max=settings.max_rdy_count,
            msg_timeout_ms=settings.msg_timeout_ms,
            msg_timeout_ms_max=settings.max_msg_timeout_ms,
            heartbeat_interval_ms_max=settings.max_heartbeat_interval_ms,
            output_buffer_size_max=settings.max_output_buffer_size,
            output_buffer_timeout_ms=settings.output_buffer_timeout_ms,
            output_buffer_timeout_ms_min=settings.min_output_buffer_timeout_ms,
            output_buffer_timeout_ms_max=settings.max_output_buffer_timeout_ms,
        )


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What is in force for one client."""

    limits: IdentifyLimits
    client_id: str
    hostname: str
    user_agent: str
    feature_negotiation: bool
    heartbeat_interval_ms: int  # 0: none
    output_buffer_size: int
    output_buffer_timeout_ms: int
    tls: bool
    deflate: bool
    deflate_level: int
    snappy: bool
    sample_rate: int
    msg_timeout_ms: int

    def answer(self) -> bytes:
        """The response's data, byte by byte as nsqd writes it."""
        if not self.feature_negotiation:
            return b"OK"
        values: dict[str, object] = {
            "max_rdy_count": self.limits.ready_count_max,
            "version": NSQD_VERSION,
            "max_msg_timeout": self.limits.msg_timeout_ms_max,
            "msg_timeout": self.msg_timeout_ms,
            "tls_v1": self.tls,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "max_deflate_level": self.limits.deflate_level_max,
            "snappy": self.snappy,
            "sample_rate": self.sample_rate,
            "auth_required": self.limits.auth_required,
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": self.output_buffer_timeout_ms,
        }
        return encode(values)


def negotiate(body: bytes, limits: IdentifyLimits, before: Negotiated | None = None) -> Negotiated:
    """What IDENTIFY's body comes to; a PeerError (always fatal) as nsqd says it."""
    asked = _decoded(body)
    heartbeat_ms = _in_force(
        asked.heartbeat_interval,
        before.heartbeat_interval_ms if before else nsqd.HEARTBEAT_INTERVAL_DEFAULT_MS,
        (nsqd.HEARTBEAT_INTERVAL_MIN_MS, limits.heartbeat_interval_ms_max),
        "heartbeat interval",
    )
    buffer_timeout_ms = _in_force(
        asked.output_buffer_timeout,
        before.output_buffer_timeout_ms if before else limits.output_buffer_timeout_ms,
        (limits.output_buffer_timeout_ms_min, limits.output_buffer_timeout_ms_max),
        "output buffer timeout",
    )
    buffer_size = _in_force(
        asked.output_buffer_size,
        before.output_buffer_size if before else nsqd.OUTPUT_BUFFER_SIZE_DEFAULT_BYTES,
        (nsqd.OUTPUT_BUFFER_SIZE_MIN_BYTES, limits.output_buffer_size_max),
        "output buffer size",
    )
    if asked.output_buffer_size == _OFF:
        buffer_size, buffer_timeout_ms = 1, 0
    if not 0 <= asked.sample_rate <= nsqd.SAMPLE_RATE_PERCENT_MAX:
        raise _invalid("sample rate", asked.sample_rate)
    if asked.msg_timeout == _OFF:
        raise _invalid("msg timeout", asked.msg_timeout)
    msg_timeout_ms = _in_force(
        asked.msg_timeout,
        before.msg_timeout_ms if before else limits.msg_timeout_ms,
        (nsqd.MSG_TIMEOUT_MIN_MS, limits.msg_timeout_ms_max),
        "msg timeout",
    )
    upgrades = asked.feature_negotiation
    deflate = upgrades and asked.deflate and limits.deflate
    snappy = upgrades and asked.snappy and limits.snappy
    if deflate and snappy:
        raise PeerError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    level = (
        asked.deflate_level if deflate and asked.deflate_level > 0 else nsqd.DEFLATE_LEVEL_DEFAULT
    )
    return Negotiated(
        limits=limits,
        client_id=asked.client_id,
        hostname=asked.hostname,
        user_agent=asked.user_agent,
        feature_negotiation=upgrades,
        heartbeat_interval_ms=heartbeat_ms,
        output_buffer_size=buffer_size,
        output_buffer_timeout_ms=buffer_timeout_ms,
        tls=upgrades and asked.tls_v1 and limits.tls,
        deflate=deflate,
        deflate_level=min(level, limits.deflate_level_max),
        snappy=snappy,
        sample_rate=asked.sample_rate,
        msg_timeout_ms=msg_timeout_ms,
    )


def _in_force(asked: int, before: int, allowed: tuple[int, int], what: str) -> int:
    if asked == 0:
        return before
    if asked == _OFF:
        return 0
    if not allowed[0] <= asked <= allowed[1]:
        raise _invalid(what, asked)
    return asked


def _invalid(what: str, value: int) -> PeerError:
    return PeerError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


# --- the body ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked:
    """The body's fields as nsqd knows them, at Go's zero values."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    msg_timeout: int = 0


_KINDS = {"str": Kind.TEXT, "int": Kind.INT64, "bool": Kind.FLAG}
_FIELDS = {field.name: _KINDS[str(field.type)] for field in fields(_Asked)}
_FIELDS["sample_rate"] = Kind.INT32


def _decoded(body: bytes) -> _Asked:
    try:
        return _Asked(**decode(body, _FIELDS))  # type: ignore[arg-type]  # checked by its kind
    except NotJson as error:
        raise PeerError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
