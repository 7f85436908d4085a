"""What users can see is documented, and what is documented exists."""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.cli import VERBS, ExitCode
from penstock.config import SETTINGS
from penstock.protocol.nsq import FAILED, SETTLING
from tests.tidy.documented import CONFIGURATION, documented
from tests.tidy.tree import ROOT, SOURCE, modules

NSQ = ROOT / "docs" / "nsq.md"
SDK = SOURCE / "sdk"
CLIENT_SIDE = SOURCE / "protocol" / "nsq_client.py"  # its errors are the SDK's
CLI = ROOT / "docs" / "cli.md"

# Settings that are read and checked, whose doors come later; their documentation says so.
NOT_USED_YET = {
    "http_address",
    "https_address",
    "broadcast_address",
    "broadcast_tcp_port",
    "broadcast_http_port",
    "lookupd_tcp_addresses",
}


# Settings that are read through a property of Settings.
READ_AS = {"data_path": "storage_url", "storage": "storage_url"}


def test_settings_are_documented_as_they_are() -> None:
    text = CONFIGURATION.read_text("utf-8")
    assert documented(text) == text, "run `make docs`"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    text = CONFIGURATION.read_text("utf-8")
    named = set(re.findall(r"^\| `([a-z0-9_]+)` \|", text, re.MULTILINE))
    named |= {name.lower() for name in re.findall(r"\bPENSTOCK_([A-Z_]+)\b", text)} - {"config"}
    assert named == SETTINGS.keys() | (named & {"explore", "kills"})


@pytest.mark.parametrize("key", sorted(SETTINGS.keys() - NOT_USED_YET))
def test_a_setting_does_something(key: str) -> None:
    field = SETTINGS[key].field
    used = re.compile(rf"\.{READ_AS.get(key, field)}\b")
    config = SOURCE / "config"
    readers = [path for path in modules() if config not in path.parents and path.name != "nsqd.py"]
    assert any(used.search(path.read_text("utf-8")) for path in readers), (
        f"nothing reads the setting {key}"
    )


def test_error_codes_are_documented_and_exist() -> None:
    answered = [path for path in modules() if path != CLIENT_SIDE and SDK not in path.parents]
    in_source = codes_in(answered)
    text = NSQ.read_text("utf-8")
    rows = dict(re.findall(r"^\| `(E_[A-Z_]+)` \| (yes|no) \| \w", text, re.MULTILINE))
    assert in_source - rows.keys() == set(), "not in the table of docs/nsq.md"
    assert rows.keys() - in_source == set(), "documented, but nothing answers it"
    assert set(re.findall(r"\bE_[A-Z_]+\b", text)) == rows.keys()
    not_fatal = {FAILED[verb] for verb in SETTLING}
    assert {code for code, fatal in rows.items() if fatal == "no"} == not_fatal


def test_an_error_code_can_be_searched_for() -> None:
    for path in modules():
        assert not re.search(r"E_\{|\}_FAILED", path.read_text("utf-8")), (
            f"{path} puts one together"
        )


def codes_in(paths: Iterable[Path]) -> set[str]:
    return {
        code
        for path in paths
        for code in re.findall(r"[\"'](E_[A-Z_]+)\b", path.read_text("utf-8"))
    }


def test_verbs_exist_and_are_documented() -> None:
    text = CLI.read_text("utf-8")
    for name, verb in VERBS.items():
        assert find_spec(verb.module), f"VERBS names {verb.module}, which does not exist"
        assert f"## penstock {name}" in text, f"docs/cli.md has no section on {name}"
    documented_verbs = set(re.findall(r"^## penstock (\w+)", text, re.MULTILINE))
    assert documented_verbs == VERBS.keys()


def test_exit_codes_are_documented() -> None:
    text = CLI.read_text("utf-8")
    assert set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE)) == {
        str(code.value) for code in ExitCode
    }
