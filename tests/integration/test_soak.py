"""Publish, consume and kill for a long time: nothing is lost, and memory, files and disk do not
grow.

`make soak` does it for an hour; `make test` for some seconds, which says little about growth and
much about whether the soak itself works. `PENSTOCK_SOAK_SECONDS` says how long, `PENSTOCK_SEED`
which lives the broker has.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.integration.test_kills import (
    PLANS,
    drain,
    look_for_more,
    take_from_new_topics,
)
from tests.support.broker import Broker
from tests.support.fixtures import StartBroker
from tests.support.ledger import Ledger
from tests.support.workload import Workload

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("PENSTOCK_SOAK_SECONDS", "6"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))
MIB = 1 << 20

# some 500 messages a second: without housekeeping an hour would take far more than this
PAUSE_SECONDS = 0.1
RESIDENT_BYTES_MAX = 200 * MIB
DISK_BYTES_MAX = 150 * MIB
FILES_MAX = 300

SETTINGS = """
segment_bytes_max = "256KiB"
segment_files_open_max = 64
disk_reserve_bytes = "1MiB"
block_cache_bytes = "8MiB"
retain_hours = 0

[topics.orders]
partitions = 2
durability = "synced"

[topics.events]
durability = "written"

[topics.hot]
durability = "memory"
"""


def disk_bytes(path: Path) -> int:
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(directory) / name).stat().st_blocks * 512
            except FileNotFoundError:
                pass  # freed meanwhile
    return total


class Largest:
    """The most that was seen of each."""

    def __init__(self) -> None:
        self.resident_bytes = self.disk_bytes = self.files = 0

    def look(self, broker: Broker) -> None:
        self.resident_bytes = max(self.resident_bytes, broker.resident_bytes())
        self.disk_bytes = max(self.disk_bytes, disk_bytes(broker.data_path))
        self.files = max(self.files, broker.open_files())
        assert self.resident_bytes < RESIDENT_BYTES_MAX, self
        assert self.disk_bytes < DISK_BYTES_MAX, self
        assert self.files < FILES_MAX, self

    def __repr__(self) -> str:
        return (
            f"at most {self.resident_bytes / MIB:.0f} MiB resident, "
            f"{self.disk_bytes / MIB:.0f} MiB on disk, {self.files} open files"
        )


def test_soak(tmp_path: Path, start_broker: StartBroker) -> None:
    print(f"reproduce with PENSTOCK_SEED={SEED} PENSTOCK_SOAK_SECONDS={SECONDS:.0f}")
    settings = tmp_path / "penstock.toml"
    settings.write_text(SETTINGS)
    broker = start_broker("--config", str(settings), verb="serve", verify=False, start=False)
    ledger = Ledger()
    rng = random.Random(SEED)
    largest = Largest()
    ends_at = time.monotonic() + SECONDS
    lives = 0
    while time.monotonic() < ends_at:
        lives += 1
        broker.start()
        work = Workload(
            ledger,
            PLANS,
            broker.port,
            str(lives),
            rng.getrandbits(32),
            pause_seconds=PAUSE_SECONDS,
        )
        work.start()
        # long lives too: what is freed is freed only after a while
        life_seconds = min(rng.choice([1, 2, 5, 40, 120]), SECONDS / 3)
        until = min(ends_at, time.monotonic() + life_seconds)
        while time.monotonic() < until and not ledger.wrongs:
            largest.look(broker)
            time.sleep(0.5)
        by_kill = rng.random() < 0.8
        if by_kill:
            broker.kill()
        else:
            assert broker.stop() == 0
        work.stopping.set()
        work.join()
        if by_kill:
            ledger.killed(work.alive_at, work.late_seconds())
        else:
            ledger.stopped()
        ledger.forget()
        assert not ledger.wrongs, "\n".join([f"in life {lives}:", *ledger.wrongs])
    broker.start()
    drain(broker, ledger)
    take_from_new_topics(broker, ledger)
    assert broker.stop() == 0
    ledger.stopped()
    broker.start()
    look_for_more(broker, ledger)
    largest.look(broker)
    assert not ledger.wrongs, "\n".join(ledger.wrongs)
    print(f"{lives} lives, {ledger.deliveries} deliveries; {largest}")
