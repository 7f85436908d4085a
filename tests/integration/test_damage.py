"""A real broker's directory with one thing broken in it: what `check` and `dump` say of it, and
that the broker is as loud about it, keeps its bytes, and serves all other topics.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.protocol.journal import SKIPPED, Batch
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from tests.support.blocks import block
from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import ERROR, Peer, dpub, fin, pub, req

BODIES = [b"order %03d " % number + b"." * 80 for number in range(200)]
SETTINGS = ("--segment-bytes-max", "4KiB", "--disk-reserve-bytes", "64KiB")


def penstock(*arguments: str, code: int = 0) -> str:
    """What a command prints; its exit code must be the expected one."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class Found(NamedTuple):
    damage: list[dict[str, object]]
    notes: list[dict[str, object]]
    summary: dict[str, object]


def check(directory: Path, *, code: int = 0) -> Found:
    found = [
        json.loads(line)
        for line in penstock("check", str(directory), "--json", code=code).splitlines()
    ]
    return Found(
        [one for one in found if one["kind"] == "damage"],
        [one for one in found if one["kind"] == "note"],
        found[-1],
    )


def fill(broker: Broker, peer: Peer) -> None:
    """Two topics: one with many segments and a channel that has some outstanding."""
    for start in range(0, len(BODIES), 4):
        peer.publish("orders", *BODIES[start : start + 4])
    peer.send(dpub("quiet", 3_600_000, b"later"))
    peer.expect_ok()
    peer.publish("quiet", b"hush")
    peer.subscribe("orders", "billing", 5)
    first, second, third, *_ = peer.expect_messages(5)
    peer.send(fin(first.id), fin(third.id), req(second.id, 3_600_000))
    peer.expect_messages(3)
    peer.expect_nothing()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was stopped in order."""
    return _made(tmp_path_factory.mktemp("stopped") / "data", kill=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was killed: no checkpoint, nothing closed."""
    return _made(tmp_path_factory.mktemp("killed") / "data", kill=True)


def _made(path: Path, *, kill: bool) -> Path:
    with Broker(path, *SETTINGS) as broker, Peer(broker.port) as peer:
        fill(broker, peer)
        if kill:
            broker.kill()
        else:
            assert broker.stop() == 0
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    return lambda path: Path(shutil.copytree(path, tmp_path / "copy"))


