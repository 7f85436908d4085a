"""The NSQ door: accepts clients, keeps time for their heartbeats, and holds what all of them share.

One timer serves all connections: each is filed under the moment when it next needs attention (a
heartbeat, or the deadline for its next command), so 5,000 idle clients cost a heap of 5,000
entries and nothing per turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from heapq import heappop, heappush

from penstock.broker.channel import Channel
from penstock.clock import Clock
from penstock.config import Address, Settings, TlsRequired
from penstock.doors.nsq.auth import Authorizer
from penstock.doors.nsq.connection import Connection
from penstock.doors.nsq.identify import IdentifyLimits, negotiate
from penstock.doors.nsq.wire import Wire
from penstock.limits import DELAY_MAX_MS, HEARTBEATS_MISSED_MAX
from penstock.protocol.nsq import Limits
from penstock.runtime.host import Host
from penstock.runtime.listening import Listener, listen
from penstock.runtime.pool import DiskPool
from penstock.runtime.tlscontext import tls_context

log = logging.getLogger("penstock.nsq")

TICK_S = 0.1
SETTLING_S = 0.005


class NsqDoor:
    """NSQ's TCP protocol on one address."""

    def __init__(self, host: Host, settings: Settings, clock: Clock) -> None:
        self.host = host
        self.clock = clock  # of the wire: heartbeats and deadlines of clients
        self.settings = settings
        longest = settings.max_req_timeout_ms
        self.limits = Limits(
            settings.max_msg_size,
            settings.max_body_size,
            DELAY_MAX_MS if longest is None else min(longest, DELAY_MAX_MS),
        )
        self.tls_context = tls_context(settings)
        self.tls_required = settings.tls_required is not TlsRequired.NO
        self.auth_pool = DiskPool(2, host.loop.call_soon_threadsafe)
        self.authorizer = Authorizer.from_settings(settings, self.auth_pool, host.clock)
        self.identify_limits = IdentifyLimits.from_settings(
            settings, tls=self.tls_context is not None, auth_required=self.authorizer is not None
        )
        self.unidentified = negotiate(b"{}", self.identify_limits)
        self.ready_count_max = settings.max_rdy_count
        self.channel_consumers_max = settings.max_channel_consumers
        self.connection_bytes_max = settings.connection_uncommitted_bytes_max
        self.connections: dict[Connection, None] = {}  # in the order they came
        self.handshakes: dict[Wire, int] = {}
        self.due: list[tuple[int, int, Connection]] = []
        self.due_count = 0
        self.listener: Listener | None = None
        self.draining = False
        self.ticker: asyncio.TimerHandle | None = None
        host.clients.append(lambda: [*self.connections])

    async def start(self) -> None:
        self.listener = await listen(
            self.host.loop, lambda: Connection(self), self.settings.tcp_address, "tcp_address"
        )
        self._tick()

    @property
    def addresses(self) -> list[Address]:
        assert self.listener is not None
        return self.listener.addresses

    def drain(self) -> None:
        """No more clients and no more publishes; those who are here go on consuming."""
        self.draining = True
        if self.listener is not None:
            self.listener.close()
        for connection in self.connections:
            connection.topics.clear()  # so that its next publish asks for one, and is refused

    async def settle(self, until: float) -> None:
        """Hand out nothing more, and give consumers until then (the loop's time) to settle what
        they have. Everybody else is let go at once."""
        for connection in [*self.connections]:
            connection.hand_out_no_more()
            if not _in_flight([connection]):
                connection.close_in_order()
        in_flight = _in_flight(self.connections)
        if in_flight:
            log.info("waiting until consumers settle what is in flight: %d", in_flight)
        while in_flight and self.host.loop.time() < until:
            await asyncio.sleep(SETTLING_S)
            in_flight = _in_flight(self.connections)
        if in_flight:
            log.warning("not settled in time, comes again: %d in flight", in_flight)

    async def stop(self, until: float | None = None) -> None:
        """Take no more clients and commands, answer what is on its way, and let go of all.

        Who does not take their answers until then, or within the shutdown timeout, is cut off.
        """
        if self.ticker is not None:
            self.ticker.cancel()
        if self.listener is not None:
            self.listener.close()
        for connection in [*self.connections]:
            connection.close_in_order()
        if until is None:
            until = self.host.loop.time() + self.settings.shutdown_timeout_ms / 1000
        while self.connections:
            if self.host.loop.time() >= until:
                for connection in [*self.connections]:
                    if connection.transport is not None:
                        connection.transport.abort()
            await asyncio.sleep(0.002)
        self.auth_pool.close()

    # -- time

    def begin_heartbeat(self, connection: Connection) -> None:
        """From the greeting on, and anew when IDENTIFY changed the interval."""
        interval_ns = connection.negotiated.heartbeat_interval_ms * 1_000_000
        now_ns = self.clock.monotonic_ns()
        connection.heard_at_ns = now_ns
        connection.beat_at_ns = now_ns + interval_ns if interval_ns else 0
        if interval_ns:
            self._file(connection, connection.beat_at_ns)

    def _file(self, connection: Connection, at_ns: int) -> None:
        self.due_count += 1
        heappush(self.due, (at_ns, self.due_count, connection))

    def _tick(self) -> None:
        self.ticker = self.host.loop.call_later(TICK_S, self._tick)
        now_ns = self.clock.monotonic_ns()
        due = self.due
        while due and due[0][0] <= now_ns:
            at_ns, _, connection = heappop(due)
            self._attend(connection, at_ns, now_ns)
        if self.handshakes:
            for wire, until_ns in [*self.handshakes.items()]:
                if until_ns <= now_ns or wire.transport is None:
                    del self.handshakes[wire]
                    wire.close_now()

    def _attend(self, connection: Connection, at_ns: int, now_ns: int) -> None:
        if connection.transport is None or at_ns != connection.beat_at_ns:
            return  # gone, or filed anew since
        interval_ns = connection.negotiated.heartbeat_interval_ms * 1_000_000
        silent_ns = now_ns - connection.heard_at_ns
        blocked_ns = now_ns - connection.blocked_at_ns if connection.blocked_at_ns else 0
        waits = connection.parked or not connection.reading
        if blocked_ns > interval_ns or (
            silent_ns > HEARTBEATS_MISSED_MAX * interval_ns and not waits
        ):
            log.info("%s: silent for %d ms, dropped", connection.peer, silent_ns // 1_000_000)
            connection.expire()
            return
        connection.beat()
        connection.beat_at_ns = now_ns + interval_ns
        self._file(connection, connection.beat_at_ns)

    # -- channels

    def left(self, channel: Channel) -> None:
        """A subscriber is gone: an ephemeral channel goes with its last, an ephemeral topic with
        its last channel."""
        if not channel.ephemeral or channel.gone or channel.subscribers:
            return
        topic = self.host.broker.topics.get(channel.topic)
        if topic is None or topic.channels.get(channel.name) is not channel:
            return
        topic.delete_channel(channel.name, self.host.clock.now_ns())
        if topic.ephemeral and not topic.channels:
            self.host.delete_topic(topic.name)
        self.host.wake()


def _in_flight(connections: Iterable[Connection]) -> int:
    return sum([one.subscriber.in_flight for one in connections if one.subscriber is not None])
