"""`penstock nsqd`: the broker behind nsqd 1.3's own command line, configuration file and log.

For scripts, supervisors and test suites that start nsqd: every flag of nsqd 1.3 is taken in every
spelling that Go takes, `--version` has nsqd's shape, and the start-up lines on stderr are nsqd's
with the ports that are really bound. A flag without a counterpart is accepted, and one log line
says so. Penstock's own settings are flags here too (`--durability=written`).
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock import __version__, limits
from penstock.cli import ExitCode, exit_code_of
from penstock.cli.goflags import parse
from penstock.cli.logs import log_as_nsqd
from penstock.cli.process import run_broker
from penstock.config import SETTINGS, Address, LogLevel, Setting, Settings, load
from penstock.config.kinds import (
    ADDRESS,
    ADDRESS_OR_NONE,
    ADDRESSES,
    DURATION,
    DURATION_OR_NONE,
    FLAG,
    PATH,
    PATH_OR_NONE,
    TEXT,
    TEXTS,
    TLS_REQUIRED,
    Kind,
    count,
)
from penstock.config.sources import read_file, read_value
from penstock.errors import ConfigError, PenstockError
from penstock.protocol.nsq import NSQD_VERSION
from penstock.storage.file import layout
from penstock.storage.file.version import others_in

if TYPE_CHECKING:
    from penstock.server import Server

log = logging.getLogger(__name__)


class Flag(NamedTuple):
    """One flag of nsqd: the setting behind it, or why there is none and what it takes."""

    usage: str
    setting: str = ""
    without: str = ""
    kind: Kind[object] = TEXT
    file_key: str = ""


_NOT_STATSD = "Penstock sends nothing to statsd"
_NOT_SCANNED = "Penstock has one timer instead of scanning queues"
_NOT_MEASURED = "Penstock keeps no latency quantiles"
_NO_TOPOLOGY = "Penstock does not prefer consumers by topology"
_DEPRECATED = "nsqd ignores it too"

FLAGS: Mapping[str, Flag] = {
    "auth-http-address": Flag(
        "<addr>:<port> or URL of an auth server (may be given multiple times)",
        "auth_http_addresses",
        file_key="auth_http_addresses",
    ),
    "auth-http-request-method": Flag("get or post", "auth_http_request_method"),
    "broadcast-address": Flag("address that lookupd is told", "broadcast_address"),
    "broadcast-http-port": Flag("HTTP port that lookupd is told", "broadcast_http_port"),
    "broadcast-tcp-port": Flag("TCP port that lookupd is told", "broadcast_tcp_port"),
    "config": Flag("path to a TOML file in nsqd's format"),
    "data-path": Flag("directory of the data (default: the current one)", "data_path"),
    "deflate": Flag("let clients negotiate deflate", "deflate"),
    "e2e-processing-latency-percentile": Flag(
        "latency percentiles to track",
        without=_NOT_MEASURED,
        file_key="e2e_processing_latency_percentiles",
    ),
    "e2e-processing-latency-window-time": Flag(
        "window of those percentiles", without=_NOT_MEASURED, kind=DURATION
    ),
    "enable-experiment": Flag("name of an experiment", without=_NO_TOPOLOGY),
    "http-address": Flag("<addr>:<port> for HTTP clients", "http_address"),
    "http-client-connect-timeout": Flag(
        "time to connect to an auth server", "http_client_connect_timeout"
    ),
    "http-client-request-timeout": Flag(
        "time for a request to an auth server", "http_client_request_timeout"
    ),
    "https-address": Flag("<addr>:<port> for HTTPS clients", "https_address"),
    "log-level": Flag("debug, info, warn, error, or fatal", "log_level"),
    "log-prefix": Flag("what log lines begin with (default: '[nsqd] ')"),
    "lookupd-tcp-address": Flag(
        "<addr>:<port> of a lookupd (may be given multiple times)",
        "lookupd_tcp_addresses",
        file_key="nsqlookupd_tcp_addresses",
    ),
    "max-body-size": Flag("largest body of a command", "max_body_size"),
    "max-bytes-per-file": Flag("size of a file of the log", "segment_bytes_max"),
    "max-channel-consumers": Flag("most consumers of a channel", "max_channel_consumers"),
    "max-deflate-level": Flag("highest deflate level", "max_deflate_level"),
    "max-heartbeat-interval": Flag("longest heartbeat interval", "max_heartbeat_interval"),
    "max-msg-size": Flag("largest message", "max_msg_size"),
    "max-msg-timeout": Flag("longest message timeout", "max_msg_timeout"),
    "max-output-buffer-size": Flag("largest output buffer", "max_output_buffer_size"),
    "max-output-buffer-timeout": Flag("longest output buffer timeout", "max_output_buffer_timeout"),
    "max-rdy-count": Flag("highest RDY", "max_rdy_count"),
    "max-req-timeout": Flag("longest delay of REQ and DPUB", "max_req_timeout"),
    "mem-queue-size": Flag("messages an ephemeral channel may be behind", "mem_queue_size"),
    "min-output-buffer-timeout": Flag(
        "shortest output buffer timeout", "min_output_buffer_timeout"
    ),
    "msg-timeout": Flag("default message timeout", "msg_timeout"),
    "node-id": Flag(
        "unique part of message ids, 0 to 1023",
        without="Penstock's message ids are unique without it",
        kind=count(0, limits.NODE_ID_END - 1),
        file_key="id",
    ),
    "output-buffer-timeout": Flag("default output buffer timeout", "output_buffer_timeout"),
    "queue-scan-selection-count": Flag("channels per scan", without=_NOT_SCANNED, kind=count(0)),
    "queue-scan-worker-pool-max": Flag("scanning workers", without=_NOT_SCANNED, kind=count(0)),
    "snappy": Flag("let clients negotiate snappy", "snappy"),
    "statsd-address": Flag("<addr>:<port> of statsd", without=_NOT_STATSD),
    "statsd-exclude-ephemeral": Flag("leave ephemerals out", without=_NOT_STATSD, kind=FLAG),
    "statsd-interval": Flag("time between pushes", without=_NOT_STATSD, kind=DURATION),
    "statsd-mem-stats": Flag("push memory statistics", without=_NOT_STATSD, kind=FLAG),
    "statsd-prefix": Flag("prefix of keys", without=_NOT_STATSD),
    "statsd-udp-packet-size": Flag("size of packets", without=_NOT_STATSD, kind=count(0)),
    "sync-every": Flag("messages per sync at durability written", "sync_messages_max"),
    "sync-timeout": Flag("time per sync at durability written", "sync_interval"),
    "tcp-address": Flag("<addr>:<port> for NSQ clients", "tcp_address"),
    "tls-cert": Flag("path to the certificate", "tls_cert"),
    "tls-client-auth-policy": Flag("require or require-verify", "tls_client_auth_policy"),
    "tls-key": Flag("path to its key", "tls_key"),
    "tls-min-version": Flag("tls1.0, tls1.1, tls1.2 or tls1.3", "tls_min_version"),
    "tls-required": Flag("true, false or tcp-https", "tls_required"),
    "tls-root-ca-file": Flag("path to the authorities of clients", "tls_root_ca_file"),
    "topology-region": Flag("region of this broker", without=_NO_TOPOLOGY),
    "topology-zone": Flag("zone of this broker", without=_NO_TOPOLOGY),
    "verbose": Flag("(deprecated) use --log-level", without=_DEPRECATED, kind=FLAG),
    "version": Flag("print the version", kind=FLAG),
    "worker-id": Flag("(deprecated) use --node-id", without=_DEPRECATED, kind=FLAG),
}

# What nsqd does where nothing is said. Its limits stay; what an OK promises is Penstock's.
NSQD_DEFAULTS = Settings(
    tcp_address=Address("", 4150),
    http_address=Address("", 4151),
    https_address=Address("", 4152),
    data_path=Path(),
    segment_bytes_max=limits.NSQD_SEGMENT_BYTES_DEFAULT,
    max_req_timeout_ms=limits.REQ_TIMEOUT_MAX_MS,
)

_OWN = {setting.flag.removeprefix("--"): setting for setting in SETTINGS.values()}
_DURATIONS = (DURATION, DURATION_OR_NONE)
_ADDRESSES = (ADDRESS, ADDRESS_OR_NONE)

# What nsqd reads as texts; anything else that does not fit is a mistake in the command line.
_TEXTS = (*_ADDRESSES, ADDRESSES, PATH, PATH_OR_NONE, TEXT, TEXTS)
_TEXTS_BY_NAME = ("auth_http_request_method", "tls_client_auth_policy")

# Where Penstock keeps its data, if other things lie in the data path.
FOLDER = "penstock"

# What nsqd keeps in its data path.
_NSQDS_FILES = ("nsqd.dat", "*.diskqueue.*.dat")


class Asked(NamedTuple):
    """What a command line and its configuration file ask for."""

    settings: Settings
    log_prefix: str
    node_id: int
    notes: list[str]


def main(argv: Sequence[str]) -> int:
    if {"-h", "-help", "--help"} & set(argv):
        print(usage())
        return ExitCode.OK
    try:
        values, rest = parse(argv, _is_boolean)
        _check(values)
    except ConfigError as error:
        print(f"{error}\n{usage()}", file=sys.stderr)
        return ExitCode.USAGE
    if FLAG.parse(values.get("version", ["false"])[-1]):
        print(version())
        return ExitCode.OK
    prefix = values.get("log-prefix", ["[nsqd] "])[-1]
    log_as_nsqd(LogLevel.INFO, prefix)
    try:
        asked = read(values, rest)
        log_as_nsqd(asked.settings.log_level, asked.log_prefix)
        _run(asked)
    except PenstockError as error:
        log.critical("%s", error)
        code = exit_code_of(error)
        return ExitCode.ERROR if code is ExitCode.USAGE else code
    log.info("NSQ: bye")
    return ExitCode.OK


def _run(asked: Asked) -> None:
    def on_listening(server: Server) -> None:
        for address in server.tcp_addresses:
            log.info("TCP: listening on %s", address)
        for address in server.http_addresses:
            log.info("HTTP: listening on %s", address)
        for address in server.https_addresses:
            log.info("HTTPS: listening on %s", address)

    settings = asked.settings
    log.info("%s", version())
    log.info("ID: %d", asked.node_id)
    for note in asked.notes:
        log.info("%s", note)
    if nsqds := nsqds_data(settings.data_path):
        log.warning(
            "%s has data of nsqd (%s and %d more files): not read, not changed; docs/nsq.md says"
            " how to have it delivered first",
            *(settings.data_path.absolute(), nsqds[0], len(nsqds) - 1),
        )
    folder = data_folder(settings.data_path)
    if folder != settings.data_path and not settings.storage:
        log.info("data is kept in %s, since other files lie beside it", folder.absolute())
        settings = replace(settings, data_path=folder)
    run_broker(settings, on_listening)


def data_folder(path: Path) -> Path:
    """Where the data goes. nsqd's files lie loose in its data path, by default where it was
    started; Penstock's directory is its own, and a folder there if other things lie there."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except OSError:
        # missing, or not for us: opening it says what is wrong
        return path
    # a damaged data directory must not be taken for a foreign one
    ours = names & {layout.STATE, layout.TOPICS}
    return path / FOLDER if others_in(names) and not ours else path


