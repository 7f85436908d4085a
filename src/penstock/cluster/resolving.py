"""Host names to addresses, on a thread of its own.

The event loop's way is an executor with a few threads, and it waits for all of them at the end. A
name server's name that nobody answers for must hold up neither others nor the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from penstock.config import Address


async def resolve(address: Address) -> list[Address]:
    """All numeric addresses behind a name; the OSError if there are none. However long it takes:
    who gives up waiting leaves a thread behind, so better not ask again and again."""
    loop = asyncio.get_running_loop()
    host = address.host or "localhost"  # as Go means it
    answered: asyncio.Future[list[Address]] = loop.create_future()

    def settle(found: list[Address], failure: OSError | None) -> None:
        if answered.done():
            return
        if failure is not None:
            answered.set_exception(failure)
        else:
            answered.set_result(found)

    def ask() -> None:
        found: list[Address] = []
        failure: OSError | None = None
        try:
            for *_, place in socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM):
                found.append(Address(str(place[0]), int(place[1])))
        except (OSError, UnicodeError) as error:
            failure = error if isinstance(error, OSError) else OSError(str(error))
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    return await answered
