"""Publishers and consumers at work on one broker, until it is gone; what they see is in a `Ledger`.

Each client is a thread with one blocking connection. They do what clients do: single PUBs, some in
flight at once, MPUBs and DPUBs; FIN in any order, REQ with and without delay, messages kept for a
while. A client ends when it is told to or when its connection does; whatever else goes wrong is a
sentence in the ledger.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.ledger import ChannelLedger, Ledger, make_body
from tests.support.wire import (
    ERROR,
    MESSAGE,
    NO_SUCH_ID,
    Closed,
    Delivery,
    Frame,
    Peer,
    Quiet,
    decode_delivery,
    dpub,
    fin,
    mpub,
    pub,
    rdy,
    req,
)

BEHIND_MAX = 3000  # publishers wait for consumers that are further behind
PROBE_TOPIC = "probe"
NEW_TOPICS = "new."
PROBE_PAUSE_SECONDS = 0.005


@dataclass(frozen=True)
class TopicPlan:
    """A topic of the work: how many publishers, and how many consumers on which channels."""

    name: str
    channels: tuple[str, ...] = ("a", "b")
    publishers: int = 1
    consumers: int = 1
    survives: bool = True  # its durability survives kill -9


class Workload:
    """All clients of one run of the broker."""

    def __init__(
        self,
        ledger: Ledger,
        plans: tuple[TopicPlan, ...],
        port: int,
        name: str,
        seed: int,
        *,
        pause_seconds: float = 0,
    ) -> None:
        self.ledger = ledger
        self.plans = plans
        self.port = port
        self.name = name
        self.seed = seed
        self.pause_seconds = pause_seconds  # of a publisher between what it sends
        self.stopping = threading.Event()
        self.quiet = threading.Event()  # consumers finish everything at once, publishers are gone
        self.alive_at = 0.0  # something asked then was answered
        self.latenesses: deque[tuple[float, float]] = deque(maxlen=400)
        self.threads: list[threading.Thread] = []

    # --- life

    def start(self, *, publish: bool = True) -> None:
        self._begin(self._probe)
        if publish:
            self._begin(self._make_topics)
        for plan in self.plans:
            for channel in plan.channels:
                ledger = self.ledger.channel(plan.name, channel)
                for _ in range(plan.consumers):
                    self._begin(self._consume, ledger)
            for _ in range(plan.publishers if publish else 0):
                self._begin(self._publish, plan.name)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()

    def late_seconds(self) -> float:
        """The longest that a probe took in the last second that the broker lived."""
        since = self.alive_at - 1
        return max([took for at, took in self.latenesses if at >= since], default=0.0)

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        rng = random.Random(f"{self.seed} {self.name} {len(self.threads)}")
        number = len(self.threads)
        thread = threading.Thread(target=self._run, args=(work, number, rng, *args), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _run(self, work: Callable[..., None], *args: object) -> None:
        try:
            with Peer(self.port) as peer:
                work(peer, *args)
        except (Closed, OSError):
            pass  # the broker is gone: whoever runs this work knows if that was to be
        except Exception:  # noqa: BLE001  a thread's failure is the test's
            self.ledger.wrong(f"a client of {self.name} failed: {traceback.format_exc()}")

    # --- clients

    def _probe(self, peer: Peer, number: int, rng: random.Random) -> None:
        """Ask for a synced answer again and again: was the broker alive, and how fast was it?"""
        while not self.stopping.wait(PROBE_PAUSE_SECONDS):
            asked_at = time.monotonic()
            peer.publish(PROBE_TOPIC, b"?")
            self.latenesses.append((asked_at, time.monotonic() - asked_at))
            self.alive_at = asked_at

    def _make_topics(self, peer: Peer, number: int, rng: random.Random) -> None:
        """Topics and channels that nobody has used, each for one message."""
        count = 0
        while not self.stopping.wait(rng.uniform(0.01, 0.2) + 10 * self.pause_seconds):
            count += 1
            topic = f"{NEW_TOPICS}{self.name}.{count}"
            with Peer(self.port) as consumer:
                consumer.subscribe(topic, "only", ready=1)
                body = make_body(f"{topic}/only")
                peer.publish(topic, body)
                self.ledger.published(topic, [body])
                channel = self.ledger.channel(topic, "only")
                delivery = consumer.expect_message()
                self.ledger.delivered(channel, delivery)
                self.ledger.finishes(channel, [delivery.body])
                consumer.send(fin(delivery.id), fin(NO_SUCH_ID))
                consumer.expect_error(
                    f"E_FIN_FAILED FIN {NO_SUCH_ID.decode()} failed ID not in flight"
                )
                self.ledger.heard(channel, [delivery.body], [])

    def _publish(self, peer: Peer, number: int, rng: random.Random, topic: str) -> None:
        count = 0
        while not (self.stopping.is_set() or self.quiet.is_set()):
            if self.ledger.behind(topic) > BEHIND_MAX:
                self.stopping.wait(0.01)
                continue
            sent: list[list[bytes]] = []
            commands: list[bytes] = []
            for _ in range(rng.choice([1, 1, 2, 10])):
                kind = rng.choice(["PUB", "PUB", "MPUB", "DPUB"])
                bodies: list[bytes] = []
                for _ in range(rng.randint(1, 40) if kind == "MPUB" else 1):
                    count += 1
                    filler = 60_000 if rng.random() < 0.005 else rng.randint(0, 300)
                    bodies.append(make_body(f"{topic}/{self.name}.{number}/{count}", filler))
                delay_ms = rng.choice([20, 200, 1500]) if kind == "DPUB" else 0
                self.ledger.publishing(bodies, delay_ms)
                if kind == "MPUB":
                    commands.append(mpub(topic, bodies))
                elif kind == "DPUB":
                    commands.append(dpub(topic, delay_ms, bodies[0]))
                else:
                    commands.append(pub(topic, bodies[0]))
                sent.append(bodies)
            peer.send(*commands)
            for bodies in sent:
                peer.expect_ok()
                self.ledger.published(topic, bodies)
            self.stopping.wait(self.pause_seconds)

    def _consume(self, peer: Peer, number: int, rng: random.Random, channel: ChannelLedger) -> None:
        _Consumer(self, peer, rng, channel).run()


class _Consumer:
    """One subscriber: takes what comes, and settles some of it at a time."""

    def __init__(
        self, work: Workload, peer: Peer, rng: random.Random, channel: ChannelLedger
    ) -> None:
        self.work = work
        self.peer = peer
        self.ledger = work.ledger
        self.rng = rng
        self.channel = channel
        self.held: list[Delivery] = []
        self.unheard: deque[tuple[list[bytes], list[bytes]]] = deque()

    def run(self) -> None:
        self.peer.subscribe(self.channel.topic, self.channel.name, ready=self.rng.randint(20, 200))
        while not self.work.stopping.is_set():
            frame = self._frame()
            while frame is not None and len(self.held) < 100:
                self._take(frame)
                frame = self._frame()
            if frame is not None:
                self._take(frame)
            self._settle()

    def _frame(self) -> Frame | None:
        """The next one that comes soon."""
        with self.peer.patience(0.02):
            try:
                return self.peer.next_frame()
            except Quiet:
                return None

    def _take(self, frame: Frame) -> None:
        if frame.kind == MESSAGE:
            delivery = decode_delivery(frame.data)
            self.ledger.delivered(self.channel, delivery)
            self.held.append(delivery)
        elif frame.kind == ERROR and NO_SUCH_ID in frame.data and self.unheard:
            self.ledger.heard(self.channel, *self.unheard.popleft())
        else:
            self.ledger.wrong(f"{self.channel}: {frame}")

    def _settle(self) -> None:
        if not self.held:
            return
        rng = self.rng
        if not self.work.quiet.is_set():
            rng.shuffle(self.held)
        keep = 0 if self.work.quiet.is_set() else rng.choice([0, 0, 5])
        settled, self.held = self.held[keep:], self.held[:keep]
        commands: list[bytes] = []
        finished: list[bytes] = []
        requeued: list[bytes] = []
        for delivery in settled:
            chance = 1.0 if self.work.quiet.is_set() else rng.random()
            if chance < 0.05:
                commands.append(req(delivery.id))
            elif chance < 0.1:
                delay_ms = rng.choice([30, 300, 1500])
                self.ledger.sleeps(self.channel, delivery.body, delay_ms)
                commands.append(req(delivery.id, delay_ms))
                requeued.append(delivery.body)
            else:
                commands.append(fin(delivery.id))
                finished.append(delivery.body)
        if not self.work.quiet.is_set() and rng.random() < 0.2:
            commands.append(rdy(rng.randint(1, 200)))
        # an answer to what comes last says that all before it was heard
        self.ledger.finishes(self.channel, finished)
        self.unheard.append((finished, requeued))
        self.peer.send(*commands, fin(NO_SUCH_ID))
