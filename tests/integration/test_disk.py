"""A disk that is full, stalls, or fails, under a real broker: nothing answered is lost.

The full disk is a small tmpfs with a file in it that can be taken away (mounting one needs root;
the tests are skipped without). Stalls and failures are failpoints (see `penstock.failpoint`).
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import failpoint
from tests.support.broker import Broker
from tests.support.fixtures import StartBroker
from tests.support.wire import ERROR, NO_SUCH_ID, Closed, Peer, dpub, fin, mpub, pub

pytestmark = pytest.mark.slow

MIB = 1 << 20
DISK_BYTES = 12 * MIB
BALLAST_BYTES = 6 * MIB
PATIENCE_SECONDS = 60.0

TOPICS = ("orders", "bills", "clicks", "events")
SETTINGS = """
segment_bytes_max = "256KiB"

[topics.events]
durability = "written"
"""


class SmallDisk:
    """A tmpfs; ``ballast`` is a file that takes half of it until it is unlinked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.ballast = path / "ballast"
        self.ballast.write_bytes(bytes(BALLAST_BYTES))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "penstock-test", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here, so no small disk to fill")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here, so there is no small disk: {done.stderr}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def settings(tmp_path: Path) -> str:
    path = tmp_path / "penstock.toml"
    path.write_text(SETTINGS)
    return str(path)


