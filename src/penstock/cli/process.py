"""A server as a process: event loop, open files, signals. `serve` and `nsqd` run the broker so,
`lookup` and `nsqlookupd` the name server.

Starts a server, tells the caller when it listens, and stops it at the first SIGINT or SIGTERM. A
second signal ends the process at once, as if it had been killed: nothing that was answered is lost.
So does a bug of ours, loudly: a broker that goes on half-right would be worse.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.cli import ExitCode
from penstock.cli.collector import Collector
from penstock.config import EventLoop, Settings
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.lookup.server import NameServer, NameServerOptions
    from penstock.server import Server

log = logging.getLogger(__name__)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h


class Startable(Protocol):
    """What runs until it is stopped."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


S = TypeVar("S", bound=Startable)


def run_broker(settings: Settings, on_listening: Callable[[Server], None]) -> None:
    """Run until a signal; returns after a clean stop, raises what kept it from starting."""
    from penstock.server import Server  # noqa: PLC0415  --help and --version need no broker

    def listening(server: Server) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, server.drain)
        on_listening(server)

    _run(lambda: Server(settings), settings.event_loop, listening)


def run_name_server(options: NameServerOptions, on_listening: Callable[[NameServer], None]) -> None:
    """The same for a name server."""
    from penstock.lookup.server import NameServer  # noqa: PLC0415  as above

    _run(lambda: NameServer(options), EventLoop.AUTO, on_listening)


def _run(make: Callable[[], S], loop: EventLoop, on_listening: Callable[[S], None]) -> None:
    raise_open_files_limit()
    give_memory_back()
    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        runner.run(_serve(make, on_listening))


async def _serve(make: Callable[[], S], on_listening: Callable[[S], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_exception)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server = make()
    await server.start()
    collector = Collector(loop)
    collector.start()
    try:
        on_listening(server)
        await stopping.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        # not before a second signal really does
        log.info("stopping; a second signal ends the process at once")
        await server.stop()
        collector.stop()


def on_exception(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody caught. Inside a connection it ends that one, which the loop has seen to.
    Anywhere else it is a bug of ours that broke a turn off half-way, and others would wait for ever
    for what was left undone."""
    loop.default_exception_handler(context)
    if "handle" in context:
        log.critical(
            "this is a bug in Penstock, which ends at once: what was answered is safe, "
            "what was not may be sent again. Start it again, and report the lines above"
        )
        os._exit(ExitCode.BUG)


def loop_factory(choice: EventLoop) -> Callable[[], AbstractEventLoop]:
    """uvloop's loop where it is wanted and installed, else asyncio's, saying so."""
    if choice is EventLoop.ASYNCIO:
        return asyncio.new_event_loop
    try:
        import uvloop  # noqa: PLC0415  optional, and slow to import for who does not serve
    except ImportError as error:
        if choice is EventLoop.UVLOOP:
            raise ConfigError(
                "event_loop is uvloop, but uvloop is not installed here; "
                "install it (pip install uvloop) or set event_loop to auto."
            ) from error
        log.warning(
            "uvloop is not installed: asyncio's own loop serves, at a higher cost per message"
        )
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def raise_open_files_limit() -> None:
    """As many open files as the system lets us have: each connection is one."""
    try:
        import resource  # noqa: PLC0415  does not exist on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def give_memory_back() -> None:
    """Ask glibc to keep freed memory small: two arenas instead of one a thread, and blocks of a
    megabyte or more go back to the system at once. A no-op with other C libraries."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_ARENA_MAX, 2)
    mallopt(M_MMAP_THRESHOLD, 1 << 20)
    mallopt(M_TRIM_THRESHOLD, 8 << 20)
