"""nsqd's command line and file: what becomes of each flag, and what is told."""

import re
import socket
from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli import ExitCode, main
from penstock.cli.goflags import parse
from penstock.cli.nsqd import (
    FLAGS,
    NSQD_DEFAULTS,
    Asked,
    Flag,
    _is_boolean,
    data_folder,
    node_id,
    nsqds_data,
    read,
    version,
)
from penstock.config import SETTINGS, Address, Durability, LogLevel, TlsRequired, TlsVersion

# nsqd 1.3.0's flags as its --help lists them, and the three of its topology experiment.
NSQD_1_3 = """
auth-http-address auth-http-request-method broadcast-address broadcast-http-port
broadcast-tcp-port config data-path deflate e2e-processing-latency-percentile
e2e-processing-latency-window-time http-address http-client-connect-timeout
http-client-request-timeout https-address log-level log-prefix lookupd-tcp-address max-body-size
max-bytes-per-file max-channel-consumers max-deflate-level max-heartbeat-interval max-msg-size
max-msg-timeout max-output-buffer-size max-output-buffer-timeout max-rdy-count max-req-timeout
mem-queue-size min-output-buffer-timeout msg-timeout node-id output-buffer-timeout
queue-scan-selection-count queue-scan-worker-pool-max snappy statsd-address
statsd-exclude-ephemeral statsd-interval statsd-mem-stats statsd-prefix statsd-udp-packet-size
sync-every sync-timeout tcp-address tls-cert tls-client-auth-policy tls-key tls-min-version
tls-required tls-root-ca-file verbose version worker-id
enable-experiment topology-region topology-zone
"""


def asked(*argv: str) -> Asked:
    values, rest = parse(argv, _is_boolean)
    return read(values, rest)


def test_every_flag_of_nsqd_is_there() -> None:
    assert FLAGS.keys() == set(NSQD_1_3.split())


@pytest.mark.parametrize(("name", "flag"), FLAGS.items())
def test_a_flag_has_a_setting_or_a_reason_or_is_handled_here(name: str, flag: Flag) -> None:
    handled = name in {"config", "log-prefix", "version"}
    assert bool(flag.setting) + bool(flag.without) + handled == 1
    assert not flag.setting or flag.setting in SETTINGS


def test_nothing_given_is_nsqds_defaults() -> None:
    node = node_id(socket.gethostname())
    assert asked() == Asked(NSQD_DEFAULTS, "[nsqd] ", node, [])
    assert NSQD_DEFAULTS.tcp_address == Address("", 4150)
    assert NSQD_DEFAULTS.max_req_timeout_ms == 3_600_000


def test_flags_become_settings() -> None:
    settings, prefix, _, notes = asked(
        "-tcp-address=127.0.0.1:0",
        "--data-path",
        "/x",
        "--msg-timeout=1m30s",
        "-max-msg-size",
        "2048",
        "--deflate=false",
        "-snappy",
        "--lookupd-tcp-address=a:1",
        "--lookupd-tcp-address=b:2",
        "--auth-http-address=http://auth/",
        "--sync-every=1",
        "--sync-timeout=250ms",
        "--max-bytes-per-file=1000",
        "--log-level=DEBUG",
        "--log-prefix=[x] ",
        "--tls-min-version=ssl3.0",
        "--http-address=0.0.0.0:80",
        "--https-address=/run/https.sock",
    )
    assert settings.tcp_address == Address("127.0.0.1", 0)
    assert settings.http_address == Address("", 80)
    assert settings.https_address == Address("/run/https.sock", 0)
    assert settings.data_path == Path("/x")
    assert settings.msg_timeout_ms == 90_000
    assert settings.max_msg_size == 2048
    assert (settings.deflate, settings.snappy) == (False, True)
    assert settings.lookupd_tcp_addresses == (Address("a", 1), Address("b", 2))
    assert settings.auth_http_addresses == ("http://auth/",)
    assert (settings.sync_messages_max, settings.sync_interval_ms) == (1, 250)
    assert settings.segment_bytes_max == 1000
    assert settings.log_level is LogLevel.DEBUG
    assert settings.tls_min_version is TlsVersion.TLS_1_0
    assert (prefix, notes) == ("[x] ", [])


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert asked("--max-rdy-count=1", "--max-rdy-count=2").settings.max_rdy_count == 2


def test_penstocks_own_settings_are_flags_too() -> None:
    settings = asked("--durability=written", "-verify", "--storage", "memory://").settings
    assert settings.durability is Durability.WRITTEN
    assert settings.verify
    assert settings.storage == "memory://"


def test_what_has_no_counterpart_is_said_once_each() -> None:
    _, _, node, notes = asked("--statsd-address=x:1", "--worker-id", "--node-id=5")
    assert node == 5
    assert notes == [
        "flag --statsd-address has no effect: Penstock sends nothing to statsd",
        "flag --worker-id has no effect: nsqd ignores it too",
        "flag --node-id has no effect: Penstock's message ids are unique without it",
    ]


def test_what_go_does_not_read_is_said() -> None:
    _, _, _, notes = asked("--deflate", "false", "--data-path=/x")
    assert notes == [
        "'false' is no flag; it and what follows was not read: ['false', '--data-path=/x']"
    ]


