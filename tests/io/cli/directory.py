"""A data directory made by the file engine alone, for tests of the verbs that read one."""

import json
from pathlib import Path

from penstock.protocol.block import DELAY_LANE
from penstock.protocol.journal import DELIVERED, FINISHED, SLEPT, Batch
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from tests.support.blocks import block

OPTIONS = FileOptions(reserve_bytes=0)
SECOND = 1_000_000_000


def document(
    channels: list[str], tags: dict[str, list[int]], *, durability: str = "synced"
) -> bytes:
    started = {
        name: {"created_ns": 1, "paused": name == "paused", "start": {"0/0": 0}}
        for name in channels
    }
    return json.dumps(
        {
            "partitions": 1,
            "durability": durability,
            "created_ns": SECOND,
            "tags": tags,
            "unclaimed": None,
            "paused": None,
            "channels": started,
        }
    ).encode()


def make(path: Path) -> Path:
    """Topic `orders`: four messages, one delayed; channel `billing` has finished the first, holds
    the second, and lets the third sleep. Topic `written` is of that durability."""
    engine = FileEngine(str(path), OPTIONS)
    tags = {"0/0": [7], "0/delay": [8]}
    engine.state.put("topic/orders", document(["billing", "paused"], tags))
    engine.state.put("topic/written", document([], {"0/0": [9]}, durability="written"))
    engine.state.write()
    engine.state.sync()
    log = engine.log("orders", 0, 0)
    log.append(block(0, [b"one", b"two\nlines"], at_ns=2 * SECOND))
    log.append(block(2, [b"\xff\x00", b"x" * 500], at_ns=3 * SECOND))
    log.write()
    delay = engine.log("orders", 0, DELAY_LANE)
    delay.append(block(0, [b"later"], at_ns=2 * SECOND, lane=DELAY_LANE, tag=8, wakes=[9 * SECOND]))
    delay.write()
    journal = engine.journal("orders", "billing")
    journal.append(
        Batch(
            [
                (DELIVERED, 7, 0, 3, 1, 4 * SECOND, 5),
                (FINISHED, 7, 0, 1, 0, 5 * SECOND, 5),
                (SLEPT, 7, 2, 3, 1, 5 * SECOND, 60 * SECOND),
            ],
            {5: "shop:1234"},
        )
    )
    journal.write()
    written = engine.log("written", 0, 0)
    written.append(block(0, [b"w"], tag=9))
    written.write()
    engine.close()
    return path
