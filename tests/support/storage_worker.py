"""A process that works on a data directory and says on stdout what is safe, until it is killed.

`python -m tests.support.storage_worker DIRECTORY`; a failpoint in the environment says where it
ends. Its messages say their own seq, so whoever opens the directory can tell what must be there.

    log N       blocks below seq N were written
    synced N    and are synced
    together N  blocks below seq N of each of several logs were committed together
    journal N   batches below N were written
    state N     the value N was written
"""

import os
import sys

from penstock.protocol.journal import FINISHED, Batch
from penstock.storage.file import state as state_module
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileLog, FileOptions
from tests.support.blocks import block

OPTIONS = FileOptions(
    segment_bytes_max=2000,
    index_step_bytes=200,
    checkpoint_bytes=500,
    files_open_max=2,
    reserve_bytes=1 << 16,
    redo_bytes=1500,
)
ROUNDS = 40
TOGETHER = ("a", "b", "c")


def say(what: str, number: int) -> None:
    os.write(1, f"{what} {number}\n".encode())  # nothing stays in a buffer of the process


def work(path: str) -> None:
    state_module.GARBAGE_BYTES_MIN = 500
    engine = FileEngine(path, OPTIONS)
    log = engine.log("t", 0, 0)
    group = [engine.log(topic, 0, 0) for topic in TOGETHER]
    journal = engine.journal("t", "c")
    batches = sum([1 for _ in journal.recover()], 0)
    number = max([batches, *[int(batch.records[0][2]) + 1 for batch in journal.history()]])
    for round_number in range(ROUNDS):
        number += 1
        log = log_round(engine, log, round_number)
        group_round(engine, group, round_number)
        low = number
        journal.append(Batch([(FINISHED, 1, low, low + 1, 1, low, 0)], {}, round_number % 9 == 8))
        journal.write()
        say("journal", number)
        engine.state.put("number", b"%d" % number)
        engine.state.put(f"key/{number % 5}", b"x" * 50)
        engine.state.write()
        say("state", number)
        if round_number % 4 == 3:
            journal.sync()
            engine.state.sync()
    engine.close()
    say("closed", 1)


def log_round(engine: FileEngine, log: FileLog, round_number: int) -> FileLog:
    for _ in range(3):
        base = log.bounds().end
        log.append(block(base, [b"%d" % (base + n) for n in range(1 + round_number % 3)]))
    log.write()
    say("log", log.bounds().end)
    if round_number % 3 == 2:
        say("synced", log.sync())
    if round_number % 10 == 9:
        log.drop_below(log.bounds().end - 100)
    if round_number % 25 == 24:
        log.close()
        return engine.log("t", 0, 0)
    return log


def group_round(engine: FileEngine, group: list[FileLog], round_number: int) -> None:
    for log in group:
        base = log.bounds().end
        log.append(block(base, [b"%d" % base]))
    ends = engine.commit(group)
    # after a kill between two writes one log may be ahead of another
    say("together", min([end for end in ends if isinstance(end, int)]))
    chore = engine.chore()
    if chore is not None:
        chore()
    if round_number % 10 == 5:
        gone = engine.log("gone", 0, 0)
        others = [gone, *group[:1]]
        for log in others:
            log.append(block(log.bounds().end))
        assert all(isinstance(end, int) for end in engine.commit(others))
        gone.close()
        engine.drop_topic("gone")


if __name__ == "__main__":
    work(sys.argv[1])
