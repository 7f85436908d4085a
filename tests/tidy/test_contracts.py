"""What may import what (the contracts in pyproject.toml), and no module that nobody uses."""

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from penstock.cli import VERBS
from tests.tidy.tree import ROOT

# Modules that users import, not we.
FOR_USERS = ("penstock.testing", "penstock.sdk", "penstock.spark", "penstock.__main__")

# Modules whose users come with later doors, and why they are here before them.
BEFORE_THEIR_USERS = {
    "penstock.protocol.attributes": "a column of version 1 of the block format",
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("penstock", cache_dir=None)


def test_import_contracts_are_kept() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_is_used(graph: grimp.ImportGraph) -> None:
    entries = {verb.module for verb in VERBS.values()}
    dead = {
        module
        for module in graph.modules
        if not graph.find_children(module)
        and not graph.find_modules_that_directly_import(module)
        and module not in entries
        and not module.startswith(FOR_USERS)
    }
    assert dead == BEFORE_THEIR_USERS.keys()
