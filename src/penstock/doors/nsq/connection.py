"""One NSQ client: its state, and what its commands do.

On a message's way this is the first and the last stop. What a read brought is scanned at once and
carried out in order (``wire`` keeps the answers in that order). Nothing here is per message but
what the peer itself sends one by one.

A command that must wait (a topic that is being opened, an auth server) parks the connection: what
follows is kept, reading pauses, and it all goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.channel import Channel
from penstock.broker.statistics import ClientStatistics
from penstock.broker.subscriber import Subscriber
from penstock.broker.topic import Topic
from penstock.doors.nsq.auth import Grants
from penstock.doors.nsq.client import statistics_of
from penstock.doors.nsq.identify import Negotiated, negotiate
from penstock.doors.nsq.layers import DeflateLayer, Layer, SnappyLayer, TlsLayer
from penstock.doors.nsq.wire import Wire
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
    failed,
    frame,
    scan,
)

if TYPE_CHECKING:
    from penstock.doors.nsq.door import NsqDoor

log = logging.getLogger("penstock.nsq")

DRAINING = "the broker is draining: it takes no more messages, publish to another"
TOPICS_KEPT_MAX = 1_000  # by a connection, for its next publish: they stay in memory, closed or not
HANDSHAKE_TIMEOUT_NS = 5_000_000_000


class State(Enum):
    """What a client may do now."""

    INIT = "init"
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"


class Connection(Wire):
    """A client: its state and its commands."""

    def __init__(self, door: NsqDoor) -> None:
        super().__init__(door)
        self.clock = door.host.clock
        self.greeted = False
        self.state = State.INIT
        self.negotiated: Negotiated = door.unidentified
        self.rest: list[bytes] = []  # bytes behind the last whole command
        self.rest_bytes = 0
        self.needed = 0
        self.backlog: list[Command] = []
        self.until_answered = False  # parked until nothing is owed
        self.upgraded_from: int | None = None  # bytes behind the command come below this layer
        self.topics: dict[str, Topic] = {}
        self.published: dict[str, int] = {}
        self.connected_at_ns = self.clock.now_ns()
        self.subscriber: Subscriber | None = None
        self.channel: Channel | None = None
        self.secret = ""
        self.grants: Grants | None = None
        self.allowed: set[tuple[str, str]] = set()
        self.heard_at_ns = 0
        self.beat_at_ns = 0

    # -- the wire's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.door.connections[self] = None
        if self.door.draining:
            self.close_in_order()  # it was on its way when the door stopped listening

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.over = True
        self.rest, self.backlog = [], []
        self.door.connections.pop(self, None)
        if self.subscriber is not None and self.channel is not None:
            channel, self.channel = self.channel, None
            channel.unsubscribe(self.subscriber, self.clock.now_ns())
            self.door.left(channel)
            self.host.wake()

    def on_input_end(self) -> None:
        rest = b"".join(self.rest)
        fault = cut_short(rest) if rest and self.greeted else None
        if fault is not None:
            self.fail(fault)
        else:
            self.close_in_order()

    def on_blocked(self) -> None:
        if self.subscriber is not None:
            self.subscriber.blocked = True

    def on_answered(self) -> None:
        if self.subscriber is not None and self.subscriber.blocked:
            self._unblock()
        if self.until_answered and not self.owed:
            self.until_answered = False
            self._unpark()

    def _unblock(self) -> None:
        """Messages flow again, unless the peer does not read or has not got the OK of its SUB."""
        if self.subscriber is None or self.channel is None or self.blocked_at_ns:
            return
        if not any(entry[2] == "SUB" for entry in self.owed):
            self.subscriber.blocked = False
            self.channel.mark_dirty()
            self.host.wake()

    # -- commands

    def take(self, data: bytes) -> None:
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
                self.write(BAD_PROTOCOL_FRAME)
                self.close_in_order()
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
            if self.upgraded_from is not None:
                self.heard_at_ns = self.door.clock.monotonic_ns()
                self._keep(b"", 0)
                self._upgraded(data[at:])
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
                self.fail(_needs_tls(command))
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
        self.pause_reading()

    def _unpark(self) -> None:
        if not self.parked or self.transport is None:
            return
        self.parked = False
        backlog, self.backlog = self.backlog, []
        if self._carry_out(backlog):
            rest = b"".join(self.rest)
            self._keep(b"", 0)
            if self.upgraded_from is not None:
                self._upgraded(rest)
            elif rest:
                self._scan(rest, 0)
        self.host.wake()
        if not self.parked and not self.over:
            if self.input_ended:
                self.on_input_end()
            else:
                self.resume_reading()

    def _upgraded(self, rest: bytes) -> None:
        """Behind the command that changed the layers: what followed it came below the new one."""
        depth, self.upgraded_from = self.upgraded_from, None
        assert depth is not None
        if rest:
            self.feed(rest, depth)

    def on_identify(self, command: Command) -> None:
        assert command[0] == "IDENTIFY"
        if self.state is not State.INIT:
            self.fail(PeerError("E_INVALID", "cannot IDENTIFY in current state"))
            return
        if self.owed:
            # what is owed must go out in the form it was asked for in
            self.until_answered = True
            self._park(command)
            return
        try:
            negotiated = negotiate(command[1], self.door.identify_limits, self.negotiated)
            self.negotiated = negotiated
        except PeerError as error:
            self.fail(error)
            return
        self.door.begin_heartbeat(self)
        self.answer(frame(FRAME_RESPONSE, negotiated.answer()))
        if not negotiated.feature_negotiation:
            return
        if negotiated.tls and self.tls is None and self.door.tls_context is not None:
            self.upgraded_from = len(self.layers)
            self.tls = TlsLayer(self.door.tls_context)
            self.layers.append(self.tls)
            self.door.handshakes[self] = self.door.clock.monotonic_ns() + HANDSHAKE_TIMEOUT_NS
        elif len(self.layers) <= (self.tls is not None):
            self._compress()

    def on_secured(self) -> None:
        """TLS stands: say so inside it, then go on with compression."""
        self.write(OK_FRAME)
        self._compress()
        self.upgraded_from = None  # no scan is under way: all that came, came through TLS

    def _compress(self) -> None:
        layer: Layer
        if self.negotiated.snappy:
            layer = SnappyLayer()
        elif self.negotiated.deflate:
            layer = DeflateLayer(self.negotiated.deflate_level)
        else:
            return
        self.upgraded_from = len(self.layers)
        self.layers.append(layer)
        self.write(OK_FRAME)

    def on_auth(self, command: Command) -> None:
        assert command[0] == "AUTH"
        if self.state is not State.INIT:
            self.fail(PeerError("E_INVALID", "cannot AUTH in current state"))
        elif self.grants is not None:
            self.fail(PeerError("E_INVALID", "AUTH already set"))
        elif self.door.authorizer is None:
            self.fail(PeerError("E_AUTH_DISABLED", "AUTH disabled"))
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
        granted = self._granted(grants, error)
        if granted is not None:
            self.answer(frame(FRAME_RESPONSE, granted.answer()))
            self._unpark()

    def _reauthorized(self, grants: Grants | None, error: PeerError | None) -> None:
        if self._granted(grants, error) is not None:
            self.allowed.clear()
            self._unpark()

    def _granted(self, grants: Grants | None, error: PeerError | None) -> Grants | None:
        """What is in force from here on; a client that got nothing is told."""
        if self.transport is None:
            return None
        if grants is None:
            self.fail(error or PeerError("E_AUTH_FAILED", "AUTH failed"))
            return None
        self.grants = grants
        return grants

    def _may(self, verb: str, topic: str, channel: str, command: Command) -> bool:
        """Whether the client may; False also when it waits for the auth server again."""
        if self.grants is None:
            self.fail(PeerError("E_AUTH_FIRST", f"AUTH required before {verb}"))
            return False
        if self.grants.expired(self.clock.monotonic_ns()):
            self._park(command)
            self._ask_grants(self._reauthorized)
            return False
        if (topic, channel) in self.allowed:
            return True
        if not self.grants.allows(topic, channel):
            reason = f'AUTH failed for {verb} on "{topic}" "{channel}"'
            self.fail(PeerError("E_UNAUTHORIZED", reason))
            return False
        self.allowed.add((topic, channel))
        return True

    def _topic(self, name: str, command: Command) -> Topic | None:
        """The topic, or None: the command waits until it is open."""
        topic = self.topics.get(name)
        if topic is not None and not topic.gone:
            return topic
        if self.door.draining and command[0] != "SUB":
            self.fail(failed(command[0], DRAINING))
            return None
        topic = self.host.topic(name, partial(self._opened, command))
        if topic is None:
            self._park(command)
        elif not self.door.draining:  # or its next publish would not come by here
            if len(self.topics) >= TOPICS_KEPT_MAX:
                self.topics.clear()
                self.published.clear()
            self.topics[name] = topic
        return topic

    def _opened(self, command: Command, topic: Topic | None, error: PenstockError | None) -> None:
        if topic is None and self.transport is not None:
            self.fail(failed(command[0], error))
            return
        self._unpark()

    def on_pub(self, command: Command) -> None:
        assert command[0] in ("PUB", "MPUB")
        verb, name, bodies, size = command
        if self.door.authorizer is not None and not self._may(verb, name, "", command):
            return
        topic = self.topics.get(name)
        if topic is None or topic.gone:
            topic = self._topic(name, command)
            if topic is None:
                return
        try:
            turn = topic.publish(bodies, size, self.clock.now_ns())
        except OperatingError as error:
            self.fail(failed(verb, error))
            return
        self.published[name] = self.published.get(name, 0) + len(bodies)
        self.owe(turn, OK_FRAME if verb == "MPUB" else OK_FRAME * len(bodies), verb, size)

    def on_dpub(self, command: Command) -> None:
        assert command[0] == "DPUB"
        _, name, delay_ms, bodies, size = command
        if self.door.authorizer is not None and not self._may("DPUB", name, "", command):
            return
        topic = self._topic(name, command)
        if topic is None:
            return
        now_ns = self.clock.now_ns()
        try:
            if delay_ms == 0:
                turn = topic.publish(bodies, size, now_ns)
            else:
                due_ns = now_ns + delay_ms * 1_000_000
                turn = topic.publish_delayed(bodies, size, due_ns, now_ns)
        except PenstockError as error:
            self.fail(failed("DPUB", error))
            return
        self.published[name] = self.published.get(name, 0) + len(bodies)
        self.owe(turn, OK_FRAME, "DPUB", size)

    def on_sub(self, command: Command) -> None:
        assert command[0] == "SUB"
        _, topic_name, channel_name = command
        if self.state is not State.INIT:
            self.fail(PeerError("E_INVALID", "cannot SUB in current state"))
            return
        if self.negotiated.heartbeat_interval_ms <= 0:
            self.fail(PeerError("E_INVALID", "cannot SUB with heartbeats disabled"))
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
            self.fail(failed("SUB", reason))
            return
        if existing is None and self.host.is_leaving(topic_name, channel_name, self._unpark):
            self._park(command)
            return
        try:
            self.channel = channel = topic.channel(channel_name, now_ns)
        except PenstockError as error:
            self.fail(failed("SUB", error))
            return
        self.subscriber = Subscriber(
            self.negotiated.client_id or self.peer,
            self._deliver,
            self._dropped,
            self.negotiated.msg_timeout_ms * 1_000_000,
            self.negotiated.sample_rate,
            self,
        )
        channel.subscribe(self.subscriber)
        self.state = State.SUBSCRIBED
        turn = self.host.state_turn(channel.state_needed)
        if turn.over:
            self.answer(OK_FRAME)
        else:
            self.subscriber.blocked = True  # its OK comes before its first message
            self.owe(turn, OK_FRAME, "SUB", 0)

    def on_rdy(self, command: Command) -> None:
        assert command[0] == "RDY"
        count = command[1]
        if self.state is State.CLOSING:
            return
        if self.subscriber is None or self.channel is None:
            self.fail(PeerError("E_INVALID", "cannot RDY in current state"))
            return
        if not 0 <= count <= self.door.ready_count_max:
            reason = f"RDY count {count} out of range 0-{self.door.ready_count_max}"
            self.fail(PeerError("E_INVALID", reason))
            return
        if count and not self.subscriber.arrived:
            self.channel.arrive(self.subscriber, self.clock.monotonic_ns())
        self.channel.set_ready(self.subscriber, count)

    def on_fin(self, command: Command) -> None:
        assert command[0] == "FIN"
        if self.subscriber is None or self.channel is None:
            self.fail(PeerError("E_INVALID", "cannot FIN in current state"))
            return
        _, ids, raw = command
        for index, reason in self.channel.finish(self.subscriber, ids, self.clock.now_ns()):
            self.fail(failed("FIN", reason, raw[16 * index : 16 * index + 16]))

    def on_req(self, command: Command) -> None:
        assert command[0] == "REQ"
        if self.subscriber is None or self.channel is None:
            self.fail(PeerError("E_INVALID", "cannot REQ in current state"))
            return
        _, number, delay_ms, raw = command
        delay_ns = min(max(delay_ms, 0), self.door.limits.req_timeout_ms_max) * 1_000_000
        now_ns = self.clock.now_ns()
        reason = self.channel.requeue(self.subscriber, number, delay_ns, now_ns)
        if reason is not None:
            self.fail(failed("REQ", reason, raw))

    def on_touch(self, command: Command) -> None:
        assert command[0] == "TOUCH"
        if self.subscriber is None or self.channel is None:
            self.fail(PeerError("E_INVALID", "cannot TOUCH in current state"))
            return
        _, number, raw = command
        reason = self.channel.touch(self.subscriber, number, self.clock.monotonic_ns())
        if reason is not None:
            self.fail(failed("TOUCH", reason, raw))

    def on_cls(self, command: Command) -> None:
        if self.subscriber is None or self.channel is None or self.subscriber.closing:
            self.fail(PeerError("E_INVALID", "cannot CLS in current state"))
            return
        self.state = State.CLOSING
        self.channel.set_ready(self.subscriber, 0)
        self.subscriber.closing = True
        self.answer(CLOSE_WAIT_FRAME)

    def on_nop(self, command: Command) -> None:
        """It only says that the client lives."""

    def on_cut(self, command: Command) -> None:
        log.info("%s: a command line without an end", self.peer)
        self.close_now()

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
        self.fail(error)

    # -- messages

    def _deliver(self, parts: list[bytes], count: int) -> None:
        self.write_all(parts)

    def beat(self) -> None:
        """The door's timer: this client's heartbeat is due."""
        self.write(HEARTBEAT_FRAME)

    def statistics(self) -> ClientStatistics:
        return statistics_of(self)

    # -- ending

    def hand_out_no_more(self) -> None:
        """No further message, whatever RDY says; what it has, it may settle."""
        if self.subscriber is not None and self.channel is not None:
            self.state = State.CLOSING
            self.channel.set_ready(self.subscriber, 0)

    def _dropped(self) -> None:
        """The channel is gone: so is its subscriber, as in nsqd."""
        self.channel = None
        self.over = True
        self._close()

    def expire(self) -> None:
        """Not one whole command within two heartbeats, or a write that was blocked for one."""
        fault = cut_short(b"".join(self.rest)) if self.rest else None
        if fault is not None and not self.blocked_at_ns:
            self.fail(fault)
        else:
            self.close_now()


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
