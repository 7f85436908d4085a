"""A load that does nothing: connections that are open, subscribed if asked, and silent.

They are open when the worker is ready; what they cost is read from the broker then. The word to go
is the word to close them.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

from penstock.bench.fleet import Outcome
from penstock.bench.link import Address, open_link, open_subscription


@dataclass(frozen=True)
class IdleLoad:
    """``connections`` behind IDENTIFY, or behind SUB when there is a topic."""

    address: Address
    connections: int
    topic: str | None = None

    def open(self) -> Idling:
        """Open all of them."""
        return Idling(self)


class Idling:
    """The open connections."""

    def __init__(self, load: IdleLoad) -> None:
        raise_open_files(load.connections + 100)
        self._links = [
            open_link(load.address)
            if load.topic is None
            else open_subscription(load.address, load.topic, "idle")
            for _ in range(load.connections)
        ]

    def run(self) -> Outcome:
        """Close them."""
        started_at_ns = time.monotonic_ns()
        for link in self._links:
            link.close()
        return Outcome(0, started_at_ns, time.monotonic_ns())


def raise_open_files(wanted: int) -> None:
    """Raise this process's own limit of open files, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
