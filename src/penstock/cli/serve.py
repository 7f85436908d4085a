"""`penstock serve`: the broker, with Penstock's own settings.

Reads the settings, sets up the log on stderr, starts the server and tells people on stdout where it
listens and what to try next. What the server is made of is the runtime's business.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.cli import ExitCode
from penstock.cli.logs import log_for_people
from penstock.cli.process import run_broker
from penstock.cli.settings_flags import add_settings_arguments, load_settings
from penstock.config import Address, Settings

if TYPE_CHECKING:
    from penstock.server import Server

log = logging.getLogger(__name__)

EXAMPLES = """\
examples:
  penstock serve                                       data in ./data, only this machine
  penstock serve --tcp-address 0.0.0.0:4150 --data-path /var/lib/penstock
  penstock serve --storage memory://                   nothing on disk
  penstock serve --config penstock.toml                settings from a file
  PENSTOCK_DURABILITY=written penstock serve           a setting from the environment

Stop it with Ctrl-C or SIGTERM; consumers settle what they have first. `penstock config` shows the
settings in force, docs/configuration.md explains them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the broker until SIGINT or SIGTERM."
    parser.usage = "penstock serve [--config FILE] [--SETTING VALUE ...]"
    parser.epilog = EXAMPLES
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args).settings
    log_for_people(settings.log_level)

    def on_listening(server: Server) -> None:
        for address in server.tcp_addresses:
            log.info("TCP: listening on %s", address)
        for address in server.http_addresses:
            log.info("HTTP: listening on %s", address)
        for address in server.https_addresses:
            log.info("HTTPS: listening on %s", address)
        print(welcome(settings, server.tcp_addresses, server.http_addresses), flush=True)

    run_broker(settings, on_listening)
    log.info("stopped")
    return ExitCode.OK


def welcome(settings: Settings, tcp: list[Address], http: list[Address]) -> str:
    """Where it listens, where the data is, and commands to try."""
    reachable = _reachable(tcp[0])
    broker = "" if reachable == Settings().tcp_address else f" --broker {reachable}"
    command = shlex.quote(sys.argv[0]) if sys.argv[0].endswith("penstock") else "penstock"
    lines = [f"Penstock {__version__} listens for NSQ clients on {', '.join(map(str, tcp))}."]
    lines += [f"HTTP is spoken on {address}." for address in http]
    lines += [
        f"Messages are kept in {settings.storage_url}, durability {settings.durability}.",
        "",
        "Try, in another terminal:",
        f"  {command} tail greetings{broker}",
        f"  echo hello | {command} pub greetings{broker}",
    ]
    if http and not http[0].is_path:
        lines.append(f"  curl -d hello 'http://{_reachable(http[0])}/pub?topic=greetings'")
    return "\n".join(lines)


def _reachable(address: Address) -> Address:
    """A wildcard is an address to listen on, not one to connect to."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  only compared with
    return Address(own.get(address.host, address.host), address.port)
