"""kill -9 under load, again and again on one directory: at random moments and at every failpoint.

Publishers and consumers are at work (see `tests/support/workload.py`) when the broker is killed;
it is started again on the same directory, and so on. In the end every message that was answered at
`synced` or `written` has been delivered to every channel; what was finished more than 100 ms before
a kill never came back; no id had two bodies, at any durability; nothing came before its time.

`make kills` does it 200 times. `PENSTOCK_KILLS` says how often, `PENSTOCK_SEED` which kills:

    PENSTOCK_SEED=7 PENSTOCK_KILLS=50 python -m pytest -s tests/integration/test_kills.py
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from penstock import failpoint
from tests.support.broker import Broker, BrokerDied
from tests.support.fixtures import StartBroker
from tests.support.ledger import Ledger, make_body
from tests.support.wire import Peer, fin
from tests.support.workload import NEW_TOPICS, TopicPlan, Workload

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("PENSTOCK_KILLS", "12"))
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))

SETTINGS = """
segment_bytes_max = "64KiB"
disk_reserve_bytes = "1MiB"
partitions = 2
retain_hours = 0

[topics.orders]
partitions = 1
durability = "synced"

[topics.events]
partitions = 3
durability = "written"

[topics.hot]
durability = "memory"
"""
PLANS = (
    TopicPlan("orders", consumers=2),
    TopicPlan("events", publishers=2),
    TopicPlan("hot", channels=("a",), survives=False),
)
SURVIVING = [plan.name for plan in PLANS if plan.survives]

# where a broker at work on a directory passes, the most telling first; the others are for a first
# start (see test_storage_kills), or need a disk that is full or a log that ended badly
PLACES = [
    "commit.written",
    "commit.durable",
    "commit.answer",
    "journals.written",
    "log.written",
    "state.written",
    "log.synced",
    "journal.written",
    "log.sealed",
    "synced_end.written",
    "checkpoint.rename",
    "manifest.renamed",
]
ELSEWHERE = ("format.", "reserve.", "removal.")  # see test_storage_kills and test_by_hand
PLACES += [
    place for place in failpoint.PLACES if place not in PLACES and not place.startswith(ELSEWHERE)
]
assert {*PLACES} <= failpoint.PLACES.keys(), "a place has another name now"
RUN_SECONDS_MAX = 1.2
# housekeeping looks at a log twice, ten seconds apart; a redo file is in use for five seconds
LONGER_SECONDS = {"log.drop": 30.0, "redo.caught_up": 10.0}
assert LONGER_SECONDS.keys() <= failpoint.PLACES.keys()
DRAIN_SECONDS_MAX = 90.0


def plan_of(number: int, rng: random.Random) -> str:
    """Every other kill is at a failpoint: each once before any comes again, then later ones."""
    if number % 2 == 0:
        return ""
    at = (number // 2) % len(PLACES)
    first_round = number // 2 < len(PLACES)
    count = 1 if first_round else rng.choice([1, 2, 5, 30])
    return f"{PLACES[at]}:{count}=kill"


def run_until_killed(broker: Broker, ledger: Ledger, name: str, rng: random.Random) -> bool:
    """One run, from start to kill; whether its failpoint ended it."""
    armed = plan_of(int(name), rng)
    broker.env[failpoint.VARIABLE] = armed
    try:
        broker.start()
    except BrokerDied:
        assert armed, "it was not told to die"
        ledger.killed(0, 0)
        return True
    work = Workload(ledger, PLANS, broker.port, name, rng.getrandbits(32))
    work.start()
    longest = LONGER_SECONDS.get(armed.partition(":")[0], RUN_SECONDS_MAX)
    until = time.monotonic() + (longest if armed else rng.uniform(0.1, longest))
    while broker.running and time.monotonic() < until:
        time.sleep(0.005)
    by_itself = not broker.running
    in_order = False
    if armed and not by_itself:
        code = broker.stop()  # some places are passed only then
        in_order = code == 0
        by_itself = not in_order
    else:
        if not by_itself and rng.random() < 0.3:
            os.kill(broker.pid, signal.SIGTERM)  # a stop in order that is cut short
            time.sleep(rng.uniform(0, 0.1))
        broker.kill()
    work.stopping.set()
    work.join()
    if in_order:
        ledger.stopped()
    else:
        ledger.killed(work.alive_at, work.late_seconds())
    return by_itself


def drain(broker: Broker, ledger: Ledger) -> None:
    """Deliver what is owed, and finish all of it."""
    work = Workload(ledger, PLANS, broker.port, "drain", SEED)
    work.quiet.set()
    work.start(publish=False)
    until = time.monotonic() + DRAIN_SECONDS_MAX
    while ledger.missing(SURVIVING) and time.monotonic() < until and not ledger.wrongs:
        time.sleep(0.05)
    work.stopping.set()
    work.join()
    missing = ledger.missing(SURVIVING)
    assert not missing, f"lost: answered and not finished within {DRAIN_SECONDS_MAX} s: {missing}"


def take_from_new_topics(broker: Broker, ledger: Ledger) -> None:
    """Topics that were made while the broker was being killed have what was published to them."""
    for channel in [one for one in ledger.channels.values() if one.topic.startswith(NEW_TOPICS)]:
        left = ledger.answered.get(channel.topic, set()) - channel.finishing
        if left:
            with Peer(broker.port) as peer:
                peer.subscribe(channel.topic, channel.name, ready=1)
                delivery = peer.expect_message(*left)
                ledger.delivered(channel, delivery)
                peer.send(fin(delivery.id))


def look_for_more(broker: Broker, ledger: Ledger) -> None:
    """All was finished: it does not come back after a stop in order, and new messages come."""
    for plan in PLANS:
        body = make_body(f"{plan.name}/last", 10)
        with Peer(broker.port) as peer:
            peer.publish(plan.name, body)
        for name in plan.channels:
            channel = ledger.channel(plan.name, name)
            with Peer(broker.port) as peer:
                peer.subscribe(plan.name, name, ready=1)
                while body not in channel.delivered:
                    delivery = peer.expect_message()
                    ledger.delivered(channel, delivery)
                    peer.send(fin(delivery.id))


@pytest.fixture
def broker(tmp_path: Path, start_broker: StartBroker) -> Broker:
    """Not started yet."""
    settings = tmp_path / "penstock.toml"
    settings.write_text(SETTINGS)
    return start_broker("--config", str(settings), verb="serve", start=False)


def test_a_stop_in_order_under_load(broker: Broker) -> None:
    """SIGTERM: what was answered is there, and nothing of what was finished comes back."""
    ledger = Ledger()
    for name in ("first", "second"):
        broker.start()
        work = Workload(ledger, PLANS, broker.port, name, SEED)
        work.start()
        enough = len(ledger.answered.get("orders", ())) + 500
        while len(ledger.answered.get("orders", ())) < enough and not ledger.wrongs:
            time.sleep(0.01)
        assert broker.stop() == 0
        work.stopping.set()
        work.join()
        ledger.stopped()
    broker.start()
    drain(broker, ledger)
    take_from_new_topics(broker, ledger)
    assert not ledger.wrongs, "\n".join(ledger.wrongs)


def test_kills(broker: Broker) -> None:
    print(f"reproduce with PENSTOCK_SEED={SEED} PENSTOCK_KILLS={KILLS}")
    ledger = Ledger()
    rng = random.Random(SEED)
    reached: dict[str, int] = {}
    for number in range(KILLS):
        by_itself = run_until_killed(broker, ledger, str(number), rng)
        where = broker.env[failpoint.VARIABLE].partition("=")[0]
        if by_itself:
            place = where.partition(":")[0]
            reached[place] = reached.get(place, 0) + 1
        print(f"{number}: {where or 'random'}{'' if by_itself or not where else ', not passed'}")
        assert "Traceback" not in broker.log, broker.tail()
        assert not ledger.wrongs, "\n".join([f"after kill {number}, {where}:", *ledger.wrongs])
    broker.env[failpoint.VARIABLE] = ""
    broker.start()
    drain(broker, ledger)
    take_from_new_topics(broker, ledger)
    assert broker.stop() == 0
    ledger.stopped()
    broker.start()
    look_for_more(broker, ledger)
    assert "Traceback" not in broker.log, broker.tail()
    assert not ledger.wrongs, "\n".join(ledger.wrongs)
    answered = sum(map(len, ledger.answered.values()))
    print(f"{answered} answered, {ledger.deliveries} delivered, killed at {reached}")
    assert answered > 50 * KILLS, "hardly any work was done"
