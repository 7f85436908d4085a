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
from penstock.sdk.discovery import DiscoveringConsumer
from penstock.sdk.options import (
    Address,
    ClientKeywords,
    ClientOptions,
    ConsumerKeywords,
    ConsumerOptions,
    ProducerKeywords,
    ProducerOptions,
    parse_addresses,
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
        self.addresses: tuple[Address, ...] = parse_addresses(addresses)
        if not self.addresses:
            raise ConfigError("a client needs at least one address, for example localhost:4150")
        self.options = ClientOptions(**options)
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []

    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """Publishes over one of the addresses, and over another when that one fails."""
        producer = Producer(self.addresses, self.options, ProducerOptions(**options))
        self._producers = [*(other for other in self._producers if not other.closed), producer]
        return producer

    def consumer(self, topic: str, channel: str, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """Consumes one channel from all of the addresses, or from the brokers that the name servers
        given as ``lookup`` know."""
        chosen = ConsumerOptions(**options)
        consumer = (
            DiscoveringConsumer(topic, channel, self.options, chosen)
            if chosen.lookup
            else Consumer(topic, channel, self.addresses, self.options, chosen)
        )
        self._consumers = [*(other for other in self._consumers if not other.closed), consumer]
        return consumer

    async def close(self) -> None:
        """Stop all consumers and close all producers that this client made."""
        for consumer in self._consumers:
            consumer.request_stop()
        for consumer in self._consumers:
            await consumer.stop()
        # Producers last: handlers that are still at work may publish.
        await asyncio.gather(*(producer.close() for producer in self._producers))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for consumer in self._consumers:
            consumer.request_stop(0 if error is not None else None)
        for consumer in self._consumers:
            await consumer.__aexit__(kind, error, trace)
        await self.close()

    @classmethod
    def sync(
        cls, addresses: str | Iterable[str] = LOCAL, **options: Unpack[ClientKeywords]
    ) -> SyncClient:
        """The same for scripts without an event loop."""
        from penstock.sdk.sync import SyncClient  # noqa: PLC0415 - it imports this module

        return SyncClient(addresses, **options)