def segments(path: Path) -> list[Path]:
    return sorted((path / "topics/orders/0").glob("ready_0_*.seg"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def log_files(path: Path) -> dict[str, bytes]:
    """All that speaks of messages: what must not change when it is damaged."""
    files = [path / "state", *path.rglob("topics/orders/**/*")]
    kept = [one for one in files if one.is_file()]
    return {str(one.relative_to(path)): one.read_bytes() for one in kept}


# --- sound directories


@pytest.mark.parametrize("which", ["stopped", "killed"])
def test_a_sound_directory(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    before = log_files(path)
    found = check(path)
    assert (found.damage, found.notes) == ([], [])
    assert found.summary["messages"] == len(BODIES) + 2
    assert found.summary["topics"] == 2
    text = penstock("check", str(path))
    assert re.search(r"2 topics, 3 logs, .* 202 messages, .* checked: no damage$", text.strip())
    lines = penstock("dump", str(path), "messages", "-n", "0", "--json").splitlines()
    bodies = [json.loads(line)["body"].encode() for line in lines]
    assert bodies == [*BODIES, b"later", b"hush"]
    assert log_files(path) == before


@pytest.mark.parametrize("which", ["stopped", "killed"])
def test_what_channels_have_outstanding(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    (line,) = penstock("dump", str(path), "channels", "--json").splitlines()
    channel = json.loads(line)
    assert channel["channel"] == "billing"
    assert channel["logs"] == [
        {"log": "0/0", "cursor": 8, "floor": 1, "end": 200, "outstanding": 5, "sleeping": 1}
    ]
    rows = [
        json.loads(line)
        for line in penstock("dump", str(path), "outstanding", "--json").splitlines()
    ]
    assert [row["seq"] for row in rows] == [3, 4, 5, 6, 7, 1]
    assert rows[-1]["wake_at_ns"] and not rows[0]["wake_at_ns"]
    overview = penstock("dump", str(path))
    assert "orders: 1 partition, synced" in overview
    assert "log 0/0: seqs 0 to 199, synced below 200" in overview
    assert "at 8 of 200, all below 1 finished, 5 outstanding, 1 asleep" in overview


def test_beside_a_running_broker(broker: Broker, connect: Connect) -> None:
    fill(broker, connect(broker.port))
    found = check(broker.data_path)
    assert (found.damage, found.notes) == ([], [])
    publisher = connect(broker.port)
    for _ in range(5):
        publisher.send(*[pub("orders", body) for body in BODIES])
        assert check(broker.data_path).damage == []
        penstock("dump", str(broker.data_path), "messages", "-n", "0")
        publisher.expect_ok(len(BODIES))
    assert "orders 0/0 199" in penstock("dump", str(broker.data_path), "messages", "--from", "199")
    assert broker.stop() == 0


@pytest.mark.parametrize("arguments", [("check",), ("dump", "messages", "-n", "0", "--json")])
def test_memory_does_not_grow_with_the_directory(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    engine = FileEngine(str(tmp_path / "data"), FileOptions(reserve_bytes=0))
    engine.state.put("topic/t", b"{}")
    log = engine.log("t", 0, 0)
    for number in range(2_000):
        log.append(block(number * 200, [b"x" * 500] * 200))
        log.write()
    engine.close()
    assert log.bounds().bytes > 200 << 20
    verb, *rest = arguments
    program = (
        "import pathlib, sys\n"
        "from penstock.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print(pathlib.Path('/proc/self/status').read_text('ascii'), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-c", program, verb, str(tmp_path / "data"), *rest]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=True)
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    assert peak is not None and int(peak[1]) < 150 << 10


def test_narrowed(stopped: Path) -> None:
    def dump(*arguments: str) -> list[dict[str, object]]:
        found = penstock("dump", str(stopped), *arguments, "-n", "0", "--json")
        return [json.loads(line) for line in found.splitlines()]

    (later,) = dump("messages", "--lane", "delay")
    assert later["body"] == "later" and later["wake_at_ns"]
    assert dump("messages", "--id", str(later["id"])) == [later]
    assert dump("messages", "--partition", "1") == []
    seqs = [row["seq"] for row in dump("messages", "--topic", "orders", "--from", "197")]
    assert seqs == [197, 198, 199]
    assert {row["topic"] for row in dump("blocks", "--topic", "quiet")} == {"quiet"}
    assert sum([row["count"] for row in dump("blocks", "--lane", "0")]) == 201  # type: ignore[misc]
    assert [row["sealed"] for row in dump("segments", "--topic", "quiet")] == [False] * 2
    kinds = [row["kind"] for row in dump("journal", "--channel", "billing")]
    assert kinds[0] == "delivered" and {"finished", "slept"} <= {*kinds}
    assert "tag" in [row["key"] for row in dump("state")]
    assert "these were the first 3" in penstock("dump", str(stopped), "messages", "-n", "3")


# --- damage


class Case(NamedTuple):
    """One thing broken: in which file, and the place to flip a bit in (None: the file goes)."""

    file: Callable[[Path], Path]
    offset: int | None
    says: str
    log: str | None = "0/0"


def sealed(path: Path) -> Path:
    return segments(path)[1]


def last(path: Path) -> Path:
    return segments(path)[-1]


def manifest(path: Path) -> Path:
    return path / "topics/orders/0/ready_0.manifest"


def journal(path: Path) -> Path:
    return path / "topics/orders/channels/billing/journal_1"


# a block of one message: 96 bytes of header, 4 of ends, the frames
AT_READ = {
    "magic": Case(sealed, 1, "no whole block here"),
    "header": Case(sealed, 24, "checksum"),
    "column": Case(sealed, 97, "checksum"),
    "frames": Case(sealed, 150, "checksum"),
    "length": Case(sealed, 9, "no whole block here"),
    "last": Case(last, 150, "checksum"),
}
AT_OPENING = {
    "manifest": Case(manifest, 20, "manifest"),
    "manifest-magic": Case(manifest, 0, "manifest"),
    "missing": Case(sealed, None, "missing"),
    "last-missing": Case(last, None, "missing"),
    "journal": Case(journal, 40, "no whole record", None),
}


def broken(path: Path, case: Case) -> Path:
    file = case.file(path)
    if case.offset is None:
        file.unlink()
    else:
        flip(file, case.offset)
    return file


def assert_found(path: Path, file: Path, case: Case) -> None:
    """Check names the file and the place; dump goes around it."""
    found = check(path, code=3)
    assert len(found.damage) == 1, found
    (damage,) = found.damage
    assert damage["topic"] == "orders" and damage.get("log") == case.log
    assert str(damage["file"]) == str(file) or case.offset is None
    assert case.says in str(damage["found"])
    assert "backup" in str(damage["to_do"]) and damage["kept"]
    text = penstock("check", str(path), code=3)
    assert (
        text.startswith("DAMAGE: topic orders, ") and "to do" in text and str(file.parent) in text
    )
    assert "DAMAGED in 1 place; all bytes were kept" in text


@pytest.mark.parametrize("name", AT_READ)
def test_damage_that_is_met_when_it_is_read(
    name: str,
    stopped: Path,
    copy: Callable[[Path], Path],
    start_broker: StartBroker,
    connect: Connect,
) -> None:
    case = AT_READ[name]
    path = copy(stopped)
    file = broken(path, case)
    assert_found(path, file, case)
    printed = penstock("dump", str(path), "messages", "-n", "0", code=3)
    assert f"{file} at offset 0" in printed and "199 0000" in printed
    before = file.read_bytes()

    broker = start_broker(*SETTINGS, data_path=path)
    peer = connect(broker.port)
    peer.subscribe("orders", "audit", 1000)
    second = connect(broker.port)
    second.subscribe("orders", "billing", 1000)
    broker.wait_for_log(r"orders/0/0 is damaged and hands out nothing behind that: .*at offset 0")
    assert_others_run(broker, connect)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("which", "name"),
    # the last batch of a journal that was not closed is taken for torn: it costs a redelivery
    [(which, name) for which in ("stopped", "killed") for name in AT_OPENING][:-1],
)
def test_damage_that_is_met_at_opening(
    which: str,
    name: str,
    request: pytest.FixtureRequest,
    copy: Callable[[Path], Path],
    start_broker: StartBroker,
    connect: Connect,
) -> None:
    case = AT_OPENING[name]
    path = copy(request.getfixturevalue(which))
    file = broken(path, case)
    assert_found(path, file, case)
    assert_stays_closed(path, start_broker, connect)


@pytest.mark.parametrize("offset", [1, 24, 97, 150])
def test_damage_in_the_tail_of_a_killed_broker(
    offset: int,
    killed: Path,
    copy: Callable[[Path], Path],
    start_broker: StartBroker,
    connect: Connect,
) -> None:
    path = copy(killed)
    flip(last(path), offset)
    found = check(path, code=3)
    assert [damage["offset"] for damage in found.damage] == [0]
    assert_stays_closed(path, start_broker, connect)


def assert_stays_closed(path: Path, start_broker: StartBroker, connect: Connect) -> None:
    """The topic is refused, also the second time; the log says why; nothing of it is touched."""
    before = log_files(path)
    broker = start_broker(*SETTINGS, data_path=path)
    for _ in range(2):
        peer = connect(broker.port)
        peer.send(pub("orders", b"one more"))
        assert peer.next_frame().kind == ERROR
    broker.wait_for_log("topic orders stays closed: .*orders")
    assert_others_run(broker, connect)
    after = log_files(path)
    changed = {name for name in before if name != "state" and before[name] != after.get(name)}
    assert changed == set()
    assert broker.stop() == 0


def assert_others_run(broker: Broker, connect: Connect) -> None:
    peer = connect(broker.port)
    peer.publish("quiet", b"again")
    peer.subscribe("quiet", "c", 10)
    assert [message.body for message in peer.expect_messages(2)] == [b"hush", b"again"]


def test_a_log_that_is_gone_as_a_whole(
    stopped: Path,
    copy: Callable[[Path], Path],
    start_broker: StartBroker,
    connect: Connect,
) -> None:
    """Nothing is left of it to say so, but a channel was handed more than there is."""
    path = copy(stopped)
    shutil.rmtree(path / "topics/orders/0")
    (damage,) = check(path, code=3).damage
    assert damage["log"] == "0/0" and damage["seqs"] == [0, 7]
    assert_stays_closed(path, start_broker, connect)


def test_a_damaged_journal_that_no_channel_knows(
    tmp_path: Path, start_broker: StartBroker, connect: Connect
) -> None:
    """Its name cannot be used, and that is all."""
    path = tmp_path / "data"
    engine = FileEngine(str(path), FileOptions(reserve_bytes=0))
    journal = engine.journal("orders", "left")
    for number in range(2):
        journal.append(Batch([(SKIPPED, 1, number, number + 1, 0, 0, 0)], {}))
        journal.write()
        journal.sync()
    engine.close()
    file = path / "topics/orders/channels/left/journal_1"
    stored = bytearray(file.read_bytes())
    stored[30] ^= 1
    file.write_bytes(stored)
    broker = start_broker(*SETTINGS, data_path=path)
    peer = connect(broker.port)
    for _ in range(2):
        peer.send(b"SUB orders left\n")
        frame = peer.next_frame()
        assert frame.kind == ERROR
        assert b"is damaged at offset" in frame.data
        peer = connect(broker.port)
    peer.subscribe("orders", "other", ready=1)
    assert file.read_bytes() == stored


# --- damage of what all topics need


@pytest.mark.parametrize("offset", [30, 1, None])
def test_a_damaged_state_keeps_the_broker_from_starting(
    offset: int | None, stopped: Path, copy: Callable[[Path], Path], start_broker: StartBroker
) -> None:
    path = copy(stopped)
    case = Case(lambda path: path / "state", offset, "state", None)
    file = broken(path, case)
    found = check(path, code=3)
    assert [damage["file"] for damage in found.damage] == [str(file)]
    before = log_files(path)
    broker = start_broker(*SETTINGS, data_path=path, start=False)
    broker.spawn()
    assert broker.wait() != 0
    assert f"{file}" in broker.log and "backup" in broker.log
    assert log_files(path) == before
    assert "hush" in penstock(
        "dump", str(path), "messages", "--topic", "quiet", code=0 if offset is None else 3
    )


# --- what loses nothing


@pytest.mark.parametrize("pattern", ["*.index", "*.synced"])
def test_notes_that_are_made_anew(
    pattern: str,
    stopped: Path,
    copy: Callable[[Path], Path],
    start_broker: StartBroker,
    connect: Connect,
) -> None:
    path = copy(stopped)
    files = sorted((path / "topics/orders/0").glob(pattern))
    for file in files:
        flip(file, 20)
    found = check(path)
    assert sorted([str(note["file"]) for note in found.notes]) == [*map(str, files)]
    broker = start_broker(*SETTINGS, data_path=path)
    peer = connect(broker.port)
    peer.subscribe("orders", "billing", 1000)
    bodies = sorted([message.body for message in peer.expect_messages(197)])
    assert bodies == sorted({*BODIES} - {BODIES[0], BODIES[1], BODIES[2]})


@pytest.mark.parametrize("garbage", [b"x" * 1000, b"PSB1" + bytes(200)])
def test_a_torn_tail(
    garbage: bytes,
    killed: Path,
    copy: Callable[[Path], Path],
    start_broker: StartBroker,
    connect: Connect,
) -> None:
    path = copy(killed)
    size = last(path).stat().st_size
    for file in (last(path), journal(path), path / "state"):
        with file.open("ab") as end:
            end.write(garbage)
    found = check(path)
    assert found.damage == []
    offsets = {Path(str(note["file"])).name: note["offset"] for note in found.notes}
    assert offsets.keys() == {"state", "journal_1", last(path).name}
    assert offsets[last(path).name] == size
    assert found.summary["messages"] == 202
    assert "never synced" in penstock("dump", str(path), "messages", "-n", "0")
    broker = start_broker(*SETTINGS, data_path=path)
    peer = connect(broker.port)
    peer.subscribe("orders", "billing", 1000)
    assert len(peer.expect_messages(197)) == 197
    broker.wait_for_log(f"a torn tail of {len(garbage)} bytes")
    assert check(path).notes == []


def test_a_block_torn_in_the_middle(killed: Path, copy: Callable[[Path], Path]) -> None:
    """Cut inside what was synced: the end is missing, and that is damage."""
    path = copy(killed)
    content = last(path).read_bytes()
    last(path).write_bytes(content[:-10])
    (damage,) = check(path, code=3).damage
    assert damage["seqs"] == [196, 199]  # four PUBs are one block


def test_files_that_no_topic_owns(stopped: Path, copy: Callable[[Path], Path]) -> None:
    path = copy(stopped)
    shutil.copytree(path / "topics/quiet", path / "topics/stray")
    (note,) = check(path).notes
    assert note["topic"] == "stray" and "no broker reads them" in str(note["found"])
