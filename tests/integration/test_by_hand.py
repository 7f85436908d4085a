"""Pause, empty and delete, the first channel, ephemeral ones: with two channels, and after kill -9.

They are done in a broker that takes orders on a pipe (see `tests/support/host_worker.py`) and is
killed the moment it says that they are done; what they came to is then seen by clients of a real
broker on the same directory. Journals are not written by themselves there, so what survives is what
the order itself made safe.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import failpoint
from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import MESSAGE, Delivery, Peer, Quiet, decode_delivery, dpub, fin, req
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.slow

TOPIC = "orders"


class Worker:
    """The broker on the pipe."""

    def __init__(self, path: Path, armed: str = "", durability: str = "synced") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.host_worker", str(path), durability],
            cwd=ROOT,
            env={**os.environ, failpoint.VARIABLE: armed},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        what, port = self._line().split()
        assert what == "listening"
        self.port = int(port)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def do(self, *orders: str) -> None:
        for order in orders:
            self.send(order)
            assert self._line().strip() == "done", order

    def send(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def kill_after(self, order: str) -> None:
        """Killed when it would say that this is done; or before, at its failpoint."""
        self.send(f"kill {order}")
        assert not self._line()
        self.close()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # it was killed before it read its last order


StartWorker = Callable[..., Worker]


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start_worker(data_path: Path) -> Iterator[StartWorker]:
    workers: list[Worker] = []

    def start(armed: str = "", durability: str = "synced") -> Worker:
        worker = Worker(data_path, armed, durability)
        workers.append(worker)
        return worker

    try:
        yield start
    finally:
        for worker in workers:
            worker.close()


@pytest.fixture
def restart(data_path: Path, start_broker: StartBroker) -> Callable[[], Broker]:
    """A real broker on the directory."""
    return lambda: start_broker(verb="serve", data_path=data_path)


def take(peer: Peer, count: int, *, finish: bool = True) -> list[Delivery]:
    deliveries = peer.expect_messages(count)
    if finish:
        peer.send(*(fin(one.id) for one in deliveries))
    return deliveries


def bodies_until(peer: Peer, topic: str, port: int) -> set[bytes]:
    """All that a subscriber gets, up to what is published now."""
    with Peer(port) as publisher:
        publisher.publish(topic, b"now")
    got: set[bytes] = set()
    while b"now" not in got:
        delivery = peer.expect_message()
        got.add(delivery.body)
        peer.send(fin(delivery.id))
    return got - {b"now"}


def what_comes(port: int, channel: str, topic: str = TOPIC) -> set[bytes]:
    with Peer(port) as peer:
        peer.subscribe(topic, channel, ready=1)
        return bodies_until(peer, topic, port)


@pytest.fixture
def two_channels(start_worker: StartWorker) -> Worker:
    """Both channels have 1 and 2, nothing of it is finished."""
    worker = start_worker()
    worker.do(f"load {TOPIC} a", f"load {TOPIC} b")
    with Peer(worker.port) as peer:
        peer.publish(TOPIC, b"1", b"2")
    return worker


def test_what_is_unclaimed_waits_for_the_first_channel(
    start_worker: StartWorker, restart: Callable[[], Broker]
) -> None:
    worker = start_worker()
    with Peer(worker.port) as peer:
        peer.publish(TOPIC, b"1", b"2")
    worker.kill()
    broker = restart()
    with Peer(broker.port) as first, Peer(broker.port) as second:
        first.subscribe(TOPIC, "first", ready=5)
        second.subscribe(TOPIC, "second", ready=5)
        broker.restart(kill=True)  # both were answered: that they claimed it is kept
    assert what_comes(broker.port, "second") == set()
    assert what_comes(broker.port, "first") == {b"1", b"2"}


def test_the_last_channel_that_goes_leaves_an_unclaimed_mark(
    two_channels: Worker, restart: Callable[[], Broker]
) -> None:
    two_channels.do(f"delete_channel {TOPIC} a")
    with Peer(two_channels.port) as peer:
        peer.publish(TOPIC, b"3")
        two_channels.do(f"delete_channel {TOPIC} b")
        peer.publish(TOPIC, b"4")
    two_channels.kill()
    broker = restart()
    assert what_comes(broker.port, "new") == {b"4"}
    assert what_comes(broker.port, "newer") == set()


def test_a_deleted_channel_is_gone_and_its_name_begins_anew(
    two_channels: Worker, restart: Callable[[], Broker]
) -> None:
    with Peer(two_channels.port) as peer:
        peer.subscribe(TOPIC, "a", ready=5)
        take(peer, 2, finish=False)
        two_channels.do(f"delete_channel {TOPIC} a")
        peer.expect_closed()
    two_channels.do(f"load {TOPIC} a")
    with Peer(two_channels.port) as peer:
        peer.publish(TOPIC, b"3")
    two_channels.kill()
    broker = restart()
    assert what_comes(broker.port, "a") == {b"3"}
    assert what_comes(broker.port, "b") == {b"1", b"2", b"3"}


def test_a_paused_channel_stays_paused(
    two_channels: Worker, restart: Callable[[], Broker], start_worker: StartWorker
) -> None:
    two_channels.kill_after(f"pause_channel {TOPIC} a")
    broker = restart()
    with Peer(broker.port) as paused:
        paused.subscribe(TOPIC, "a", ready=5)
        assert what_comes(broker.port, "b") == {b"1", b"2"}
        paused.expect_nothing()
    broker.kill()
    worker = start_worker()
    worker.kill_after(f"unpause_channel {TOPIC} a")
    broker.start()
    assert what_comes(broker.port, "a") == {b"1", b"2"}


def test_a_paused_topic_lets_channels_drain_and_holds_what_is_new(
    two_channels: Worker, restart: Callable[[], Broker], start_worker: StartWorker
) -> None:
    two_channels.do(f"pause_topic {TOPIC}")
    with Peer(two_channels.port) as peer:
        peer.publish(TOPIC, b"3", b"4")
    two_channels.kill()
    broker = restart()
    with Peer(broker.port) as a, Peer(broker.port) as fresh:
        a.subscribe(TOPIC, "a", ready=5)
        assert [one.body for one in take(a, 2)] == [b"1", b"2"]
        fresh.subscribe(TOPIC, "fresh", ready=5)  # begins where the topic stands
        fresh.publish(TOPIC, b"5")
        a.expect_nothing()
        fresh.expect_nothing()
    broker.kill()
    worker = start_worker()
    worker.kill_after(f"unpause_topic {TOPIC}")
    broker.start()
    assert what_comes(broker.port, "a") == {b"3", b"4", b"5"}
    assert what_comes(broker.port, "b") == {b"1", b"2", b"3", b"4", b"5"}
    assert what_comes(broker.port, "fresh") == {b"3", b"4", b"5"}


def test_emptying_a_paused_topic_drops_what_no_channel_can_see(
    two_channels: Worker, restart: Callable[[], Broker], start_worker: StartWorker
) -> None:
    two_channels.do(f"pause_topic {TOPIC}")
    with Peer(two_channels.port) as peer:
        peer.publish(TOPIC, b"3", b"4")
        two_channels.do(f"empty_topic {TOPIC}")
        peer.publish(TOPIC, b"5")
    two_channels.kill_after(f"unpause_topic {TOPIC}")
    broker = restart()
    assert what_comes(broker.port, "a") == {b"1", b"2", b"5"}
    broker.restart(kill=True)
    assert what_comes(broker.port, "b") == {b"1", b"2", b"5"}


def test_emptying_a_topic_without_channels(
    start_worker: StartWorker, restart: Callable[[], Broker]
) -> None:
    worker = start_worker()
    with Peer(worker.port) as peer:
        peer.publish(TOPIC, b"1", b"2")
    worker.kill_after(f"empty_topic {TOPIC}")
    broker = restart()
    assert what_comes(broker.port, "a") == set()


def test_an_emptied_channel_is_empty_and_the_other_one_is_not(
    two_channels: Worker, restart: Callable[[], Broker]
) -> None:
    with Peer(two_channels.port) as a:
        a.send(dpub(TOPIC, 1500, b"delayed"))
        a.expect_ok()
        a.publish(TOPIC, b"3")
        a.subscribe(TOPIC, "a", ready=2)
        in_flight, asleep = take(a, 2, finish=False)
        a.send(req(asleep.id, 1500))
        a.expect_message(b"3")
        two_channels.do(f"empty_channel {TOPIC} a")
        a.send(fin(in_flight.id))
        a.expect_error(f"E_FIN_FAILED FIN {in_flight.id.decode()} failed ID not in flight")
    two_channels.kill_after(f"empty_channel {TOPIC} a")
    broker = restart()
    with Peer(broker.port) as a, Peer(broker.port) as b:
        b.subscribe(TOPIC, "b", ready=10)
        a.subscribe(TOPIC, "a", ready=10)
        assert {one.body for one in take(b, 4)} == {b"1", b"2", b"3", b"delayed"}
        # what was delayed and requeued is over by now, and was emptied from one channel only
        assert bodies_until(a, TOPIC, broker.port) == set()


def test_what_was_delayed_behind_an_emptying_comes(
    two_channels: Worker, restart: Callable[[], Broker]
) -> None:
    two_channels.do(f"empty_channel {TOPIC} a")
    with Peer(two_channels.port) as peer:
        peer.send(dpub(TOPIC, 300, b"delayed"))
        peer.expect_ok()
    two_channels.kill()
    broker = restart()
    with Peer(broker.port) as a:
        a.subscribe(TOPIC, "a", ready=10)
        assert [one.body for one in take(a, 1)] == [b"delayed"]


def test_a_deleted_topic_is_gone_and_its_name_begins_anew(
    two_channels: Worker, restart: Callable[[], Broker], connect: Connect
) -> None:
    with Peer(two_channels.port) as peer:
        peer.send(dpub(TOPIC, 200, b"delayed"))
        peer.expect_ok()
        peer.subscribe(TOPIC, "a", ready=5)
        ids = {one.id for one in take(peer, 2, finish=False)}
        two_channels.do(f"delete_topic {TOPIC}")
        peer.expect_closed()
    with Peer(two_channels.port) as peer:
        peer.publish(TOPIC, b"3")  # a new topic of that name
    two_channels.kill()
    broker = restart()
    with Peer(broker.port) as peer:
        peer.subscribe(TOPIC, "a", ready=5)
        delivery = peer.expect_message(b"3")
        assert delivery.id not in ids
        peer.send(fin(delivery.id))
        assert bodies_until(peer, TOPIC, broker.port) == set()
    assert what_comes(broker.port, "b") == set()


@pytest.mark.parametrize("place", ["state.write", "state.written", "state.sync", "state.synced"])
@pytest.mark.parametrize("order", [f"delete_topic {TOPIC}", f"delete_channel {TOPIC} a"])
def test_a_kill_while_it_is_deleted_leaves_all_or_nothing(
    data_path: Path,
    start_worker: StartWorker,
    restart: Callable[[], Broker],
    order: str,
    place: str,
) -> None:
    """Never a topic that is known and has lost its log: its ids would be given again."""
    worker = start_worker()
    worker.do(f"load {TOPIC} a", f"load {TOPIC} b")
    with Peer(worker.port) as peer:
        peer.publish(TOPIC, b"1", b"2")
        peer.subscribe(TOPIC, "a", ready=2)
        ids = {one.body: one.id for one in take(peer, 2)}
    worker.process.terminate()
    worker.close()
    worker = start_worker(f"{place}=kill")
    worker.kill_after(order)
    broker = restart()
    with Peer(broker.port) as peer:
        peer.subscribe(TOPIC, "b", ready=5)
        got = bodies_until(peer, TOPIC, broker.port)
    assert got in ([set(), {b"1", b"2"}] if "topic" in order else [{b"1", b"2"}])
    with Peer(broker.port) as peer:
        peer.publish(TOPIC, b"3")
        peer.subscribe(TOPIC, "b", ready=5)
        assert peer.expect_message(b"3").id not in ids.values()


@pytest.mark.parametrize("order", [f"delete_topic {TOPIC}", f"delete_channel {TOPIC} a"])
def test_a_kill_before_the_files_went_leaves_nothing_behind(
    data_path: Path, start_worker: StartWorker, restart: Callable[[], Broker], order: str
) -> None:
    worker = start_worker()
    worker.do(f"load {TOPIC} a", f"load {TOPIC} b")
    with Peer(worker.port) as peer:
        peer.publish(TOPIC, b"1", b"2")
    worker.do(f"empty_channel {TOPIC} a")  # so that there is a journal
    worker.kill()
    topic_path = data_path / "topics" / TOPIC
    left = topic_path if "topic" in order else topic_path / "channels" / "a"
    worker = start_worker("removal.drop=kill")
    worker.kill_after(order)
    assert left.is_dir()
    broker = restart()
    assert not left.exists()
    assert what_comes(broker.port, "a") == set()
    assert broker.stop() == 0


def test_an_ephemeral_channel_is_gone_after_a_kill_and_the_other_one_is_not(
    two_channels: Worker, restart: Callable[[], Broker]
) -> None:
    with Peer(two_channels.port) as watch:
        watch.subscribe(TOPIC, "watch#ephemeral", ready=1)
        watch.publish(TOPIC, b"3", b"4")
        watch.expect_message(b"3")
        two_channels.kill()
    broker = restart()
    assert what_comes(broker.port, "watch#ephemeral") == set()
    assert what_comes(broker.port, "a") == {b"1", b"2", b"3", b"4"}


def test_an_ephemeral_channel_that_is_far_behind_drops_the_oldest(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("--mem-queue-size=10")
    with Peer(broker.port) as watch, Peer(broker.port) as keeps:
        watch.subscribe(TOPIC, "watch#ephemeral")
        keeps.subscribe(TOPIC, "keeps")
        bodies = [b"%d" % number for number in range(50)]
        watch.publish(TOPIC, *bodies)
        watch.send(b"RDY 100\n")
        keeps.send(b"RDY 100\n")
        assert [one.body for one in take(keeps, 50)] == bodies
        assert [one.body for one in take(watch, 10)] == bodies[-10:]


@pytest.mark.parametrize("channels", [("a", "b"), ("a", "b#ephemeral")])
def test_an_ephemeral_topic_begins_anew_with_ids_of_its_own(
    start_broker: StartBroker, channels: tuple[str, str]
) -> None:
    broker = start_broker(verb="serve")
    topic = "news#ephemeral"
    ids: set[bytes] = set()
    for _ in range(2):
        with Peer(broker.port) as first, Peer(broker.port) as second:
            first.subscribe(topic, channels[0], ready=10)
            second.subscribe(topic, channels[1], ready=10)
            first.publish(topic, b"1", b"2")
            got = take(second, 2, finish=False)
            assert {one.id for one in take(first, 2, finish=False)} == {one.id for one in got}
            assert not ids & {one.id for one in got}
            ids |= {one.id for one in got}
            broker.restart(kill=True)
    # nothing of it is known any more
    assert what_comes(broker.port, "a", topic) == set()


ORDERS = [
    f"delete_topic {TOPIC}",
    f"delete_topic {TOPIC}",
    f"delete_channel {TOPIC} a",
    f"delete_channel {TOPIC} b",
    f"empty_channel {TOPIC} a",
    f"empty_topic {TOPIC}",
    f"pause_topic {TOPIC}",
    f"unpause_topic {TOPIC}",
]


@pytest.mark.parametrize("durability", ["synced", "written", "memory"])
def test_no_id_has_two_bodies_whatever_is_deleted_and_killed(
    start_worker: StartWorker, durability: str
) -> None:
    rng = random.Random(durability)
    bodies: dict[bytes, bytes] = {}
    for life in range(3):
        worker = start_worker(durability=durability)
        for step in range(4):
            worker.do(f"load {TOPIC} a", f"load {TOPIC} b")
            with Peer(worker.port) as peer:
                peer.publish(TOPIC, *(b"%d %d %d" % (life, step, n) for n in range(5)))
                peer.send(dpub(TOPIC, 50, b"%d %d delayed" % (life, step)))
                peer.expect_ok()
                peer.subscribe(TOPIC, rng.choice("ab"), ready=50)
                for delivery in what_comes_soon(peer):
                    assert bodies.setdefault(delivery.id, delivery.body) == delivery.body
                    if rng.random() < 0.5:
                        peer.send(fin(delivery.id))
            if step < 3:
                worker.do(rng.choice(ORDERS))
        worker.send(rng.choice(ORDERS))
        time.sleep(rng.uniform(0, 0.02))
        worker.kill()
    assert len(bodies) > 20


def what_comes_soon(peer: Peer) -> Iterator[Delivery]:
    with peer.patience(0.07):
        while True:
            try:
                frame = peer.next_frame()
            except Quiet:
                return
            assert frame.kind == MESSAGE, frame
            yield decode_delivery(frame.data)
