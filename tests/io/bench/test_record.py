"""A results line: the median of the runs, the targets, what it ran on, and no machine's name."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from penstock.bench.catalogue import BENCHES
from penstock.bench.record import Record, append

BENCH = BENCHES[0]  # to reach: broker_cpu_us_per_message at most 1.2


def record_of(*figures: float) -> Record:
    return Record(BENCH, [{"broker_cpu_us_per_message": figure} for figure in figures])


def test_the_median_counts() -> None:
    assert record_of(9.0, 1.0, 1.1).median() == {"broker_cpu_us_per_message": 1.1}
    assert not record_of(9.0, 1.0, 1.1).missed()
    assert record_of(9.0, 1.3, 1.1).missed()


def test_a_metric_that_only_some_runs_have_is_the_median_of_those() -> None:
    record = Record(BENCH, [{"a": 1.0}, {"a": 3.0, "b": 2.0}])
    assert record.median() == {"a": 2.0, "b": 2.0}


def test_a_target_that_was_not_measured_is_neither_met_nor_missed() -> None:
    record = Record(BENCH, [{"messages_per_s": 1.0}])
    assert not record.missed()
    (target,) = json.loads(record.to_json())["targets"]
    assert target["measured"] is None
    assert target["met"] is None


def test_lines_are_added_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "results" / "first.jsonl"
    append(file, [record_of(1.0)])
    append(file, [record_of(2.0), record_of(3.0)])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["median"]["broker_cpu_us_per_message"] for line in lines] == [1.0, 2.0, 3.0]
    assert {line["bench"] for line in lines} == {BENCH.name}
    assert [line["targets"][0]["met"] for line in lines] == [True, False, False]


def test_a_line_names_no_machine_and_no_path() -> None:
    line = record_of(1.0).to_json()
    assert socket.gethostname() not in json.loads(line).values()
    assert str(Path.home()) not in line
    assert str(Path.cwd()) not in line
