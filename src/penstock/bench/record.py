"""What a bench measured, as one JSON line: several runs, their median, the targets, and on what.

A line says which revision, Python and CPU it was, and nothing that names a machine or a person, so
results files can be committed and compared.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from penstock import __version__
from penstock.bench.catalogue import Bench, Target
from penstock.bench.ground import Metrics


@dataclass
class Record:
    """The runs of one bench."""

    bench: Bench
    runs: list[Metrics] = field(default_factory=list)

    def median(self) -> Metrics:
        """Each metric's median over the runs that have it."""
        names = dict.fromkeys(name for run in self.runs for name in run)
        return {
            name: statistics.median(run[name] for run in self.runs if name in run) for name in names
        }

    def judged(self) -> list[tuple[Target, float | None]]:
        """Each target with what was measured, if it was."""
        median = self.median()
        return [(target, median.get(target.metric)) for target in self.bench.targets]

    def missed(self) -> bool:
        """Whether a target that was measured is not met."""
        return any(value is not None and not target.met(value) for target, value in self.judged())

    def to_json(self) -> str:
        """The line for a results file."""
        return json.dumps(
            {
                "bench": self.bench.name,
                **machine(),
                "params": dict(self.bench.params),
                "median": self.median(),
                "targets": [_as_json(target, value) for target, value in self.judged()],
                "runs": self.runs,
            }
        )


def append(file: Path, records: Sequence[Record]) -> None:
    """Add the records to a results file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.writelines(record.to_json() + "\n" for record in records)


def _as_json(target: Target, value: float | None) -> dict[str, str | float | bool | None]:
    return {
        "metric": target.metric,
        "at_least" if target.at_least else "at_most": target.bound,
        "measured": value,
        "met": None if value is None else target.met(value),
    }


@cache
def machine() -> dict[str, str | int]:
    """What it ran on, as far as it explains a figure."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "penstock": __version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
    }


def _revision() -> str:
    """The source tree's revision, `+` behind it when files differ; empty when there is no tree."""
    here = Path(__file__).parent
    argv = [
        "git",
        "--no-optional-locks",
        "-C",
        str(here),
        "describe",
        "--always",
        "--dirty=+",
        "--abbrev=10",
    ]
    try:
        shown = subprocess.run(  # noqa: S603 - our own arguments
            argv, capture_output=True, text=True, check=True
        )
        return shown.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # installed without its source, or without git: the version stands beside it


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()
