"""Consuming from the brokers that name servers know: a consumer that asks for them, now and then.

As NSQ's clients do it: all name servers are asked, what any of them knows counts, and the time
between two rounds has jitter, so that a thousand consumers do not ask in the same instant. A broker
that no name server names any more is only let go when its connection is lost too: a name server
that was started again knows nothing for a moment, and that must not end any connection.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random

from penstock.errors import OperatingError
from penstock.protocol.lookup_http import ANSWER_BYTES_MAX, decode_brokers, encode_question
from penstock.sdk.connection import report_bug
from penstock.sdk.consumer import Consumer
from penstock.sdk.errors import BrokerUnreachable
from penstock.sdk.options import (
    LOOKUP_PORT,
    Address,
    ClientOptions,
    ConsumerOptions,
    parse_addresses,
)

log = logging.getLogger("penstock.sdk")

# The time between two rounds is up to so much of it longer.
JITTER = 0.3
READ_BYTES = 1 << 16


class DiscoveringConsumer(Consumer):
    """Made by ``Client.consumer(…, lookup=…)``."""

    # a broker that cannot be reached now may be gone, and a topic may be nowhere yet
    must_reach_one = False

    def __init__(
        self, topic: str, channel: str, client: ClientOptions, options: ConsumerOptions
    ) -> None:
        super().__init__(topic, channel, (), client, options)
        self._lookups = parse_addresses(options.lookup, LOOKUP_PORT)
        self._silent: set[Address] = set()  # name servers, and the log says so
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask the name servers and subscribe at the brokers they know, also if there are none yet;
        raises if no name server answers."""
        if self._polling is None and not self.closed:
            found = await self._find()
            if found is None:
                names = ", ".join(map(str, self._lookups))
                raise BrokerUnreachable(
                    f"no name server answered at {names}; are these HTTP ports, such as 4161?"
                )
            self._wanted = found
        await super().start()
        if self._polling is None and not self.closed:
            self._polling = self._loop.create_task(self._poll())
            self._polling.add_done_callback(report_bug)

    def request_stop(self, timeout: float | None = None) -> None:
        if self._polling is not None:
            self._polling.cancel()
        super().request_stop(timeout)

    async def _poll(self) -> None:
        random = Random()
        while True:
            await asyncio.sleep(self._options.lookup_interval * random.uniform(1.0, 1.0 + JITTER))
            found = await self._find()
            if found is not None:
                connected = self.statistics().connected
                self.set_addresses([str(address) for address in dict.fromkeys(connected + found)])

    async def _find(self) -> tuple[Address, ...] | None:
        """All that any name server knows; None if none of them answers."""
        answers = await asyncio.gather(*[self._ask(lookup) for lookup in self._lookups])
        if all(answer is None for answer in answers):
            return None
        return tuple(dict.fromkeys(address for answer in answers for address in answer or ()))

    async def _ask(self, lookup: Address) -> list[Address] | None:
        try:
            async with asyncio.timeout(self._client.connect_timeout):
                found = decode_brokers(await _get(lookup, self.topic))
        except (OSError, OperatingError) as error:  # a TimeoutError is an OSError
            level = logging.DEBUG if lookup in self._silent else logging.WARNING
            self._silent.add(lookup)
            why = str(error) or "no answer in time"
            log.log(level, "name server %s: %s; it is asked again later", lookup, why)
            return None
        self._silent.discard(lookup)
        return [Address(*place) for place in found]


async def _get(lookup: Address, topic: str) -> bytes:
    reader, writer = await asyncio.open_connection(lookup.host, lookup.port)
    try:
        writer.write(encode_question("/lookup", topic, str(lookup)))
        answer = b""
        while data := await reader.read(READ_BYTES):
            answer += data
            if len(answer) > ANSWER_BYTES_MAX:
                raise OperatingError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        return answer
    finally:
        writer.transport.abort()
