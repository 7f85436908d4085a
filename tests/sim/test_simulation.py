"""Whole lives of a broker, simulated: clock, loop, threads, disk, network and clients, by seed.

What is real is what a broker is made of: NSQ connections, host, core and file engine. Each seed
draws topics and their durability, sizes, clients with their habits, and a nemesis (`nemesis.py`);
the history (`history.py`) judges everything that clients see. In the end all heals, and nothing
that was answered may be missing.

`make sim` runs many seeds (SIM_SEEDS=n). When one fails, its message ends with what runs it again:

    PENSTOCK_SIM_SEED=n python -m pytest tests/sim -k promises_are_kept

PENSTOCK_SIM_FIRST=n begins with another seed than 0: seeds nobody has run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.nemesis import PROFILES
from tests.sim.simulation import Simulation

SHORT = 3 * len(PROFILES)
ROOT = Path(__file__).parents[2]


def chosen() -> list[int]:
    """The seeds of this run."""
    one = os.environ.get("PENSTOCK_SIM_SEED")
    if one is not None:
        return [int(one)]
    first = int(os.environ.get("PENSTOCK_SIM_FIRST", "0"))
    return [*range(first, first + int(os.environ.get("PENSTOCK_SIM_SEEDS", SHORT)))]


@pytest.mark.parametrize("seed", chosen())
def test_promises_are_kept(seed: int) -> None:
    simulation = Simulation(seed)
    print(f"seed {seed}, {simulation.profile}")
    simulation.run()
    history = simulation.history
    print(
        f"{simulation.boots} starts, {history.acks} messages answered, {history.refusals} refused,"
        f" {history.deliveries} deliveries, {history.finishes} finished"
    )
    assert history.acks
    assert history.finishes


@pytest.mark.parametrize("seed", [PROFILES.index("everything"), PROFILES.index("flips")])
def test_a_seed_is_the_same_run_to_the_byte(seed: int) -> None:
    program = (
        "from tests.sim.simulation import Simulation\n"
        f"simulation = Simulation({seed})\n"
        "simulation.run()\n"
        "print(simulation.digest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 65
