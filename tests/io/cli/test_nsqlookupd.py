"""nsqlookupd's command line and file: every flag, every spelling, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli import ExitCode
from penstock.cli.goflags import parse
from penstock.cli.nsqlookupd import FLAGS, is_boolean, main, options, read
from penstock.config import Address
from penstock.errors import ConfigError
from penstock.lookup.registry import RegistryOptions
from penstock.lookup.server import NameServerOptions

Captured = pytest.CaptureFixture[str]


def asked(*argv: str) -> tuple[NameServerOptions, list[str]]:
    notes: list[str] = []
    return options(read(parse(argv, is_boolean).values, notes)), notes


def test_every_flag_of_nsqlookupd_1_3() -> None:
    assert " ".join(FLAGS) == (
        "broadcast-address config http-address inactive-producer-timeout log-level log-prefix"
        " tcp-address tombstone-lifetime verbose version"
    )


def test_defaults_are_nsqlookupds() -> None:
    assert asked()[0] == NameServerOptions(
        Address("", 4160), Address("", 4161), "", RegistryOptions(300_000, 45_000)
    )


def test_go_s_spellings() -> None:
    found, notes = asked(
        *("-tcp-address=127.0.0.1:1", "--http-address", "0.0.0.0:2", "-verbose"),
        *("--broadcast-address=me", "-inactive-producer-timeout", "1m0s"),
        *("-tombstone-lifetime=1.5s", "-log-level=WARN"),
    )
    assert notes == []
    assert found == NameServerOptions(
        Address("127.0.0.1", 1), Address("", 2), "me", RegistryOptions(60_000, 1_500)
    )


def test_the_file_is_below_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "nsqlookupd.cfg"
    file.write_text(
        'tcp_address = "127.0.0.1:1"\nhttp_address = "127.0.0.1:2"\n'
        'inactive_producer_timeout = "10s"\ntombstone_lifetime = 2000\nunknown = 5\n'
    )
    found, notes = asked(f"--config={file}", "-tcp-address=127.0.0.1:9")
    assert found == NameServerOptions(
        Address("127.0.0.1", 9), Address("127.0.0.1", 2), "", RegistryOptions(10_000, 2_000)
    )
    assert notes == [f"unknown in {file} is not a setting of nsqlookupd 1.3 and was not read"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--nope"], "flag provided but not defined: -nope"),
        (["-tombstone-lifetime=soon"], 'invalid value "soon" for flag -tombstone-lifetime'),
        (["-tombstone-lifetime=5"], 'invalid value "5" for flag -tombstone-lifetime'),
        (["-verbose=maybe"], 'invalid value "maybe" for flag -verbose'),
        (["--tcp-address"], "flag needs an argument: -tcp-address"),
    ],
)
def test_a_wrong_command_line_is_2(argv: list[str], words: str, capsys: Captured) -> None:
    assert main(argv) == ExitCode.USAGE
    told = capsys.readouterr().err
    assert told.startswith(words)
    assert "Usage of penstock nsqlookupd" in told


@pytest.mark.parametrize("text", ["nowhere", "a:70000"])
def test_a_wrong_address_is_told_when_it_is_used(text: str) -> None:
    with pytest.raises(ConfigError, match="bad value for flag --tcp-address"):
        asked(f"--tcp-address={text}")


def test_version_and_help(capsys: Captured) -> None:
    assert main(["-version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("nsqlookupd v1.3.0 (built w/Penstock ")
    assert main(["--help"]) == ExitCode.OK
    assert "--inactive-producer-timeout" in capsys.readouterr().out
