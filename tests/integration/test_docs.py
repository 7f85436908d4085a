"""Every program and file that README.md and docs/ show works as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.doors.nsq.tokens import TokenFile
from tests.support.broker import Broker

ROOT = Path(__file__).parents[2]

# Functions of a test suite: a program once they are called.
CALL_ALL = """
import asyncio, inspect
for name, function in list(globals().items()):
    if name.startswith("test_"):
        asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
"""


def shown(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


PROGRAMS = [
    pytest.param(program, id=f"{page}-{number}")
    for page in ("README.md", "docs/sdk.md")
    for number, program in enumerate(shown(page, "python"))
]


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        check=False,  # the complaint is worth more than the exit code
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(shared_broker: Broker, program: str) -> None:
    here = program.replace("127.0.0.1:4150", f"127.0.0.1:{shared_broker.port}")
    assert here != program
    run(here)


@pytest.mark.parametrize("number", range(len(shown("docs/testing.md", "python"))))
def test_a_test_with_the_test_kit_passes(number: int) -> None:
    run(shown("docs/testing.md", "python")[number] + CALL_ALL)


def test_the_token_file_is_one(tmp_path: Path) -> None:
    [text] = shown("docs/auth.md", "toml")
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    assert TokenFile(path, SystemClock()).find("the shop's") is not None
