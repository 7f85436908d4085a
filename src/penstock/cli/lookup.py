"""`penstock lookup`: the name server, for people. (`penstock nsqlookupd` is the same one behind
nsqlookupd's command line.)"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock import __version__
from penstock.cli import ExitCode
from penstock.cli.logs import log_for_people
from penstock.cli.process import run_name_server
from penstock.config import Address, LogLevel
from penstock.config.kinds import ADDRESS, DURATION, Kind, choice
from penstock.limits import MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from penstock.lookup.server import NameServer

T = TypeVar("T")

log = logging.getLogger(__name__)

EXAMPLES = """\
examples:
  penstock lookup                                    only this machine, ports 4160 and 4161
  penstock lookup --tcp-address 0.0.0.0:4160 --http-address 0.0.0.0:4161
  penstock serve --lookupd-tcp-addresses 127.0.0.1:4160
  curl 'http://127.0.0.1:4161/lookup?topic=orders'

It keeps nothing on disk: brokers tell it all again. Stop it with Ctrl-C or SIGTERM.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a name server: which broker has which topics and channels."
    parser.epilog = EXAMPLES

    def add(flag: str, kind: Kind[T], default: T, text: str) -> None:
        shown = f"{text} (default: {kind.show(default)})" if default else text
        parser.add_argument(flag, type=_typed(kind), default=default, metavar="VALUE", help=shown)

    add("--tcp-address", ADDRESS, Address("127.0.0.1", 4160), "where brokers register")
    add("--http-address", ADDRESS, Address("127.0.0.1", 4161), "where consumers ask")
    add(
        "--inactive-producer-timeout",
        DURATION,
        5 * MINUTE_MS,
        "a broker that is silent for longer is not shown",
    )
    add("--tombstone-lifetime", DURATION, 45 * SECOND_MS, "how long a tombstone hides a broker")
    add(
        "--log-level",
        choice(LogLevel),
        LogLevel.INFO,
        "the least severe log lines that are printed",
    )
    parser.add_argument(
        "--broadcast-address",
        default="",
        metavar="HOST",
        help="the name under which brokers reach its HTTP API (default: the host's name)",
    )


def _typed(kind: Kind[T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


def run(args: argparse.Namespace) -> int:
    from penstock.lookup.registry import RegistryOptions  # noqa: PLC0415  --help needs none of it
    from penstock.lookup.server import NameServerOptions  # noqa: PLC0415  as above

    log_for_people(args.log_level)
    options = NameServerOptions(
        tcp_address=args.tcp_address,
        http_address=args.http_address,
        broadcast_address=args.broadcast_address,
        registry=RegistryOptions(args.inactive_producer_timeout, args.tombstone_lifetime),
    )

    def on_listening(server: NameServer) -> None:
        for address in server.tcp_addresses:
            log.info("TCP: listening on %s", address)
        for address in server.http_addresses:
            log.info("HTTP: listening on %s", address)
        print(welcome(server.tcp_addresses, server.http_addresses), flush=True)

    run_name_server(options, on_listening)
    log.info("stopped")
    return ExitCode.OK


def welcome(tcp: list[Address], http: list[Address]) -> str:
    return (
        f"Penstock {__version__} names brokers: they register at {', '.join(map(str, tcp))},"
        f" consumers ask at {', '.join(map(str, http))}.\n"
        f"\n"
        f"Try, in another terminal:\n"
        f"  penstock serve --lookupd-tcp-addresses {tcp[0]}\n"
        f"  curl 'http://{http[0]}/nodes'"
    )
