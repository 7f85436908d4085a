"""Which channels a name server knows of a topic: one GET of nsqlookupd's `/channels`.

In HTTP 1.0, whose answers are simply all that comes until the connection ends. Who asks sets the
time limit.
"""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

from penstock.config import Address
from penstock.errors import OperatingError
from penstock.limits import MIB
from penstock.names import is_ephemeral, is_valid_name

ANSWER_BYTES_MAX = 4 * MIB
SHOWN_BYTES_MAX = 200
READ_BYTES = 1 << 16


async def channels_known_at(places: list[Address], topic: str) -> list[str]:
    """Those that stay: ephemeral ones come with their consumers. An OSError or OperatingError if
    there is no such answer."""
    failure: OSError | None = None
    for place in places:
        try:
            return decode_channels(await _get(place, f"/channels?topic={quote(topic, safe='')}"))
        except OSError as error:
            failure = error
    raise failure or OperatingError("its broadcast address stands for no address", retry=True)


async def _get(place: Address, target: str) -> bytes:
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(
            f"GET {target} HTTP/1.0\r\nHost: {place}\r\n"
            "Accept: application/vnd.nsq; version=1.0\r\n\r\n".encode()
        )
        answer = b""
        while data := await reader.read(READ_BYTES):
            answer += data
            if len(answer) > ANSWER_BYTES_MAX:
                raise OperatingError(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        return answer
    finally:
        writer.transport.abort()


def decode_channels(answer: bytes) -> list[str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0]
    words = status.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or words[1] != b"200":
        raise OperatingError(f"it answered {_shown(status)}")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OperatingError(f"it answered {_shown(body)}, not JSON") from error
    names = value.get("channels") if isinstance(value, dict) else None
    if not isinstance(names, list):
        raise OperatingError(f"it answered {_shown(body)}, without channels")
    return [
        name
        for name in names
        if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)
    ]


def _shown(data: bytes) -> str:
    return repr(data[:SHOWN_BYTES_MAX].decode("utf-8", "replace"))
