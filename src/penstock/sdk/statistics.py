"""What a producer or consumer has done since its start, and what it holds at the moment."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sdk.options import Address


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer has done and still holds."""

    published: int
    failed: int
    resent: int
    pending_messages: int
    pending_bytes: int
    connects: int
    address: Address | None


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a consumer has done and still holds."""

    received: int
    finished: int
    requeued: int
    touched: int
    # Settled too late: the connection was gone, or the message had been delivered anew. They come
    # again.
    stale: int
    # FIN, REQ and TOUCH that the broker refused, mostly since the message had timed out.
    refused: int
    buffered: int
    in_flight: int
    connects: int
    connected: tuple[Address, ...]
