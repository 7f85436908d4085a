"""One NSQ client: its commands in, answers and messages out.

On a message's way this is the first and the last stop. What a read brought is scanned at once,
commands are carried out in order, and answers go out in the order of the commands whatever waits
on the disk: ``owed`` is the queue of answers, each either ready or tied to a commit turn. Nothing
here is per message but what the peer itself sends one by one.

A command that must wait (a topic that is being opened, an auth server) parks the connection: what
follows is kept, reading pauses, and it all goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.broker.channel import Channel
from penstock.broker.lanes import Turn
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.doors.nsq.auth import Grants
from penstock.doors.nsq.identify import Negotiated, negotiate
from penstock.doors.nsq.layers import DeflateLayer, Layer, LayerError, SnappyLayer, TlsLayer
from penstock.errors import OperatingError, PeerError, PenstockError
from penstock.names import is_valid_name_bytes
from penstock.protocol.nsq import (
    BAD_PROTOCOL_FRAME,
    CLOSE_WAIT_FRAME,
    FRAME_RESPONSE,
    HEARTBEAT_FRAME,
    MAGIC_V2,
    OK_FRAME,
    Command,
    cut_short,
    error_frame,
    frame,
    scan,
    text,
)

if TYPE_CHECKING:
    from penstock.doors.nsq.door import NsqDoor

log = logging.getLogger("penstock.nsq")

WRITE_HIGH_WATER = 512 * 1024
HANDSHAKE_TIMEOUT_NS = 5_000_000_000


class State(Enum):
    """What a client may do now."""

    INIT = "init"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"


class Connection(asyncio.Protocol):
    """A client on the wire."""

    def __init__(self, door: NsqDoor) -> None:
        self.door = door
        self.host = door.host
        self.clock = door.host.clock
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.greeted = False
        self.state = State.INIT
        self.negotiated: Negotiated = door.unidentified
        self.layers: list[Layer] = []
        self.tls: TlsLayer | None = None
        self.secured = False
        self.upgraded = False
        self.rest: list[bytes] = []  # bytes behind the last whole command
        self.rest_bytes = 0
        self.needed = 0
        self.backlog: list[Command] = []
        self.parked = False
        self.over = False  # no further command is carried out
        self.reading = True
        self.owed: deque[tuple[Turn | None, bytes, str, int]] = deque()
        self.owed_bytes = 0
        self.topics: dict[str, Topic] = {}
        self.subscriber: Subscriber | None = None
        self.channel: Channel | None = None
        self.secret = ""
        self.grants: Grants | None = None
        self.allowed: set[tuple[str, str]] = set()
        self.heard_at_ns = 0
        self.blocked_at_ns = 0
        self.beat_at_ns = 0
        self.connected_at_ns = 0

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by class
        self.transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self.connected_at_ns = self.clock.now_ns()
        self.door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.over = True
        self.rest, self.backlog = [], []
        self.door.connections.discard(self)
        if self.subscriber is not None and self.channel is not None:
            channel, self.channel = self.channel, None
            channel.unsubscribe(self.subscriber, self.clock.now_ns())
            self.door.left(channel)
            self.host.wake()

    def eof_received(self) -> bool:
        """The peer sends no more; it still gets what it is owed."""
        if self.over:
            return False
        if self.parked:
            self.close_after = True
            return True
        self._end_of_input()
        return True

    close_after = False

    def _end_of_input(self) -> None:
        rest = b"".join(self.rest)
        fault = cut_short(rest) if rest and self.greeted else None
        if fault is not None:
            self._fail(fault)
        else:
            self._close_in_order()

    def pause_writing(self) -> None:
        """The peer does not read: it gets no messages, and its commands wait too."""
        self.blocked_at_ns = self.door.clock.monotonic_ns()
        if self.subscriber is not None:
            self.subscriber.blocked = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self.blocked_at_ns = 0
        self._unblock()
        self._resume_reading()

    def _unblock(self) -> None:
        """Messages flow again, unless the peer does not read or has not got the OK of its SUB."""
        if self.subscriber is None or self.channel is None or self.blocked_at_ns:
            return
        if not any(entry[2] == "SUB" for entry in self.owed):
            self.subscriber.blocked = False
            self.channel.mark_dirty()
            self.host.wake()

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        if not self.layers:
            self._take(data)
            return
        try:
            self._through(data, 0)
        except (LayerError, PeerError) as error:
            self._broken_layer(error)
        if self.tls is not None and self.transport is not None:
            outgoing = self.tls.take_outgoing()
            if outgoing:
                self.transport.write(outgoing)

    def _through(self, data: bytes, depth: int) -> None:
        layers = self.layers
        if depth == len(layers):
            self._take(data)
            return
        for piece in layers[depth].feed(data):
            self._through(piece, depth + 1)
            if self.over:
                return
        if depth == 0 and self.tls is not None and self.tls.secure and not self.secured:
            self.secured = True
            self._finish_upgrade()

    def _broken_layer(self, error: PenstockError) -> None:
        log.info("%s: %s", self.peer, error)
        if self.tls is not None and not self.secured:
            self.layers, self.tls = [], None
            self._fail(PeerError("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}"))
        else:
            self._close_now()

    # -- commands

    def _take(self, data: bytes) -> None:
        """Bytes of the protocol itself."""
        if self.rest:
            self.rest.append(data)
            self.rest_bytes += len(data)
            if self.rest_bytes < self.needed or self.parked:
                return
            data = b"".join(self.rest)
            self.rest = []
        elif self.parked:
            self.rest, self.rest_bytes = [data], len(data)
            return
        at = 0
        if not self.greeted:
            if len(data) < 4:
                self._keep(data, 4)
                return
            if not data.startswith(MAGIC_V2):
                self._write(BAD_PROTOCOL_FRAME)
                self._close_in_order()
                return
            self.greeted = True
            self.door.begin_heartbeat(self)
            at = 4
        self._scan(data, at)

    def _keep(self, data: bytes, needed: int) -> None:
        self.rest = [data] if data else []
        self.rest_bytes = len(data)
        self.needed = needed

    def _scan(self, data: bytes, at: int) -> None:
        limits = self.door.limits
        needed = 0
        heard = False
        while at < len(data):
            commands, at, needed = scan(data, at, limits)
            if not commands:
                break
            heard = True
            if not self._carry_out(commands):
                break
            if self.upgraded:
                self.upgraded = False
                self.heard_at_ns = self.door.clock.monotonic_ns()
                self._keep(b"", 0)
                if at < len(data):
                    self.data_received(data[at:])
                return
        if heard:
            self.heard_at_ns = self.door.clock.monotonic_ns()
            self.host.wake()
        if not self.over:
            self._keep(data[at:], needed)
            if self.door.authorizer is not None and not self.parked:
                self._refuse_early()

    def _refuse_early(self) -> None:
        """An MPUB is refused before its body has come, as in nsqd."""
        line, newline, _ = self.rest[0].partition(b"\n") if self.rest else (b"", b"", b"")
        verb, _, name = line.rstrip(b"\r").partition(b" ")
        if verb != b"MPUB" or not newline or not is_valid_name_bytes(name):
            return
        if self.grants is None or not self.grants.expired(self.clock.monotonic_ns()):
            self._may("MPUB", name.decode(), "", ("NOP",))

    def _carry_out(self, commands: list[Command]) -> bool:
        """False when it stopped before the end: the connection is parked or over."""
        for index, command in enumerate(commands):
            if self.door.tls_required and not self.secured and command[0] != "IDENTIFY":
                self._fail(_needs_tls(command))
                return False
            HANDLERS[command[0]](self, command)
            if self.over:
                return False
            if self.parked:
                self.backlog += commands[index + 1 :]
                return False
        return True

    def _park(self, *again: Command) -> None:
        """Wait; ``again`` are carried out anew when it goes on."""
        self.parked = True
        self.backlog[:0] = again
        self._pause_reading()

    def _unpark(self) -> None:
        if not self.parked or self.transport is None:
            return
        self.parked = False
        backlog, self.backlog = self.backlog, []
        if self._carry_out(backlog) and self.rest and not self.upgraded:
            rest = b"".join(self.rest)
            self._keep(b"", 0)
            self._scan(rest, 0)
        self.host.wake()
        if not self.parked and not self.over:
            if self.close_after:
                self._end_of_input()
            else:
                self._resume_reading()

    def on_identify(self, command: Command) -> None:
        assert command[0] == "IDENTIFY"
        if self.state is not State.INIT:
            self._fail(PeerError("E_INVALID", "cannot IDENTIFY in current state"))
            return
        try:
            negotiated = negotiate(command[1], self.door.identify_limits, self.negotiated)
            self.negotiated = negotiated
        except PeerError as error:
            self._fail(error)
            return
        self.door.begin_heartbeat(self)
        self._answer(frame(FRAME_RESPONSE, negotiated.answer()))
        if not negotiated.feature_negotiation:
            return
        if negotiated.tls and self.tls is None and self.door.tls_context is not None:
            self.tls = TlsLayer(self.door.tls_context)
            self.layers.append(self.tls)
            self.upgraded = True
            self.door.handshakes[self] = self.door.clock.monotonic_ns() + HANDSHAKE_TIMEOUT_NS
        elif len(self.layers) <= (self.tls is not None):
            self._compress()

    def _finish_upgrade(self) -> None:
        """TLS stands: say so inside it, then go on with compression."""
        self.door.handshakes.pop(self, None)
        self._write(OK_FRAME)
        self._compress()
        self.upgraded = False  # no scan is under way: nothing of what it held is in the old form

    def _compress(self) -> None:
        if self.negotiated.snappy:
            self.layers.append(SnappyLayer())
        elif self.negotiated.deflate:
            self.layers.append(DeflateLayer(self.negotiated.deflate_level))
        else:
            return
        self.upgraded = True
        self._write(OK_FRAME)

    def on_auth(self, command: Command) -> None:
        assert command[0] == "AUTH"
        if self.state is not State.INIT:
            self._fail(PeerError("E_INVALID", "cannot AUTH in current state"))
        elif self.grants is not None:
            self._fail(PeerError("E_INVALID", "AUTH already set"))
        elif self.door.authorizer is None:
            self._fail(PeerError("E_AUTH_DISABLED", "AUTH disabled"))
        else:
            self.secret = command[1].decode("utf-8", "surrogateescape")
            self._park()
            self._ask_grants(self._authorized)

    def _ask_grants(self, then: Callable[[Grants | None, PeerError | None], None]) -> None:
        authorizer = self.door.authorizer
        assert authorizer is not None
        name = self.tls.common_name if self.tls is not None else ""
        authorizer.authorize(self.secret, self.peer.rpartition(":")[0], self.secured, name, then)

    def _authorized(self, grants: Grants | None, error: PeerError | None) -> None:
        if self.transport is None:
            return
        if grants is None:
            self._fail(error or PeerError("E_AUTH_FAILED", "AUTH failed"))
            return
        self.grants = grants
        self._answer(frame(FRAME_RESPONSE, grants.answer()))
        self._unpark()

    def _may(self, verb: str, topic: str, channel: str, command: Command) -> bool:
        """Whether the client may; False also when it waits for the auth server again."""
        if self.grants is None:
            self._fail(PeerError("E_AUTH_FIRST", f"AUTH required before {verb}"))
            return False
        if self.grants.expired(self.clock.monotonic_ns()):
            self._park(command)
            self._ask_grants(self._reauthorized)
            return False
        if (topic, channel) in self.allowed:
            return True
        if not self.grants.allows(topic, channel):
            reason = f'AUTH failed for {verb} on "{topic}" "{channel}"'
            self._fail(PeerError("E_UNAUTHORIZED", reason))
            return False
        self.allowed.add((topic, channel))
        return True

    def _reauthorized(self, grants: Grants | None, error: PeerError | None) -> None:
        if self.transport is None:
            return
        if grants is None:
            self._fail(error or PeerError("E_AUTH_FAILED", "AUTH failed"))
            return
        self.grants = grants
        self.allowed.clear()
        self._unpark()

    def _topic(self, name: str, command: Command) -> Topic | None:
        """The topic, or None: the command waits until it is open."""
        topic = self.topics.get(name)
        if topic is not None and not topic.gone:
            return topic
        topic = self.host.topic(name, partial(self._opened, command))
        if topic is None:
            self._park(command)
        else:
            self.topics[name] = topic
        return topic

    def _opened(self, command: Command, topic: Topic | None, error: PenstockError | None) -> None:
        if topic is None and self.transport is not None:
            verb = command[0]
            self._fail(PeerError(f"E_{verb}_FAILED", f"{verb} failed {error}"))
            return
        self._unpark()

    def on_pub(self, command: Command) -> None:
        assert command[0] in ("PUB", "MPUB")
        verb, name, bodies, size = command
        topic = self.topics.get(name)
        if topic is None or topic.gone:
            topic = self._topic(name, command)
            if topic is None:
                return
        if self.door.authorizer is not None and not self._may(verb, name, "", command):
            return
        try:
            turn = topic.publish(bodies, size, self.clock.now_ns())
        except OperatingError as error:
            self._fail(PeerError(f"E_{verb}_FAILED", f"{verb} failed {error}"))
            return
        self._owe(turn, OK_FRAME if verb == "MPUB" else OK_FRAME * len(bodies), verb, size)

    def on_dpub(self, command: Command) -> None:
        assert command[0] == "DPUB"
        _, name, delay_ms, bodies, size = command
        topic = self._topic(name, command)
        if topic is None:
            return
        if self.door.authorizer is not None and not self._may("DPUB", name, "", command):
            return
        now_ns = self.clock.now_ns()
        try:
            if delay_ms == 0:
                turn = topic.publish(bodies, size, now_ns)
            else:
                due_ns = now_ns + delay_ms * 1_000_000
                turn = self.host.publish_delayed(topic, bodies, size, due_ns, now_ns)
        except OperatingError as error:
            self._fail(PeerError("E_DPUB_FAILED", f"DPUB failed {error}"))
            return
        self._owe(turn, OK_FRAME, "DPUB", size)

    def on_sub(self, command: Command) -> None:
        assert command[0] == "SUB"
        _, topic_name, channel_name = command
        if self.state is not State.INIT:
            self._fail(PeerError("E_INVALID", "cannot SUB in current state"))
            return
        if self.negotiated.heartbeat_interval_ms <= 0:
            self._fail(PeerError("E_INVALID", "cannot SUB with heartbeats disabled"))
            return
        if self.door.authorizer is not None and not self._may(
            "SUB", topic_name, channel_name, command
        ):
            return
        topic = self._topic(topic_name, command)
        if topic is None:
            return
        now_ns = self.clock.now_ns()
        limit = self.door.channel_consumers_max
        existing = topic.channels.get(channel_name)
        if limit and existing is not None and len(existing.subscribers) >= limit:
            reason = f"consumers for {topic_name}:{channel_name} exceeds limit of {limit}"
            self._fail(PeerError("E_SUB_FAILED", f"SUB failed {reason}"))
            return
        try:
            self.channel = channel = topic.channel(channel_name, now_ns)
        except OperatingError as error:
            self._fail(PeerError("E_SUB_FAILED", f"SUB failed {error}"))
            return
        self.subscriber = Subscriber(
            self.negotiated.client_id or self.peer,
            self._deliver,
            self._dropped,
            self.negotiated.msg_timeout_ms * 1_000_000,
            self.negotiated.sample_rate,
        )
        channel.subscribe(self.subscriber)
        self.state = State.SUBSCRIBED
        turn = self.host.state_turn()
        if turn.over:
            self._answer(OK_FRAME)
        else:
            self.subscriber.blocked = True  # its OK comes before its first message
            self._owe(turn, OK_FRAME, "SUB", 0)

    def on_rdy(self, command: Command) -> None:
        assert command[0] == "RDY"
        count = command[1]
        if self.state is State.CLOSING:
            return
        if self.subscriber is None or self.channel is None:
            self._fail(PeerError("E_INVALID", "cannot RDY in current state"))
            return
        if not 0 <= count <= self.door.ready_count_max:
            reason = f"RDY count {count} out of range 0-{self.door.ready_count_max}"
            self._fail(PeerError("E_INVALID", reason))
            return
        self.channel.set_ready(self.subscriber, count)

    def on_fin(self, command: Command) -> None:
        assert command[0] == "FIN"
        if self.subscriber is None or self.channel is None:
            self._fail(PeerError("E_INVALID", "cannot FIN in current state"))
            return
        _, ids, raw = command
        for index, reason in self.channel.finish(self.subscriber, ids, self.clock.now_ns()):
            self._settle_failed("FIN", raw[16 * index : 16 * index + 16], reason)

    def on_req(self, command: Command) -> None:
        assert command[0] == "REQ"
        if self.subscriber is None or self.channel is None:
            self._fail(PeerError("E_INVALID", "cannot REQ in current state"))
            return
        _, number, delay_ms, raw = command
        longest_ms = self.door.limits.req_timeout_ms_max
        if longest_ms is not None and delay_ms > longest_ms:
            delay_ms = longest_ms
        now_ns = self.clock.now_ns()
        reason = self.channel.requeue(self.subscriber, number, max(delay_ms, 0) * 1_000_000, now_ns)
        if reason is not None:
            self._settle_failed("REQ", raw, reason)

    def on_touch(self, command: Command) -> None:
        assert command[0] == "TOUCH"
        if self.subscriber is None or self.channel is None:
            self._fail(PeerError("E_INVALID", "cannot TOUCH in current state"))
            return
        _, number, raw = command
        reason = self.channel.touch(self.subscriber, number, self.clock.monotonic_ns())
        if reason is not None:
            self._settle_failed("TOUCH", raw, reason)

    def _settle_failed(self, verb: str, raw: bytes, reason: str) -> None:
        error = PeerError(f"E_{verb}_FAILED", f"{verb} {text(raw)} failed {reason}", fatal=False)
        self._answer(error_frame(error))

    def on_cls(self, command: Command) -> None:
        if self.state is not State.SUBSCRIBED or self.subscriber is None or self.channel is None:
            self._fail(PeerError("E_INVALID", "cannot CLS in current state"))
            return
        self.state = State.CLOSING
        self.channel.set_ready(self.subscriber, 0)
        self.subscriber.closing = True
        self._answer(CLOSE_WAIT_FRAME)

    def on_nop(self, command: Command) -> None:
        """It only says that the client lives."""

    def on_cut(self, command: Command) -> None:
        log.info("%s: a command line without an end", self.peer)
        self._close_now()

    def on_bad(self, command: Command) -> None:
        """A command whose parameters are wrong; a wrong state comes first, as in nsqd."""
        assert command[0] == "BAD"
        _, verb, error = command
        if verb == "RDY" and self.state is State.CLOSING:
            return
        wrong = verb in ("IDENTIFY", "AUTH", "SUB") and self.state is not State.INIT
        wrong |= verb in ("FIN", "REQ", "TOUCH", "RDY") and self.state is State.INIT
        if wrong:
            error = PeerError("E_INVALID", f"cannot {verb} in current state")
        elif verb == "SUB" and self.negotiated.heartbeat_interval_ms <= 0:
            error = PeerError("E_INVALID", "cannot SUB with heartbeats disabled")
        self._fail(error)

    # -- answers and messages

    def _owe(self, turn: Turn, answer: bytes, verb: str, size: int) -> None:
        """An answer that waits for a commit turn; back-pressure when too much waits."""
        waiters = turn.waiters
        if not waiters or waiters[-1] is not self:
            waiters.append(self)
        self.owed.append((turn, answer, verb, size))
        self.owed_bytes += size
        if self.owed_bytes > self.door.connection_bytes_max:
            self._pause_reading()
        elif self.host.crowded and self.reading:
            self._pause_reading()
            self.host.held_back.append(self._resume_reading)

    def turn_over(self) -> None:
        """A commit turn ended: send what may go now, in order."""
        owed = self.owed
        ready: list[bytes] = []
        while owed:
            turn, answer, verb, size = owed[0]
            if turn is not None and not turn.over:
                break
            owed.popleft()
            self.owed_bytes -= size
            if turn is not None and turn.error is not None:
                error = PeerError(f"E_{verb}_FAILED", f"{verb} failed {turn.error}")
                ready.append(error_frame(error))
                owed.clear()
                self.over = True
                break
            ready.append(answer)
        if self.transport is None:
            return
        if ready:
            self._write(b"".join(ready))
            if self.subscriber is not None and self.subscriber.blocked:
                self._unblock()
        if self.over:
            if not owed:
                self.transport.close()
        elif not self.reading and self.owed_bytes <= self.door.connection_bytes_max // 2:
            self._resume_reading()

    def _answer(self, answer: bytes) -> None:
        """An answer in its place in the order."""
        if self.owed:
            self.owed.append((None, answer, "", 0))
        else:
            self._write(answer)

    def _write(self, data: bytes) -> None:
        if self.transport is None:
            return
        for layer in reversed(self.layers):
            data = layer.wrap(data)
        self.transport.write(data)

    def _deliver(self, parts: list[bytes], count: int) -> None:
        if self.transport is None:
            return
        if self.layers or len(parts) == 1:
            self._write(parts[0] if len(parts) == 1 else b"".join(parts))
        else:
            self.transport.writelines(parts)

    def beat(self) -> None:
        """The door's timer: this client's heartbeat is due."""
        self._write(HEARTBEAT_FRAME)

    # -- ending

    def _fail(self, error: PeerError) -> None:
        log.debug("%s: %s", self.peer, error)
        self._answer(error_frame(error))
        if error.fatal:
            self._close_in_order()

    def _close_in_order(self) -> None:
        """After everything owed."""
        self.over = True
        if not self.owed and self.transport is not None:
            self.transport.close()

    def _close_now(self) -> None:
        self.over = True
        if self.transport is not None:
            self.transport.abort()

    def _dropped(self) -> None:
        """The channel is gone: so is its subscriber, as in nsqd."""
        self.channel = None
        self.over = True
        if self.transport is not None:
            self.transport.close()

    def _pause_reading(self) -> None:
        if self.reading and self.transport is not None:
            self.reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.reading or self.transport is None or self.over:
            return
        if self.parked or self.blocked_at_ns or self.owed_bytes > self.door.connection_bytes_max:
            return
        if self.host.crowded:
            self.host.held_back.append(self._resume_reading)
            return
        self.reading = True
        self.transport.resume_reading()

    def expire(self) -> None:
        """Not one whole command within two heartbeats, or a write that was blocked for one."""
        fault = cut_short(b"".join(self.rest)) if self.rest else None
        if fault is not None and not self.blocked_at_ns:
            self._fail(fault)
        else:
            self._close_now()


def _needs_tls(command: Command) -> PeerError:
    verb: str = command[0]
    if command[0] == "BAD":
        verb = command[1] or str(command[2]).rpartition(" ")[2]
    return PeerError("E_INVALID", f"cannot {verb} in current state (TLS required)")


HANDLERS: dict[str, Callable[[Connection, Command], None]] = {
    "PUB": Connection.on_pub,
    "MPUB": Connection.on_pub,
    "FIN": Connection.on_fin,
    "RDY": Connection.on_rdy,
    "REQ": Connection.on_req,
    "TOUCH": Connection.on_touch,
    "DPUB": Connection.on_dpub,
    "NOP": Connection.on_nop,
    "SUB": Connection.on_sub,
    "CLS": Connection.on_cls,
    "IDENTIFY": Connection.on_identify,
    "AUTH": Connection.on_auth,
    "BAD": Connection.on_bad,
    "CUT": Connection.on_cut,
}
