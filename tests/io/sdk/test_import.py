"""`import penstock` loads nothing; what it names is there when asked for."""

import subprocess
import sys

import pytest

import penstock


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, penstock; "
        "print([name for name in sys.modules if name == 'asyncio' or name.startswith('penstock.')])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "[]"


def test_every_name_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name).__name__ == name
    assert set(penstock.__all__) <= set(dir(penstock))
    with pytest.raises(AttributeError, match="Cleint"):
        penstock.Cleint  # noqa: B018 - the lookup is the test
