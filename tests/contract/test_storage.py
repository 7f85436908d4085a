"""What every storage engine does: the port's contract, one suite for all of them.

A place is where an engine keeps its things: `place.open()` gives the engine, `place.keeps` says
whether what it kept is there again after it was closed. A new engine adds a class to PLACES.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from penstock.protocol.block import DELAY_LANE, Block
from penstock.protocol.journal import CURSOR, DELIVERED, FINISHED, Batch, Record
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.memory import MemoryEngine
from penstock.storage.port import Engine, Log
from tests.sim.disk import SimDisk
from tests.support.blocks import block, chain

PLENTY = 1 << 20


class MemoryPlace:
    """An engine that forgets."""

    keeps = False

    def __init__(self, path: Path) -> None:
        del path

    def open(self) -> Engine:
        return MemoryEngine()


class FilePlace:
    """Segments as they are by default: one holds all that a test writes."""

    keeps = True
    options = FileOptions(reserve_bytes=0)

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> Engine:
        return FileEngine(str(self.path), self.options)


class SmallFilesPlace(FilePlace):
    """Every bound at its smallest: segments and checkpoints of a few blocks, one open file."""

    options = FileOptions(
        segment_bytes_max=400,
        index_step_bytes=1,
        checkpoint_bytes=1,
        files_open_max=1,
        reserve_bytes=0,
    )


class SimulatedPlace:
    """The file engine on the simulation's disk, which must do what a real one does."""

    keeps = True

    def __init__(self, path: Path) -> None:
        del path
        self.disk = SimDisk(Random(1))

    def open(self) -> Engine:
        if self.disk.mounted is not None:
            self.disk.mounted.die()
        mount = self.disk.mount(lambda kind, path: None)
        return FileEngine("/data", SmallFilesPlace.options, disk=mount)


Place = MemoryPlace | FilePlace | SimulatedPlace
PLACES: dict[str, Callable[[Path], Place]] = {
    "memory": MemoryPlace,
    "file": FilePlace,
    "small files": SmallFilesPlace,
    "simulated disk": SimulatedPlace,
}


