"""Every program in docs/sdk.md runs as it is, against a real broker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import Broker

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"
PROGRAMS = re.findall(
    r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_program_runs(shared_broker: Broker, number: int) -> None:
    program = PROGRAMS[number].replace("127.0.0.1:4150", f"127.0.0.1:{shared_broker.port}")
    assert str(shared_broker.port) in program
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", program],
        check=False,  # the complaint is worth more than the exit code
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
