"""What users can see is documented, and what is documented exists."""

import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from penstock.cli import VERBS, ExitCode
from penstock.config import SETTINGS, Settings
from penstock.doors.http.exposition import METRICS
from penstock.doors.http.routes import routes
from penstock.protocol.nsq import FAILED, SETTLING
from penstock.sdk.options import ClientOptions, ConsumerOptions, ProducerOptions
from tests.tidy.documented import CONFIGURATION, documented
from tests.tidy.tree import ROOT, SOURCE, modules

NSQ = ROOT / "docs" / "nsq.md"
HTTP = ROOT / "docs" / "http.md"
NAMED = ("TOPIC", "CHANNEL")  # parameters that name something
SDK = SOURCE / "sdk"
SDK_PAGE = ROOT / "docs" / "sdk.md"
CLIENT_SIDE = SOURCE / "protocol" / "nsq_client.py"  # its errors are the SDK's
CLI = ROOT / "docs" / "cli.md"
OPERATIONS = ROOT / "docs" / "operations.md"
DASHBOARD = ROOT / "contrib" / "grafana" / "penstock.json"

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


@pytest.mark.parametrize("key", sorted(SETTINGS))
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


def test_http_routes_and_codes_are_documented_and_exist() -> None:
    text = HTTP.read_text("utf-8")
    folders = {path.rpartition("/")[0] for path in re.findall(r"`(?:POST|GET) (/\w+/\w+)`", text)}
    named = set(re.findall(r"(?:GET|POST|PUT) (/[\w/]+)", text))
    named |= {f"{at}/{act}" for at in folders for act in re.findall(r"`(\w+)`", text)}
    table = routes(Settings())
    paths = {path.decode() for path in (*table.exact, *table.below)}
    unknown = [path for path in paths if path not in named and not path.startswith("/debug/pprof/")]
    assert unknown == []
    codes = {
        code
        for path in (SOURCE / "doors" / "http", SOURCE / "http")
        for code in re.findall(
            r"(?:Refused\([0-9]+, |_NOT_KEPT = \([0-9]+, )\"([A-Z_]+)\"",
            "".join(module.read_text("utf-8") for module in path.glob("*.py")),
        )
    }
    codes |= {"MSG_TOO_BIG", "BODY_TOO_BIG", "INVALID_VALUE"}  # of routes
    codes |= {f"{what}_ARG_{name}" for what in ("MISSING", "INVALID") for name in NAMED}
    shown = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+|EXITING)`", text))
    assert shown == codes


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


def test_metrics_are_documented_as_they_are() -> None:
    text = OPERATIONS.read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*) \|$", text, re.MULTILINE)
    assert rows == [tuple(metric) for metric in METRICS]
    assert metrics_in(text) <= {metric.name for metric in METRICS}


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    board = json.loads(DASHBOARD.read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    shown_there = metrics_in("\n".join(asked))
    assert len(asked) > len(board["panels"]) // 2
    assert shown_there <= {metric.name for metric in METRICS}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for variable in board["templating"]["list"]:
        assert metrics_in(str(variable)) <= {metric.name for metric in METRICS}


def metrics_in(text: str) -> set[str]:
    """As a query names them: of a histogram by its parts."""
    histograms = "|".join(metric.name for metric in METRICS if metric.kind == "histogram")
    text = re.sub(rf"({histograms})_(bucket|sum|count)\b", r"\1", text)
    return set(re.findall(r"\b(?:penstock|process)_[a-z_]+\b", text))


def test_the_sdks_settings_are_documented_and_exist() -> None:
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", SDK_PAGE.read_text("utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"[a-z_]+", row)]
    existing = [
        field.name
        for options in (ClientOptions, ProducerOptions, ConsumerOptions)
        for field in fields(options)
    ]
    assert sorted(named) == sorted(existing)


def test_the_sdks_exceptions_are_documented_and_exist() -> None:
    named = set(re.findall(r"^\| `([A-Z]\w+)` \|", SDK_PAGE.read_text("utf-8"), re.MULTILINE))
    raised = {
        name
        for name in penstock.__all__
        if isinstance(getattr(penstock, name), type)
        and issubclass(getattr(penstock, name), Exception)
    }
    assert named | {"PenstockError", "OperatingError"} == raised


def test_every_page_is_found_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in ROOT.glob("docs/*.md") if f"docs/{page.name}" not in text] == []


def test_every_dependency_has_its_decision() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.match(r"[\w-]+", wanted)[0] for wanted in project["dependencies"]}  # type: ignore[index]
    titles = [path.read_text("utf-8").partition("\n")[0] for path in ROOT.glob("docs/adr/*.md")]
    assert [name for name in needed if not any(name in title for title in titles)] == []
