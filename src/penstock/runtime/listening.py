"""Listening where a setting says: on a port, on every interface, on a socket in the file system.

For the doors, which say what is spoken there. As Go does it for nsqd, an empty host is IPv4 and
IPv6 on one socket and one port, where the machine has both. A path is taken over from a broker that
died there, and goes when this one ends.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from penstock.config import Address
from penstock.errors import OperatingError

BACKLOG = 1024
# as Go's listeners have it: three probes unanswered end a connection
KEEPALIVE_S = 15
KEEPALIVE_PROBES = 3
_MAPPED = "::ffff:"  # how an IPv4 address looks on a socket that takes both


class Listener:
    """One address that is listened on."""

    def __init__(self, server: asyncio.Server, path: Path | None) -> None:
        self._server = server
        self._path = path
        bound = [one.getsockname() for one in server.sockets]
        self.addresses = [Address(str(path), 0)] if path else [Address(*one[:2]) for one in bound]

    def close(self) -> None:
        self._server.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


async def listen(
    loop: asyncio.AbstractEventLoop,
    protocol: Callable[[], asyncio.Protocol],
    address: Address,
    setting: str,
    tls: ssl.SSLContext | None = None,
) -> Listener:
    """Listen; an OperatingError names the setting whose address cannot be used."""
    path = Path(address.host) if address.is_path else None
    try:
        if path is not None:
            _refuse_if_alive(path)
            server = await loop.create_unix_server(protocol, path, backlog=BACKLOG, ssl=tls)
        elif not address.host and socket.has_dualstack_ipv6():
            both = socket.create_server(
                ("", address.port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
            )
            server = await loop.create_server(protocol, sock=both, backlog=BACKLOG, ssl=tls)
        else:
            server = await loop.create_server(
                protocol, address.host or None, address.port, backlog=BACKLOG, ssl=tls
            )
    except OSError as error:
        raise OperatingError(
            f"cannot listen on {address}: {error.strerror}; nothing was started, and what is "
            f"stored was not touched. Stop what listens there, or choose another {setting}."
        ) from error
    return Listener(server, path)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """Who is connected: IP address and port, or Go's sign for who came by a path."""
    name = transport.get_extra_info("peername")
    return f"{name[0].removeprefix(_MAPPED)}:{name[1]}" if isinstance(name, tuple) else "@"


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """So that a peer whose machine is gone does not stay for ever, as Go has it."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if (number := getattr(socket, option, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, number, value)


def _refuse_if_alive(path: Path) -> None:
    """The event loop takes a path over, also from someone who still listens there."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            # nothing there, or only what a broker that died left behind
            return
    raise OSError(errno.EADDRINUSE, "address already in use")