def nsqds_data(folder: Path) -> list[str]:
    """Names of files that nsqd left in a directory."""
    return sorted(file.name for shape in _NSQDS_FILES for file in folder.glob(shape))


def version(program: str = "nsqd") -> str:
    """nsqd's shape, for what parses `nsqd vX.Y.Z (`; whose it is stands behind."""
    python = platform.python_version()
    return f"{program} v{NSQD_VERSION} (built w/Penstock {__version__}, Python {python})"


def node_id(host: str) -> int:
    """nsqd's default for --node-id, which its second start-up line shows."""
    return crc32(md5(host.encode(), usedforsecurity=False).digest()) % limits.NODE_ID_END


def usage() -> str:
    lines = ["Usage of penstock nsqd (nsqd 1.3's flags; -x, --x, --x=value and --x value):"]
    for name, flag in FLAGS.items():
        lines.append(f"  --{name:<36} {flag.usage}{' [no effect]' if flag.without else ''}")
    lines += ["", "Penstock's own settings (see docs/configuration.md):"]
    named = {flag.setting for flag in FLAGS.values()}
    own = [setting for setting in SETTINGS.values() if setting.key not in named]
    lines += [f"  {setting.flag:<38} {setting.doc}" for setting in own]
    return "\n".join(lines)


def read(values: Mapping[str, list[str]], rest: Sequence[str]) -> Asked:
    """Settings and what to tell about the rest: flags over the file over nsqd's defaults."""
    notes = [f"{rest[0]!r} is no flag; it and what follows was not read: {rest}"] if rest else []
    given: dict[str, object] = {}
    prefix, node = "[nsqd] ", node_id(socket.gethostname())
    sources = [_of_flags(values)]
    if file := values.get("config", [""])[-1]:
        sources.insert(0, _of_file(Path(file), notes))
    for name, value, origin in (one for source in sources for one in source):
        flag = FLAGS.get(name)
        if name == "log-prefix":
            prefix = str(value)
        elif flag is not None and flag.without:
            notes.append(f"{origin} has no effect: {flag.without}")
            if name == "node-id":
                node = _node(value, origin)
        elif (setting := _setting_of(name)) is not None:
            taken = _as_nsqd_means(setting, value)
            if taken is not None:
                read_value(setting, taken, origin)
                given[setting.key] = taken
    loaded = load(environment=os.environ, flags=given, base=NSQD_DEFAULTS)
    return Asked(loaded.settings, prefix, node, notes)


