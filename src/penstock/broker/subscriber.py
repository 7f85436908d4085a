"""A consumer of a channel, as the core sees it: its credit and where its messages go."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.statistics import Client


class Subscriber:
    """A consumer of a channel: its credit and where its messages go.

    ``deliver`` gets frames ready for the wire. ``blocked`` is set by the door while the peer does
    not read.
    """

    __slots__ = (
        "arrived",
        "blocked",
        "client",
        "closing",
        "deliver",
        "finished",
        "in_flight",
        "message_count",
        "name",
        "number",
        "on_dropped",
        "ready",
        "requeued",
        "sample_rate",
        "timeout_ns",
    )

    def __init__(
        self,
        name: str,
        deliver: Callable[[list[bytes], int], None],
        on_dropped: Callable[[], None],
        timeout_ns: int,
        sample_rate: int = 0,
        client: Client | None = None,
    ) -> None:
        self.name = name
        self.deliver = deliver
        self.on_dropped = on_dropped
        self.timeout_ns = timeout_ns
        self.sample_rate = sample_rate
        self.client = client  # who stands behind it, for statistics
        self.number = 0
        self.ready = 0
        self.in_flight = 0
        self.arrived = False  # it has asked for messages
        self.blocked = False
        self.closing = False
        self.message_count = 0
        self.finished = 0
        self.requeued = 0

    @property
    def credit(self) -> int:
        return 0 if self.blocked else self.ready - self.in_flight
