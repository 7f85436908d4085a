"""`penstock config`: its text is a configuration file, its JSON has origins, and it explains."""

import json
from pathlib import Path

import pytest

from penstock.cli import ExitCode, main
from penstock.config import SETTINGS, load


def test_the_text_is_a_configuration_file_that_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DURABILITY", "written")
    given = tmp_path / "given.toml"
    given.write_text(
        'sync_interval = "1s"\nauth_http_addresses = ["a:1", "http://b/"]\nverify = true\n'
        '[topics."a.b"]\npartitions = 3\n'
    )
    arguments = ["--config", str(given), "--no-snappy", "--lookupd-tcp-addresses", "x:1,y:2"]
    assert main(["config", *arguments]) == ExitCode.OK
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    lines = printed.read_text().splitlines()
    assert f'sync_interval = "1s"                             # file {given}' in lines
    assert (
        'durability = "written"                           # environment PENSTOCK_DURABILITY'
        in lines
    )
    assert "snappy = false                                   # flag --snappy" in lines
    assert (
        'lookupd_tcp_addresses = ["x:1", "y:2"]           # flag --lookupd-tcp-addresses' in lines
    )
    assert "verify = true                                    # file " + str(given) in lines
    assert "partitions = 3                                   # file " + str(given) in lines

    flags = {"snappy": False, "lookupd_tcp_addresses": "x:1,y:2", "durability": "written"}
    assert load(file=printed).settings == load(file=given, flags=flags).settings


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[topics.a]\ndurability = 'memory'\n")
    assert main(["config", "--json", "--config", str(file), "--sync-threads", "3"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert said["sync_threads"] == {"value": 3, "source": "flag", "detail": "--sync-threads"}
    assert said["tcp_address"]["value"] == "127.0.0.1:4150"
    assert said["snappy"] == {"value": True, "source": "default", "detail": ""}
    assert said["max_req_timeout"]["value"] == "none"
    assert said["topics"] == {
        "a": {"durability": {"value": "memory", "source": "file", "detail": str(file)}}
    }
    assert said.keys() == SETTINGS.keys() | {"topics"}


@pytest.mark.parametrize("name", ["sync_interval", "--sync-interval", "PENSTOCK_SYNC_INTERVAL"])
def test_explains_a_setting_by_any_of_its_names(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", f"--explain={name}"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert said.startswith("sync_interval: At durability written")
    assert "default  2s (nsqd's sync-timeout)" in said


def test_explaining_what_does_not_exist_names_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["config", "--explain", "durabilty"]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "penstock config: there is no setting 'durabilty'; did you mean 'durability'?\n"
    )


def test_a_bad_flag_is_told_like_any_bad_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--sync-interval", "2"]) == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "penstock config: bad value for sync_interval in flag --sync-interval:"
        " '2' is not a duration (write 250ms, 60s or 1m30s).\n"
    )