def test_nsqds_file_with_flags_over_it(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(
        'tcp_address = "127.0.0.1:1"\nhttp_address = "127.0.0.1:2"\nmsg_timeout = "30s"\n'
        "max_msg_timeout = 1000\noutput_buffer_timeout = '300'\nid = 7\n"
        "nsqlookupd_tcp_addresses = ['a:1', 'b:2']\n"
        "tls_required = false\nsnappy = false\nlog_prefix = '[f] '\nstatsd_interval = '1s'\n"
        "some_thing = 1\nretain_hours = 3\ndata_path = ''\n"
    )
    settings, prefix, node, notes = asked(f"--config={file}", "--tcp-address=127.0.0.1:9")
    assert settings.tcp_address == Address("127.0.0.1", 9)
    assert settings.http_address == Address("127.0.0.1", 2)
    assert (settings.msg_timeout_ms, settings.max_msg_timeout_ms) == (30_000, 1_000)
    assert (settings.output_buffer_timeout_ms, node) == (300, 7)
    assert settings.lookupd_tcp_addresses == (Address("a", 1), Address("b", 2))
    assert settings.tls_required is TlsRequired.NO
    assert (settings.snappy, settings.retain_hours, prefix) == (False, 3, "[f] ")
    assert settings.data_path == NSQD_DEFAULTS.data_path
    assert notes == [
        f"id in {file} has no effect: Penstock's message ids are unique without it",
        f"statsd_interval in {file} has no effect: Penstock sends nothing to statsd",
        f"some_thing in {file} is not a setting of nsqd 1.3 and was not read",
    ]


def test_version_has_nsqds_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsqd", "--version"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert said == version() + "\n"
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/\S+ .*\)\n", said)
    assert __version__ in said


def test_the_node_id_is_nsqds_hash_of_the_host() -> None:
    assert 0 <= node_id("localhost") < 1024
    assert node_id("a") != node_id("b")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsqd", "-h"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert all(f"--{name} " in said for name in FLAGS)


def test_an_unknown_flag_is_gos_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nsqd", "--fooo"]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("flag provided but not defined: -fooo\nUsage of ")


@pytest.mark.parametrize("argument", ["--version=1", "-version=T", "--version=true"])
def test_gos_words_for_true(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nsqd", argument]) == ExitCode.OK
    assert capsys.readouterr().out == version() + "\n"


MISTYPED = (
    "--msg-timeout=60",
    "--msg-timeout=",
    "--max-rdy-count=x",
    "--max-msg-size=1.5",
    "--deflate=maybe",
    "--tls-required=tcp",
    "--tls-min-version=tls9",
    "--log-level=loud",
    "--node-id=1024",
    "--statsd-interval=60",
    "--worker-id=5",
    "--durability=fsync",
)


@pytest.mark.parametrize("argument", MISTYPED)
def test_a_value_that_is_none_is_gos_sentence_and_exit_code_2(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, value = argument.partition("=")
    assert main(["nsqd", argument]) == ExitCode.USAGE
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith(f'invalid value "{value}" for flag {name[1:]}: ')
    assert second.startswith("Usage of ")


def test_files_of_nsqd_are_told_from_others(tmp_path: Path) -> None:
    for name in ("nsqd.dat", "t.diskqueue.000001.dat", "t:c.diskqueue.meta.dat", "x.dat", "log"):
        (tmp_path / name).touch()
    assert nsqds_data(tmp_path) == [
        "nsqd.dat",
        "t.diskqueue.000001.dat",
        "t:c.diskqueue.meta.dat",
    ]
    assert nsqds_data(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("names", "beside"),
    [
        ((), False),
        (("lock", "lost+found"), False),
        (("format", "state", "topics", "notes"), False),
        (("state", "topics", "notes"), False),  # its format is lost: refused when it is opened
        (("nsqd.dat",), True),
        (("penstock",), True),
    ],
)
def test_where_the_data_goes(tmp_path: Path, names: tuple[str, ...], beside: bool) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert data_folder(tmp_path) == (tmp_path / "penstock" if beside else tmp_path)
    assert data_folder(tmp_path / "nowhere") == tmp_path / "nowhere"


UNFIT = {
    "--tcp-address=4150": (
        "bad value for tcp_address in flag --tcp-address: '4150' is not an address"
        " (write 127.0.0.1:4150 or [::1]:4150)."
    ),
    "--tls-required": "TLS is required of clients, but tls_cert and tls_key are not set.",
    "--config=/nowhere/x": (
        "cannot read the configuration file /nowhere/x: No such file or directory."
        " Nothing was started."
    ),
}


@pytest.mark.parametrize(("argument", "sentence"), UNFIT.items())
def test_what_keeps_it_from_starting_is_a_fatal_line_and_exit_code_1(
    argument: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nsqd", argument]) == ExitCode.ERROR
    line = capsys.readouterr().err
    assert re.fullmatch(rf"\[nsqd\] \S+ \S+ FATAL: {re.escape(sentence)}\n", line)
