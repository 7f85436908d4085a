"""For your own tests: a real broker in memory, and a clock that goes on when you say so.

    async with MemoryBroker() as broker:              # or `with`, for tests without asyncio
        async with broker.client() as client: ...

The broker is the one that `penstock serve` runs, on a free port of this machine, with nothing on
disk. With a ``FakeClock`` it lives in your time: ``advance`` makes delays due and leases time out
at once, while clients' heartbeats go on in real time.
"""

from penstock.testing.broker import MemoryBroker
from penstock.testing.clock import FakeClock

__all__ = ["FakeClock", "MemoryBroker"]