@pytest.fixture(params=[*PLACES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return PLACES[request.param](tmp_path / "data")


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    with closing(place.open()) as opened:
        yield opened


@pytest.fixture
def log(engine: Engine) -> Log:
    return engine.log("orders", 0, 0)


def put(log: Log, *blocks: Block) -> None:
    for one in blocks:
        log.append(one)
    log.write()


def everything(log: Log, bytes_max: int = PLENTY) -> list[Block]:
    """All blocks, as a reader goes through them."""
    found: list[Block] = []
    seq = log.bounds().start
    while taken := log.read(seq, bytes_max):
        found += taken
        seq = taken[-1].end
    return found


# --- a log ---------------------------------------------------------------------------------------


def test_a_new_log_is_empty(log: Log) -> None:
    bounds = log.bounds()
    assert (bounds.start, bounds.end, bounds.synced_end, bounds.bytes) == (0, 0, 0, 0)
    assert bounds.clean and not bounds.cut_bytes and not bounds.holes
    assert log.read(0, PLENTY) == []
    assert log.seek_time(0) == 0
    assert log.drop_below(10) == 0
    assert log.sync() == 0


def test_what_is_written_can_be_read(log: Log) -> None:
    first, second = block(0, [b"a", b"", b"ccc"]), block(3, [b"d"])
    put(log, first, second)
    assert log.read(0, PLENTY)[0] == first
    assert everything(log) == [first, second]


def test_several_logs_are_committed_at_once(engine: Engine) -> None:
    logs = [engine.log("orders", 0, 0), engine.log("orders", 1, 0), engine.log("bills", 0, 0)]
    for turn in range(3):
        for number, one in enumerate(logs):
            one.append(block(10 * turn, [b"%d" % number]))
        assert [*engine.commit(logs)] == [10 * turn + 1] * 3
    for number, one in enumerate(logs):
        assert one.bounds().synced_end == 21
        assert everything(one) == [block(base, [b"%d" % number]) for base in (0, 10, 20)]
        put(one, block(30))
        assert one.sync() == 31


def test_what_was_committed_at_once_is_there_again(place: Place) -> None:
    with closing(place.open()) as engine:
        logs = [engine.log("orders", number, 0) for number in range(4)]
        for one in logs:
            one.append(block(0, [b"a", b"b"]))
        engine.commit(logs)
        chore = engine.chore()
        if chore is not None:
            chore()
    if place.keeps:
        with closing(place.open()) as engine:
            for number in range(4):
                assert everything(engine.log("orders", number, 0)) == [block(0, [b"a", b"b"])]


def test_what_is_only_appended_cannot_be_read(log: Log) -> None:
    put(log, block(0))
    log.append(block(1))
    assert everything(log) == [block(0)]
    assert log.bounds().end == 2
    log.write()
    assert everything(log) == [block(0), block(1)]


@pytest.mark.parametrize(
    "made",
    [
        block(5, [b"x", b"y"], ids=[70, 3]),
        block(5, [b"x", b"y"], wakes=[1, -9], lane=DELAY_LANE),
        block(5, [b"x", b"y"], mark=(-5, 2**63)),
        block(5, [b"x", b"y"], attributes=[b"", b"\x01\x00\x00\x00\x00"]),
        block(5, [b"x", b"y", b"z"], seqs=[5, 9, 10**9]),
        block(5, [b"x"], seqs=[5], ids=[2**64 - 1], wakes=[8], mark=(1, 1), attributes=[b"\0"]),
        block(2**40, [b"\n" * 70_000, b"PSB1"]),
    ],
    ids=["ids", "wakes", "mark", "attributes", "seqs", "all columns", "large"],
)
def test_a_block_comes_back_with_its_columns(place: Place, made: Block) -> None:
    with closing(place.open()) as engine:
        log = engine.log("orders", 0, made.lane)
        put(log, made)
        (found,) = log.read(made.base, 1)
        assert found == made
        assert found.id_list() == made.id_list()
        assert (found.count, found.end, found.tag) == (made.count, made.end, made.tag)


def test_reading_begins_with_the_block_that_holds_the_seq(log: Log) -> None:
    blocks = chain(6, each=5)
    put(log, *blocks)
    for seq in range(30):
        assert log.read(seq, 1)[0] == blocks[seq // 5]
    assert log.read(30, PLENTY) == []


def test_a_read_gives_one_block_at_least_and_more_up_to_its_limit(log: Log) -> None:
    put(log, *chain(4, size=100_000))
    assert len(log.read(0, 1)) == 1
    assert 1 <= len(log.read(0, 250_000)) <= 2
    assert everything(log, 1) == everything(log) == chain(4, size=100_000)


def test_seqs_may_have_holes(log: Log) -> None:
    blocks = [block(3), block(4), block(10), block(12, [b"a", b"b"])]
    put(log, *blocks[:2])
    put(log, *blocks[2:])
    assert log.bounds().start == 3
    assert log.bounds().holes == ((5, 10), (11, 12))
    assert [log.read(seq, 1)[0] for seq in (0, 3, 4, 5, 9, 11, 13)] == [
        blocks[at] for at in (0, 0, 1, 2, 2, 3, 3)
    ]
    assert everything(log) == blocks


def test_seqs_and_append_times_only_grow(log: Log) -> None:
    put(log, block(10, at_ns=50))
    with pytest.raises(AssertionError):
        log.append(block(10, at_ns=60))
    with pytest.raises(AssertionError):
        log.append(block(11, at_ns=49))
    put(log, block(11, at_ns=50))


def test_sync_speaks_of_what_was_written_before_it(log: Log) -> None:
    put(log, *chain(3))
    assert log.bounds().synced_end == 0
    log.append(block(3))
    assert log.sync() == 3
    assert log.bounds().synced_end == 3
    log.write()
    assert log.sync() == 4
    assert log.sync() == 4


def test_bounds_say_when_the_last_block_was_appended(log: Log) -> None:
    put(log, block(0, at_ns=5), block(1, at_ns=9))
    assert log.bounds().appended_at_ns == 9


def test_bytes_grow_with_what_is_kept(log: Log) -> None:
    put(log, *chain(10, size=100))
    first = log.bounds().bytes
    assert first >= 1000
    put(log, *chain(10, base=10, size=100))
    assert log.bounds().bytes > first


def test_a_time_finds_the_first_block_appended_then_or_later(log: Log) -> None:
    blocks = [block(n * 3, [b"a"] * 3, at_ns=100 + 10 * (n // 2)) for n in range(10)]
    put(log, *blocks)
    for at_ns, seq in ((-1, 0), (100, 0), (101, 6), (110, 6), (140, 24), (141, 30)):
        assert log.seek_time(at_ns) == seq


def test_dropping_keeps_all_from_the_seq_on(log: Log) -> None:
    blocks = chain(40, each=2)
    put(log, *blocks)
    log.sync()
    kept = log.bounds().bytes
    droppable_end = log.bounds().droppable_end
    start = log.drop_below(41)
    assert start <= 40
    assert start <= droppable_end
    assert log.bounds().droppable_end <= droppable_end
    assert start == log.bounds().start
    assert log.bounds().bytes <= kept
    assert everything(log) == [one for one in blocks if one.base >= start]
    assert log.drop_below(0) == start
    assert log.read(0, 1)[0].base == start


def test_a_log_that_was_dropped_to_its_end_goes_on_there(log: Log) -> None:
    put(log, *chain(40))
    log.sync()
    droppable_end = log.bounds().droppable_end
    assert log.drop_below(40) == droppable_end == log.bounds().droppable_end
    assert log.bounds().end == 40
    assert log.bounds().start <= 40
    put(log, block(40))
    assert log.read(40, 1) == [block(40)]


def test_a_closed_log_can_be_opened_again(engine: Engine) -> None:
    log = engine.log("orders", 0, 0)
    put(log, *chain(5))
    log.append(chain(6)[5])
    log.close()
    again = engine.log("orders", 0, 0)
    bounds = again.bounds()
    assert (bounds.end, bounds.synced_end, bounds.clean) == (6, 6, True)
    assert everything(again) == chain(6)
    put(again, block(6))
    assert again.sync() == 7


def test_readers_see_a_prefix_while_a_log_grows(log: Log) -> None:
    blocks = chain(200, each=3)
    grown = Event()

    def grow() -> None:
        for at in range(0, 200, 4):
            put(log, *blocks[at : at + 4])
            grown.set()
            if at % 40 == 0:
                log.sync()

    writer = Thread(target=grow)
    writer.start()
    try:
        found = 0
        while found < 200:
            grown.clear()
            taken = log.read(found * 3, 1000)
            assert taken == blocks[found : found + len(taken)]
            found += len(taken)
            if not taken:
                assert grown.wait(60)
    finally:
        writer.join()
    assert everything(log) == blocks


# --- several logs --------------------------------------------------------------------------------


def test_topics_partitions_and_lanes_are_apart(engine: Engine) -> None:
    keys = [("a", 0, 0), ("a", 1, 0), ("a", 0, 1), ("a", 0, -10), ("a", 0, DELAY_LANE), ("b", 0, 0)]
    logs = [engine.log(*key) for key in keys]
    blocks = [block(at, [b"x"], lane=key[2]) for at, key in enumerate(keys)]
    for log, one in zip(logs, blocks):
        put(log, one)
    assert engine.lanes("a", 0) == sorted([0, 1, -10, DELAY_LANE])
    assert engine.lanes("a", 1) == [0]
    assert engine.lanes("c", 0) == []
    assert [everything(log) for log in logs] == [[one] for one in blocks]


@pytest.mark.parametrize(
    "name", [".", "..", ".a", "a.b", "x" * 64, "A-_9", "b#ephemeral", "lock", "%2E", "a/b", "ä"]
)
def test_any_name_is_a_topics_and_a_channels_name(place: Place, name: str) -> None:
    with closing(place.open()) as engine:
        put(engine.log(name, 0, 0), block(0, [name.encode()]))
        journal = engine.journal(name, name)
        journal.append(Batch([record(1)], {}))
        journal.write()
        put(engine.log("other", 0, 0), block(0))
    if place.keeps:
        with closing(place.open()) as engine:
            assert everything(engine.log(name, 0, 0)) == [block(0, [name.encode()])]
            assert [*engine.journal(name, name).recover()] == [Batch([record(1)], {})]


def test_a_dropped_topic_is_gone_and_its_name_free(engine: Engine) -> None:
    for topic in ("a", "ab"):
        log = engine.log(topic, 0, 0)
        put(log, *chain(3))
        log.close()
        journal = engine.journal(topic, "c")
        journal.append(Batch([record(1)], {}))
        journal.close()
    engine.drop_topic("a")
    engine.drop_topic("never was")
    assert engine.lanes("a", 0) == []
    log = engine.log("a", 0, 0)
    assert log.bounds().end == 0
    assert [*engine.journal("a", "c").recover()] == []
    put(log, block(7))
    assert log.sync() == 8
    assert everything(engine.log("ab", 0, 0)) == chain(3)
    assert [*engine.journal("ab", "c").recover()] == [Batch([record(1)], {})]


def test_what_was_kept_is_there_again(place: Place) -> None:
    blocks = [*chain(30, each=2), block(70, [b"behind a hole"])]
    with closing(place.open()) as engine:
        log = engine.log("orders", 3, 5)
        put(log, *blocks)
        before = log.bounds()
    with closing(place.open()) as engine:
        log = engine.log("orders", 3, 5)
        if not place.keeps:
            assert log.bounds().end == 0
            return
        after = log.bounds()
        assert after == before._replace(synced_end=71, droppable_end=after.droppable_end)
        assert everything(log) == blocks
        put(log, block(71))
        assert log.sync() == 72
    with closing(place.open()) as engine:
        assert everything(engine.log("orders", 3, 5)) == [*blocks, block(71)]


def test_what_was_dropped_stays_dropped(place: Place) -> None:
    with closing(place.open()) as engine:
        log = engine.log("orders", 0, 0)
        put(log, *chain(40))
        log.sync()
        start = log.drop_below(30)
    if place.keeps:
        with closing(place.open()) as engine:
            log = engine.log("orders", 0, 0)
            assert log.bounds().start == start
            assert everything(log) == chain(40 - start, base=start)


def test_an_engine_takes_publishes(engine: Engine) -> None:
    assert engine.accepts_publishes()


# --- a journal -----------------------------------------------------------------------------------


def record(at_ns: int, kind: int = FINISHED) -> Record:
    return (kind, 7, at_ns, at_ns + 1, 1, at_ns, 42)


def journaled(engine: Engine, *batches: Batch) -> None:
    """Write batches to the journal of channel "c" and close it."""
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == []
    for batch in batches:
        journal.append(batch)
        journal.write()
    journal.close()


def test_a_new_journal_has_nothing(engine: Engine) -> None:
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == [*journal.history()] == []
    assert journal.bytes_since_snapshot == 0
    journal.write()
    journal.sync()


def test_a_journal_gives_back_what_happened_in_order(engine: Engine) -> None:
    batches = [
        Batch([record(1, DELIVERED), record(2)], {3: "client", 4: "zwölf"}),
        Batch([record(3)], {}),
        Batch([(2**8 - 1, 2**32 - 1, 0, 2**64 - 1, 65535, -(2**63), 2**63 - 1)], {2**32 - 1: ""}),
    ]
    journaled(engine, *batches)
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == batches
    assert [*journal.history()] == batches


def test_what_is_only_appended_did_not_happen_yet(engine: Engine) -> None:
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == []
    journal.append(Batch([record(1)], {}))
    assert [*journal.history()] == []
    journal.write()
    assert [*journal.history()] == [Batch([record(1)], {})]


def test_recovery_begins_at_the_newest_snapshot(engine: Engine) -> None:
    old, newer = (Batch([record(n, CURSOR)], {1: "a"}, snapshot=True) for n in (2, 4))
    batches = [Batch([record(1)], {}), old, Batch([record(3)], {}), newer, Batch([record(5)], {})]
    journaled(engine, *batches)
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == batches[3:]
    assert [*journal.history()] == batches


def test_several_batches_and_a_snapshot_in_one_write(engine: Engine) -> None:
    batches = [
        Batch([record(1)], {}),
        Batch([record(2)], {}),
        Batch([record(3)], {}, snapshot=True),
        Batch([record(4)], {}),
    ]
    journal = engine.journal("orders", "c")
    for batch in batches:
        journal.append(batch)
    journal.write()
    assert [*journal.history()] == batches
    journal.close()
    assert [*engine.journal("orders", "c").recover()] == batches[2:]


def test_an_empty_snapshot_forgets_what_came_before(engine: Engine) -> None:
    journaled(engine, Batch([record(1)], {}), Batch([], {}, snapshot=True))
    assert [*engine.journal("orders", "c").recover()] == [Batch([], {}, snapshot=True)]


def test_bytes_since_the_snapshot_say_when_the_next_is_due(engine: Engine) -> None:
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == []
    journal.append(Batch([record(n) for n in range(100)], {}))
    journal.write()
    assert journal.bytes_since_snapshot > 1000
    journal.append(Batch([record(n) for n in range(100)], {}, snapshot=True))
    journal.write()
    assert journal.bytes_since_snapshot == 0
    journal.append(Batch([record(200)], {}))
    journal.write()
    assert 0 < journal.bytes_since_snapshot < 1000


def test_history_goes_by_its_age_but_never_what_recovery_needs(engine: Engine) -> None:
    batches = [
        Batch([record(10)], {}, snapshot=True),
        Batch([record(20)], {}),
        Batch([record(30)], {}, snapshot=True),
        Batch([record(40)], {}),
        Batch([record(50)], {}, snapshot=True),
        Batch([record(60)], {}),
    ]
    journaled(engine, *batches)
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == batches[4:]
    for at_ns, kept in ((20, batches), (21, batches[2:]), (1000, batches[4:])):
        assert journal.has_history
        journal.drop_before(at_ns, 1000)
        assert [*journal.history()] == kept
    assert not journal.has_history
    journal.append(Batch([record(70)], {}))
    journal.write()
    journal.close()
    again = engine.journal("orders", "c")
    assert [*again.recover()] == [*batches[4:], Batch([record(70)], {})]


def test_history_of_a_clock_that_was_ahead_is_as_old_as_what_follows(engine: Engine) -> None:
    batches = [
        Batch([record(at_ns)], {}, snapshot=True) for at_ns in (10, 9_000, 9_500, 20, 30, 40)
    ]
    journaled(engine, *batches)
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == batches[5:]
    for at_ns, now_ns, kept in (
        (11, 15, batches[1:]),  # all that follows is of a later time than now
        (20, 100, batches[1:]),
        (21, 100, batches[4:]),
    ):
        journal.drop_before(at_ns, now_ns)
        assert [*journal.history()] == kept


def test_a_dropped_channel_is_gone_and_its_name_free(engine: Engine) -> None:
    journaled(engine, Batch([record(1)], {}))
    engine.drop_channel("orders", "c")
    engine.drop_channel("orders", "never was")
    journaled(engine, Batch([record(2)], {}))
    assert [*engine.journal("orders", "c").recover()] == [Batch([record(2)], {})]


def test_a_journal_whose_channel_was_deleted_under_it_writes_nothing(engine: Engine) -> None:
    journal = engine.journal("orders", "c")
    assert [*journal.recover()] == []
    journal.append(Batch([record(1)], {}))
    journal.write()
    journal.append(Batch([record(2)], {}))
    engine.drop_channel("orders", "c")
    journal.write()
    journal.sync()
    assert [*engine.journal("orders", "c").recover()] == []


def test_what_happened_is_there_again(place: Place) -> None:
    batches = [Batch([record(n)], {n: "c"}, snapshot=n == 5) for n in range(10)]
    with closing(place.open()) as engine:
        journaled(engine, *batches)
    with closing(place.open()) as engine:
        journal = engine.journal("orders", "c")
        assert [*journal.recover()] == (batches[5:] if place.keeps else [])


# --- the state -----------------------------------------------------------------------------------


def test_state_keeps_the_last_value_of_a_key(engine: Engine) -> None:
    state = engine.state
    assert state.get("a") is None
    state.put("a", b"1")
    state.put("a", b"")
    state.put("b", b"2")
    assert (state.get("a"), state.get("b")) == (b"", b"2")
    state.delete("a")
    state.delete("never was")
    assert state.get("a") is None
    state.write()
    state.sync()
    assert [*state.items("")] == [("b", b"2")]


def test_state_lists_the_keys_of_a_prefix_in_order(engine: Engine) -> None:
    state = engine.state
    for key in ("t/b", "t/a", "t", "u/", "t/ä", "s/z"):
        state.put(key, key.encode())
    assert [key for key, _ in state.items("t/")] == ["t/a", "t/b", "t/ä"]
    assert [key for key, _ in state.items("")] == ["s/z", "t", "t/a", "t/b", "t/ä", "u/"]
    assert [*state.items("x")] == []


def test_state_may_change_while_it_is_listed(engine: Engine) -> None:
    state = engine.state
    state.put("a", b"1")
    state.put("b", b"2")
    listed = state.items("")
    assert next(listed) == ("a", b"1")
    state.put("c", b"3")
    state.put("0", b"0")
    assert dict(listed) == {"b": b"2"}


def test_state_is_there_again(place: Place) -> None:
    with closing(place.open()) as engine:
        for round_number in range(50):
            for key in range(20):
                engine.state.put(f"key/{key}", b"%d" % (round_number * key) * 100)
            engine.state.delete(f"key/{round_number % 20}")
            engine.state.write()
            engine.state.sync()
        before = dict(engine.state.items(""))
        engine.state.put("not written", b"but closed")
    with closing(place.open()) as engine:
        assert dict(engine.state.items("")) == (
            {**before, "not written": b"but closed"} if place.keeps else {}
        )
