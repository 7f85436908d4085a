"""Which channels a name server knows of a topic: one GET of nsqlookupd's `/channels`. Who asks sets
the time limit."""

from __future__ import annotations

import asyncio

from penstock.config import Address
from penstock.errors import OperatingError
from penstock.protocol.lookup_http import ANSWER_BYTES_MAX, decode_channels, encode_question

READ_BYTES = 1 << 16


async def channels_known_at(places: list[Address], topic: str) -> list[str]:
    """Those that stay. An OSError or OperatingError if there is no such answer."""
    failure: OSError | None = None
    for place in places:
        try:
            return decode_channels(await _get(place, topic))
        except OSError as error:
            failure = error
    raise failure or OperatingError("its broadcast address stands for no address", retry=True)


async def _get(place: Address, topic: str) -> bytes:
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(encode_question("/channels", topic, str(place)))
        answer = b""
        while data := await reader.read(READ_BYTES):
            answer += data
            if len(answer) > ANSWER_BYTES_MAX:
                raise OperatingError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        return answer
    finally:
        writer.transport.abort()