class Shop:
    """Publishes until it is refused, and consumes what it was promised."""

    def __init__(self, broker: Broker, topics: tuple[str, ...] = TOPICS) -> None:
        self.broker = broker
        self.answered: dict[str, set[bytes]] = {name: set() for name in topics}
        self.finished: dict[tuple[str, str], set[bytes]] = {}
        for name in topics:
            for channel in ("a", "b"):
                self.finished[name, channel] = set()
                with Peer(broker.port) as peer:
                    peer.subscribe(name, channel)

    def publish(self, topic: str, count: int, size: int = 2000) -> str:
        """One MPUB; what refused it, or nothing."""
        number = len(self.answered[topic])
        bodies = [b"%s %d " % (topic.encode(), number + n) + b"x" * size for n in range(count)]
        with Peer(self.broker.port) as peer:
            peer.send(mpub(topic, bodies))
            frame = peer.next_frame()
        if frame.kind == ERROR:
            return frame.data.decode()
        self.answered[topic].update(bodies)
        return ""

    def fill(self) -> None:
        """All topics at once, so that their logs also commit together."""
        refusals: dict[str, str] = {}

        def fill(topic: str) -> None:
            until = time.monotonic() + PATIENCE_SECONDS
            while not (refused := self.publish(topic, 10)):
                assert time.monotonic() < until, "the disk does not get full"
            refusals[topic] = refused

        threads = [threading.Thread(target=fill, args=(topic,)) for topic in self.answered]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refusals.keys() == self.answered.keys()
        for refused in refusals.values():
            assert refused.startswith("E_MPUB_FAILED"), refused
            assert "full" in refused

    def publish_until_accepted(self, topic: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while refused := self.publish(topic, 1):
            assert time.monotonic() < until, f"there is room, and yet: {refused}"
            time.sleep(0.1)

    def consume(self, topic: str, channel: str, *, most: int = 1 << 30) -> None:
        """Finish what was promised and is not finished, and hear that it was heard."""
        finished = self.finished[topic, channel]
        wanted = min(len(finished) + most, len(self.answered[topic]))
        with Peer(self.broker.port) as peer:
            peer.subscribe(topic, channel, ready=100)
            while len(finished) < wanted:
                delivery = peer.expect_message()
                assert delivery.body in self.answered[topic], f"refused: {delivery.body[:40]!r}"
                assert delivery.body not in finished, f"came back: {delivery.body[:40]!r}"
                finished.add(delivery.body)
                peer.send(fin(delivery.id))
            peer.send(b"RDY 0\n", fin(NO_SUCH_ID))
            while peer.next_frame().kind != ERROR:
                pass  # messages that were on their way; they are ready again
        assert len(finished) >= wanted

    def consume_all(self) -> None:
        for topic, channel in self.finished:
            self.consume(topic, channel)

    def nothing_is_left(self) -> None:
        """All was finished: what comes next is what is published now."""
        for topic in self.answered:
            with Peer(self.broker.port) as peer:
                peer.publish(topic, b"last")
        for topic, channel in self.finished:
            with Peer(self.broker.port) as peer:
                peer.subscribe(topic, channel, ready=1)
                peer.send(fin(peer.expect_message(b"last").id))


@pytest.mark.parametrize("reserve", ["1MiB", "16KiB"])
def test_a_full_disk_refuses_publishers_and_lets_consumers_finish(
    disk: SmallDisk, settings: str, start_broker: StartBroker, reserve: str
) -> None:
    broker = start_broker(
        "--config", settings, f"--disk-reserve-bytes={reserve}", verb="serve", data_path=disk.data
    )
    shop = Shop(broker)
    shop.fill()
    for topic in shop.answered:
        shop.consume(topic, "a", most=300)
    for topic in (*shop.answered, "new"):
        with Peer(broker.port) as peer:
            peer.send(pub(topic, b"refused"))
            frame = peer.next_frame()
            assert frame.kind == ERROR, "what consumers need is given to publishers"
            assert frame.data.startswith(b"E_PUB_FAILED"), frame
        with Peer(broker.port) as peer:
            peer.send(dpub(topic, 100, b"refused"))
            assert peer.next_frame().data.startswith(b"E_DPUB_FAILED")
    disk.ballast.unlink()
    for topic in shop.answered:
        shop.publish_until_accepted(topic)
    with Peer(broker.port) as peer:
        peer.publish("new", b"now")
        peer.subscribe("new", "a", ready=2)
        peer.send(fin(peer.expect_message(b"now").id))
    shop.consume_all()
    broker.restart()
    shop.nothing_is_left()


def test_a_kill_while_the_disk_is_full(
    disk: SmallDisk, settings: str, start_broker: StartBroker
) -> None:
    broker = start_broker(
        "--config", settings, "--disk-reserve-bytes=1MiB", verb="serve", data_path=disk.data
    )
    shop = Shop(broker)
    shop.fill()
    for topic in shop.answered:
        shop.consume(topic, "a", most=300)
    time.sleep(1)  # much more than what is finished needs to be safe
    broker.restart(kill=True)
    for topic in shop.answered:
        assert shop.publish(topic, 100), "there was no room before"
        shop.consume(topic, "b", most=100)
    time.sleep(1)
    broker.restart(kill=True)
    disk.ballast.unlink()
    for topic in shop.answered:
        shop.publish_until_accepted(topic)
    shop.consume_all()
    broker.restart()
    shop.nothing_is_left()


def test_finishing_makes_room(disk: SmallDisk, settings: str, start_broker: StartBroker) -> None:
    broker = start_broker(
        "--config",
        settings,
        "--disk-reserve-bytes=1MiB",
        "--retain-hours=0",
        verb="serve",
        data_path=disk.data,
    )
    shop = Shop(broker)
    shop.fill()
    shop.consume_all()
    for topic in shop.answered:
        shop.publish_until_accepted(topic)
    shop.consume_all()


# --- a disk that stalls ------------------------------------------------------------------------

STALL_SECONDS = 6
FLOOD_COMMANDS = 30  # of a megabyte, on each connection
FLOODS = 4
SMALL_BUFFERS = (
    "--uncommitted-bytes-max=16MiB",
    "--connection-uncommitted-bytes-max=8MiB",
    "--block-cache-bytes=16MiB",
)


class Flood:
    """A publisher that sends as fast as it may, and reads its answers afterwards."""

    def __init__(self, broker: Broker, topic: str, number: int) -> None:
        self.peer = Peer(broker.port)
        self.topic = topic
        self.bodies = [
            [b"%d %d %d " % (number, n, m) + b"x" * 50_000 for m in range(20)]
            for n in range(FLOOD_COMMANDS)
        ]
        self.sent = 0
        self.thread = threading.Thread(target=self._send, daemon=True)
        self.thread.start()

    def _send(self) -> None:
        with self.peer.patience(PATIENCE_SECONDS):
            for bodies in self.bodies:
                self.peer.send(mpub(self.topic, bodies))
                self.sent += 1

    def answers(self) -> None:
        with self.peer.patience(PATIENCE_SECONDS):
            self.peer.expect_ok(FLOOD_COMMANDS)
        self.thread.join()
        self.peer.close()


def test_a_disk_that_stalls_holds_publishers_back_and_no_other_log(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    broker = start_broker(
        *SMALL_BUFFERS,
        verb="serve",
        verify=False,
        env={failpoint.VARIABLE: f"log.sync:3=stall:{STALL_SECONDS}"},
    )
    with Peer(broker.port) as peer:
        peer.subscribe("stalled", "a")
        peer.publish("stalled", b"1")
        peer.publish("stalled", b"2")
    before = broker.resident_bytes()
    floods = [Flood(broker, "stalled", number) for number in range(FLOODS)]
    until = time.monotonic() + STALL_SECONDS / 2
    largest = 0
    others = 0
    with Peer(broker.port) as peer, Peer(broker.port) as behind:
        while time.monotonic() < until:
            largest = max(largest, broker.resident_bytes() - before)
            peer.publish("other", b"%d" % others)
            others += 1
        behind.send(pub("stalled", b"last"))
        behind.expect_nothing(0.1)  # the stall is still on
        assert others > 3
        assert sum(one.sent for one in floods) < FLOODS * FLOOD_COMMANDS, "nobody was held back"
        for flood in floods:
            flood.answers()
        behind.expect_ok()
    assert largest < 64 * MIB, f"the broker grew by {largest / MIB:.0f} MiB"
    owed = {body for flood in floods for bodies in flood.bodies for body in bodies}
    finish_all(broker, owed | {b"1", b"2", b"last"})


def test_a_write_that_stalls_holds_everything_back_and_loses_nothing(
    start_broker: StartBroker,
) -> None:
    """At `written` the loop itself writes: it stands still, and goes on where it stood."""
    broker = start_broker(
        "--durability=written",
        *SMALL_BUFFERS,
        verb="serve",
        verify=False,
        env={failpoint.VARIABLE: "log.write:3=stall:3"},
    )
    with Peer(broker.port) as peer:
        peer.subscribe("stalled", "a")
        peer.publish("stalled", b"1")
        peer.publish("stalled", b"2")
    before = broker.resident_bytes()
    floods = [Flood(broker, "stalled", number) for number in range(FLOODS)]
    for flood in floods:
        flood.answers()
    assert broker.resident_bytes() - before < 64 * MIB
    owed = {body for flood in floods for bodies in flood.bodies for body in bodies} | {b"1", b"2"}
    finish_all(broker, owed)


def finish_all(broker: Broker, owed: set[bytes]) -> None:
    with Peer(broker.port) as peer:
        peer.subscribe("stalled", "a", ready=100)
        while owed:
            delivery = peer.expect_message()
            owed.remove(delivery.body)
            peer.send(fin(delivery.id))


# --- a disk that fails -------------------------------------------------------------------------


def publish_until_refused(broker: Broker, topic: str) -> tuple[list[bytes], str]:
    """What was answered, and what the first refusal said."""
    answered: list[bytes] = []
    until = time.monotonic() + PATIENCE_SECONDS
    with Peer(broker.port) as peer:
        while True:
            body = b"%d" % len(answered)
            peer.send(pub(topic, body))
            frame = peer.next_frame()
            if frame.kind == ERROR:
                return answered, frame.data.decode()
            answered.append(body)
            assert time.monotonic() < until, "nothing fails"


@pytest.mark.parametrize("durability", ["synced", "written"])
@pytest.mark.parametrize("armed", ["log.sync:4=eio", "log.write:4=eio"])
def test_a_log_whose_disk_fails_is_frozen_and_no_other(
    start_broker: StartBroker, durability: str, armed: str
) -> None:
    broker = start_broker(
        f"--durability={durability}",
        "--sync-messages-max=1",
        verb="serve",
        env={failpoint.VARIABLE: armed},
    )
    with Peer(broker.port) as peer:
        for channel in ("a", "b"):
            with Peer(broker.port) as subscriber:
                subscriber.subscribe("failing", channel)
        answered, refused = publish_until_refused(broker, "failing")
        assert refused.startswith("E_PUB_FAILED PUB failed"), refused
        assert "restart" in refused, "it does not say what to do"
        again, refused = publish_until_refused(broker, "failing")
        assert not again, "a frozen log takes no more"
        for number in range(20):
            peer.publish("other", b"%d" % number)
    with Peer(broker.port) as peer:
        # what is safe can be read
        peer.subscribe("failing", "a", ready=10)
        for body in answered:
            peer.send(fin(peer.expect_message(body).id))
    broker.env.clear()
    broker.restart()
    with Peer(broker.port) as peer:
        peer.publish("failing", b"after")
        peer.subscribe("failing", "b", ready=1)
        got: list[bytes] = []
        while b"after" not in got:
            delivery = peer.expect_message()
            got.append(delivery.body)
            peer.send(fin(delivery.id))
    # what was refused may have got to the disk all the same; what was answered has
    assert got[: len(answered)] == answered
    assert len(got) <= len(answered) + 2


@pytest.mark.parametrize("armed", ["journal.write:3=eio", "journal.sync:2=eio"])
def test_a_journal_whose_disk_fails_concerns_its_channel_only(
    start_broker: StartBroker, armed: str
) -> None:
    broker = start_broker(verb="serve", env={failpoint.VARIABLE: armed})
    peers = {name: Peer(broker.port) for name in ("a", "b")}
    for name, peer in peers.items():
        peer.subscribe("t", name, ready=100)
    failed = None
    until = time.monotonic() + PATIENCE_SECONDS
    while failed is None:  # both are at work when one fails, and both go on
        assert time.monotonic() < until, "nothing fails"
        with Peer(broker.port) as publisher:
            publisher.publish("t", *(b"%d" % number for number in range(20)))
        for peer in peers.values():
            peer.send(*(fin(one.id) for one in peer.expect_messages(20)), fin(NO_SUCH_ID))
            assert peer.next_frame().kind == ERROR
        failed = re.search(r"channels/(.): the disk failed", broker.log)
    whole = "b" if failed[1] == "a" else "a"
    time.sleep(1)  # much more than what is finished needs to be safe
    broker.env.clear()
    broker.restart(kill=True)
    with Peer(broker.port) as peer:
        peer.publish("t", b"next")
        peer.subscribe("t", whole, ready=1)
        peer.expect_message(b"next")
    for peer in peers.values():
        peer.close()


def test_a_state_whose_disk_fails_refuses_what_is_new(start_broker: StartBroker) -> None:
    broker = start_broker(verb="serve", env={failpoint.VARIABLE: "state.sync:4+=eio"})
    with Peer(broker.port) as peer:
        peer.subscribe("known", "a")
    answered: list[str] = []
    refused = ""
    while not refused:
        name = f"t{len(answered)}"
        with Peer(broker.port) as peer:
            peer.send(pub(name, b"1"))
            frame = peer.next_frame()
        if frame.kind == ERROR:
            refused = frame.data.decode()
        else:
            answered.append(name)
        assert len(answered) < 20, "nothing fails"
    assert "state could not be saved" in refused
    with Peer(broker.port) as peer:
        peer.send(b"SUB t new\n")
        assert peer.next_frame().data.startswith(b"E_SUB_FAILED")
    with Peer(broker.port) as peer:
        peer.subscribe("known", "a", ready=1)
        peer.send(pub("known", b"2"))
        assert peer.next_frame().data == b"OK"
        peer.expect_message(b"2")
    broker.env.clear()
    broker.restart(kill=True)
    for name in answered:
        with Peer(broker.port) as peer:
            peer.subscribe(name, "a", ready=1)
            peer.expect_message(b"1")


def test_a_second_broker_on_the_directory_is_refused(start_broker: StartBroker) -> None:
    broker = start_broker(verb="serve")
    second = start_broker(verb="serve", data_path=broker.data_path, start=False)
    second.spawn()
    assert second.wait() != 0
    lines = [one for one in second.log.splitlines() if one]
    assert len(lines) == 1, lines
    assert f"in use by another broker (process {broker.pid})" in lines[0]
    with Peer(broker.port) as peer:
        peer.publish("t", b"1")


# --- many logs at once -------------------------------------------------------------------------


def publish_at_once(shop: Shop, rounds: int) -> dict[str, str]:
    """To all topics while the broker stands still, so that their logs commit together when it goes
    on; what refused whom."""
    refusals: dict[str, str] = {}
    with ExitStack() as closing:
        peers = {one: closing.enter_context(Peer(shop.broker.port)) for one in shop.answered}
        for _ in range(rounds):
            shop.broker.freeze()
            sent = {one: b"%s %d" % (one.encode(), len(shop.answered[one])) for one in peers}
            for topic, peer in peers.items():
                peer.send(pub(topic, sent[topic]))
            shop.broker.thaw()
            for topic, body in sent.items():
                try:
                    frame = peers[topic].next_frame()
                except (Closed, OSError):
                    return {"all": "the broker was killed"}
                if frame.kind == ERROR:
                    refusals[topic] = frame.data.decode()
                    del peers[topic]
                else:
                    shop.answered[topic].add(body)
    return refusals


def all_is_there(shop: Shop) -> None:
    """What was answered comes, in both channels."""
    for topic, answered in shop.answered.items():
        with Peer(shop.broker.port) as peer:
            peer.publish(topic, b"last")
        for channel in ("a", "b"):
            with Peer(shop.broker.port) as subscriber:
                subscriber.subscribe(topic, channel, ready=100)
                got: set[bytes] = set()
                while b"last" not in got:
                    delivery = subscriber.expect_message()
                    got.add(delivery.body)
                    subscriber.send(fin(delivery.id))
            assert answered <= got


@pytest.mark.parametrize("armed", ["redo.write:3=eio", "redo.write:3+=enospc", "redo.write:3=kill"])
def test_what_was_answered_is_there_when_a_redo_file_fails(
    settings: str, start_broker: StartBroker, armed: str
) -> None:
    broker = start_broker("--config", settings, verb="serve", env={failpoint.VARIABLE: armed})
    shop = Shop(broker)
    refusals = publish_at_once(shop, 20)
    assert bool(refusals) == armed.endswith("kill")
    broker.env.clear()
    broker.restart(kill=True)
    all_is_there(shop)


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("armed", ["log.sync:6=eio", "log.write:40=eio"])
def test_one_of_many_logs_fails(
    settings: str, start_broker: StartBroker, armed: str, kill: bool
) -> None:
    broker = start_broker("--config", settings, verb="serve", env={failpoint.VARIABLE: armed})
    shop = Shop(broker)
    refusals = publish_at_once(shop, 100)
    while not refusals:  # together they sync a redo file, and each log only now and then
        assert len(shop.answered["orders"]) < 2000, "nothing fails"
        if refused := shop.publish("orders", 1):
            refusals["orders"] = refused
    assert len(refusals) == 1, refusals
    assert "the disk failed" in "".join(refusals.values())
    assert publish_at_once(shop, 20).keys() == refusals.keys()
    broker.env.clear()
    broker.restart(kill=kill)
    all_is_there(shop)
