"""`penstock bench`: lists, refuses what is wrong in one sentence, and prints what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench import catalogue
from penstock.bench.catalogue import BENCHES, Bench, at_most
from penstock.bench.ground import Ground, Metrics
from penstock.bench.wire import BenchError
from penstock.cli import ExitCode, main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def one_bench(monkeypatch: pytest.MonkeyPatch) -> list[Metrics]:
    """The catalogue is one bench that measures, in turn, what the test puts into the list."""
    figures: list[Metrics] = []

    def scenario(ground: Ground, *, messages: int) -> Metrics:
        assert ground.directory.is_dir()
        if not figures:
            raise BenchError(f"nothing came of {messages} messages")
        return figures.pop(0)

    bench = Bench("fake{messages}", "measures", scenario, {"messages": 5}, (at_most("a", 1),))
    monkeypatch.setattr(catalogue, "BENCHES", (bench,))
    return figures


def test_list_shows_every_bench_with_its_targets(capsys: Captured) -> None:
    assert main(["bench", "list"]) == ExitCode.OK
    shown = capsys.readouterr().out
    for bench in BENCHES:
        assert bench.name in shown
        assert bench.does in shown


def test_list_as_json_has_a_line_per_bench(capsys: Captured) -> None:
    assert main(["bench", "list", "--json"]) == ExitCode.OK
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["bench"] for line in lines] == [bench.name for bench in BENCHES]


def test_runs_are_repeated_and_their_median_printed(
    one_bench: list[Metrics], capsys: Captured, tmp_path: Path
) -> None:
    one_bench += [{"a": 0.5}, {"a": 0.9}, {"a": 7.0}]
    results = tmp_path / "results.jsonl"
    argv = ["bench", "run", "fake*", "--runs", "3", "--json", "--check"]
    assert main([*argv, "--record", str(results)]) == ExitCode.OK
    line = json.loads(capsys.readouterr().out)
    assert line["median"] == {"a": 0.9}
    assert [run["a"] for run in json.loads(results.read_text())["runs"]] == [0.5, 0.9, 7.0]


def test_a_missed_target_shows_and_fails_a_check(
    one_bench: list[Metrics], capsys: Captured
) -> None:
    one_bench += [{"a": 2.0}, {"a": 2.0}]
    assert main(["bench", "run"]) == ExitCode.OK
    assert "MISSED, ≤ 1" in capsys.readouterr().out
    assert main(["bench", "run", "--check"]) == ExitCode.ERROR


def test_a_run_that_fails_says_why_and_the_exit_code_tells(
    one_bench: list[Metrics], capsys: Captured
) -> None:
    assert not one_bench
    assert main(["bench", "run", "--set", "messages=7"]) == ExitCode.ERROR
    assert "fake7: nothing came of 7 messages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no_such_bench"], "no bench is called 'no_such_bench'"),
        (["--set", "messages"], "PARAM=VALUE"),
        (["--set", "color=red"], "no parameter 'color'"),
        (["--against", "localhost"], "HOST:PORT"),
        (["--dir", "/no/such/directory"], "is not a directory"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, capsys: Captured
) -> None:
    assert main(["bench", "run", *arguments]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
