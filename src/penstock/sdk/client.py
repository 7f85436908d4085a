"""Where a program begins: which brokers, how to connect to them; producers and consumers come from
here.

A client holds settings and what it has opened, no connection of its own: each producer has one,
each consumer one per broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from penstock.errors import ConfigError
from penstock.sdk.consumer import Consumer
from penstock.sdk.options import (
    Address,
    ClientKeywords,
    ClientOptions,
    ConsumerKeywords,
    ConsumerOptions,
    ProducerKeywords,
    ProducerOptions,
    parse_address,
)
from penstock.sdk.producer import Producer

if TYPE_CHECKING:
    from penstock.sdk.sync import SyncClient

LOCAL = "127.0.0.1:4150"


class Client:
    """``Client("host:4150", tls=True)``; several addresses as a list.

    The keywords are ``ClientOptions``.
    """

    def __init__(
        self, addresses: str | Iterable[str] = LOCAL, **options: Unpack[ClientKeywords]
    ) -> None:
        texts = [addresses] if isinstance(addresses, str) else list(addresses)
        if not texts:
            raise ConfigError("a client needs at least one address, for example localhost:4150")
        self.addresses: tuple[Address, ...] = tuple(parse_address(text) for text in texts)
        self.options = ClientOptions(**options)
        self._opened: list[Producer | Consumer] = []

    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """Publishes over one of the addresses, and over another when that one fails."""
        producer = Producer(self.addresses, self.options, ProducerOptions(**options))
        self._remember(producer)
        return producer

    def consumer(self, topic: str, channel: str, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """Consumes one channel from all of the addresses."""
        consumer = Consumer(
            topic, channel, self.addresses, self.options, ConsumerOptions(**options)
        )
        self._remember(consumer)
        return consumer

    def _remember(self, opened: Producer | Consumer) -> None:
        self._opened = [other for other in self._opened if not other.closed]
        self._opened.append(opened)

    async def close(self) -> None:
        """Stop all consumers and close all producers that this client made."""
        opened, self._opened = self._opened, []
        consumers = [each.stop() for each in opened if isinstance(each, Consumer)]
        await asyncio.gather(*consumers)
        # Producers last: handlers that are still at work may publish.
        await asyncio.gather(*(each.close() for each in opened if isinstance(each, Producer)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @classmethod
    def sync(
        cls, addresses: str | Iterable[str] = LOCAL, **options: Unpack[ClientKeywords]
    ) -> SyncClient:
        """The same for scripts without an event loop."""
        from penstock.sdk.sync import SyncClient  # noqa: PLC0415 - it imports this module

        return SyncClient(addresses, **options)
