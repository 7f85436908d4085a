"""`penstock nsqlookupd`: the name server behind nsqlookupd 1.3's own command line, configuration
file and log.

For scripts, supervisors and test suites that start nsqlookupd: every flag of 1.3 is taken in every
spelling that Go takes, `--version` has nsqlookupd's shape, and the start-up lines on stderr are
nsqlookupd's with the ports that are really bound.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli import ExitCode
from penstock.cli.goflags import parse
from penstock.cli.logs import log_as_nsqd
from penstock.cli.nsqd import version
from penstock.cli.process import run_name_server
from penstock.config import Address, LogLevel
from penstock.config.kinds import ADDRESS, DURATION, FLAG, TEXT, Kind, choice
from penstock.config.sources import read_file
from penstock.errors import ConfigError, PenstockError
from penstock.limits import MINUTE_MS, SECOND_MS

if TYPE_CHECKING:
    from penstock.lookup.server import NameServer, NameServerOptions

log = logging.getLogger(__name__)


class Flag(NamedTuple):
    usage: str
    kind: Kind[object]
    default: object


FLAGS: Mapping[str, Flag] = {
    "broadcast-address": Flag("address that brokers are told (default: the host's name)", TEXT, ""),
    "config": Flag("path to a TOML file in nsqlookupd's format", TEXT, ""),
    "http-address": Flag("<addr>:<port> for HTTP clients", ADDRESS, Address("", 4161)),
    "inactive-producer-timeout": Flag(
        "time that a broker is shown after its last ping", DURATION, 5 * MINUTE_MS
    ),
    "log-level": Flag("debug, info, warn, error, or fatal", choice(LogLevel), LogLevel.INFO),
    "log-prefix": Flag("what log lines begin with", TEXT, "[nsqlookupd] "),
    "tcp-address": Flag("<addr>:<port> for brokers", ADDRESS, Address("", 4160)),
    "tombstone-lifetime": Flag("time that a tombstone hides a broker", DURATION, 45 * SECOND_MS),
    "verbose": Flag("(deprecated) use --log-level", FLAG, False),
    "version": Flag("print the version", FLAG, False),
}

# what Go takes for a text at first: that it is wrong comes out when it is used
_USED_LATER = ("http-address", "tcp-address", "log-level")


def main(argv: Sequence[str]) -> int:
    if {"-h", "-help", "--help"} & set(argv):
        print(usage())
        return ExitCode.OK
    try:
        given, rest = parse(argv, is_boolean)
        _check(given)
    except ConfigError as error:
        print(f"{error}\n{usage()}", file=sys.stderr)
        return ExitCode.USAGE
    if FLAG.parse(given.get("version", ["false"])[-1]):
        print(version("nsqlookupd"))
        return ExitCode.OK
    log_as_nsqd(LogLevel.INFO, given.get("log-prefix", ["[nsqlookupd] "])[-1])
    try:
        notes: list[str] = []
        values = read(given, notes)
        log_as_nsqd(LogLevel(str(values["log-level"])), str(values["log-prefix"]))
        log.info("%s", version("nsqlookupd"))
        if rest:
            notes.append(f"{rest[0]!r} is no flag; it and what follows was not read: {rest}")
        for note in notes:
            log.info("%s", note)
        run_name_server(options(values), _on_listening)
    except PenstockError as error:
        log.critical("%s", error)
        return ExitCode.ERROR
    return ExitCode.OK


def _on_listening(server: NameServer) -> None:
    for address in server.tcp_addresses:
        log.info("TCP: listening on %s", address)
    for address in server.http_addresses:
        log.info("HTTP: listening on %s", address)


def usage() -> str:
    lines = [
        "Usage of penstock nsqlookupd (nsqlookupd 1.3's flags; -x, --x, --x=value, --x value):"
    ]
    lines += [f"  --{name:<28} {flag.usage}" for name, flag in FLAGS.items()]
    return "\n".join(lines)


def read(given: Mapping[str, list[str]], notes: list[str]) -> dict[str, object]:
    """Values by flag: flags over the file over nsqlookupd's defaults."""
    values = {name: flag.default for name, flag in FLAGS.items()}
    sources: list[tuple[str, object, str]] = []
    if file := given.get("config", [""])[-1]:
        sources += _of_file(Path(file), notes)
    sources += [(name, texts[-1], f"flag --{name}") for name, texts in given.items()]
    for name, value, origin in sources:
        try:
            values[name] = FLAGS[name].kind.parse(_as_meant(name, value))
        except ValueError as error:
            raise ConfigError(f"bad value for {origin}: {error}.") from error
    return values


def _of_file(file: Path, notes: list[str]) -> Iterator[tuple[str, object, str]]:
    for key, value in read_file(file).items():
        name = key.replace("_", "-")
        if name in FLAGS and FLAGS[name].kind is DURATION and str(value).isdecimal():
            yield name, f"{value}ms", f"{key} in {file}"  # such files have bare milliseconds
        elif name in FLAGS:
            yield name, value, f"{key} in {file}"
        else:
            # nsqlookupd passes over keys that it does not know
            notes.append(f"{key} in {file} is not a setting of nsqlookupd 1.3 and was not read")


def _as_meant(name: str, value: object) -> object:
    if FLAGS[name].kind is ADDRESS and isinstance(value, str):
        # to Go that is every interface, of IPv6 too
        return value.removeprefix("0.0.0.0")  # noqa: S104  only taken away
    return value


def _check(given: Mapping[str, list[str]]) -> None:
    """A value that is no duration or boolean is a mistake in the command line to Go."""
    for name, texts in given.items():
        for text in texts if name not in _USED_LATER else ():
            try:
                FLAGS[name].kind.parse(_as_meant(name, text))
            except ValueError as error:
                raise ConfigError(f'invalid value "{text}" for flag -{name}: {error}') from error


def is_boolean(name: str) -> bool | None:
    flag = FLAGS.get(name)
    return flag.kind is FLAG if flag is not None else None


def options(values: Mapping[str, object]) -> NameServerOptions:
    from penstock.lookup.registry import RegistryOptions  # noqa: PLC0415  --help needs none of it
    from penstock.lookup.server import NameServerOptions  # noqa: PLC0415  as above

    tcp, http = values["tcp-address"], values["http-address"]
    inactive, tombstone = values["inactive-producer-timeout"], values["tombstone-lifetime"]
    assert isinstance(tcp, Address) and isinstance(http, Address)
    assert isinstance(inactive, int) and isinstance(tombstone, int)
    return NameServerOptions(
        tcp_address=tcp,
        http_address=http,
        broadcast_address=str(values["broadcast-address"]),
        registry=RegistryOptions(inactive, tombstone),
    )