def _node(given: object, origin: str) -> int:
    try:
        return int(str(FLAGS["node-id"].kind.parse(given)))
    except ValueError as error:
        raise ConfigError(f"bad value for {origin}: {error}.") from error


def _check(values: Mapping[str, list[str]]) -> None:
    """A value that is no number, no duration and so on is a mistake in the command line to Go;
    what is wrong with a text comes out later."""
    for name, given in values.items():
        setting = _setting_of(name)
        if setting is not None and (setting.kind in _TEXTS or setting.key in _TEXTS_BY_NAME):
            continue
        kind = setting.kind if setting is not None else FLAGS[name].kind
        for value in given:
            try:
                if (meant := _as_nsqd_means(setting, value)) is not None:
                    kind.parse(meant)
            except ValueError as error:
                raise ConfigError(f'invalid value "{value}" for flag -{name}: {error}') from error


def _of_flags(values: Mapping[str, list[str]]) -> Iterator[tuple[str, object, str]]:
    for name, given in values.items():
        setting = _setting_of(name)
        several = setting is not None and setting.kind.several
        yield name, given if several else given[-1], f"flag --{name}"


def _of_file(file: Path, notes: list[str]) -> Iterator[tuple[str, object, str]]:
    names = {flag.file_key or name.replace("-", "_"): name for name, flag in FLAGS.items()}
    names |= {setting.key: name for name, setting in _OWN.items() if name not in FLAGS}
    for key, value in read_file(file).items():
        name = names.get(key) or key.replace("_", "-")
        setting = _setting_of(name)
        if setting is not None and setting.kind in _DURATIONS and str(value).isdecimal():
            yield name, f"{value}ms", f"{key} in {file}"  # nsqd's files have bare milliseconds
        elif name in FLAGS or name in _OWN:
            yield name, value, f"{key} in {file}"
        else:
            # nsqd passes over keys that it does not know, so its users' files may have some
            notes.append(f"{key} in {file} is not a setting of nsqd 1.3 and was not read")


def _as_nsqd_means(setting: Setting | None, value: object) -> object:
    """A value as Penstock writes it; None where nsqd takes it for nothing said."""
    if setting is None:
        return value
    if setting.kind in _ADDRESSES and isinstance(value, str):
        # to Go that is every interface, of IPv6 too
        return value.removeprefix("0.0.0.0")  # noqa: S104  only taken away
    if value == "ssl3.0":
        return "tls1.0"  # no TLS library speaks SSL 3 any more; the oldest there is
    return None if value == "" and setting.key in {"data_path", "tls_min_version"} else value


def _setting_of(name: str) -> Setting | None:
    flag = FLAGS.get(name)
    if flag is not None:
        return SETTINGS[flag.setting] if flag.setting else None
    return _OWN.get(name)


def _is_boolean(name: str) -> bool | None:
    """Whether it takes a value only behind `=`; None if there is no such flag."""
    setting = _setting_of(name)
    if setting is None and name not in FLAGS:
        return None
    return (setting.kind if setting is not None else FLAGS[name].kind) in (FLAG, TLS_REQUIRED)
