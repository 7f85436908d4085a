"""A host whose loop and disk threads are in the test's hands: nothing runs until it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

from penstock.broker.broker import BrokerOptions, TopicPolicy
from penstock.broker.lanes import Turn
from penstock.broker.topic import Topic
from penstock.errors import DiskFull, PenstockError
from penstock.runtime.host import Host, HostOptions
from penstock.storage.memory import MemoryEngine, MemoryState
from penstock.storage.port import Engine
from penstock.testing import FakeClock

T = TypeVar("T")


class HandPool:
    """Jobs wait in a row until `run` is called."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def submit(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        self.jobs.append(partial(self._work, job, then))

    @staticmethod
    def _work(job: Callable[[], T], then: Callable[[T | None, Exception | None], None]) -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = job()
        except Exception as error:  # noqa: BLE001  as the real one: the loop knows what it means
            failure = error
        then(result, failure)

    def run(self, count: int = 1) -> None:
        for _ in range(count):
            self.jobs.pop(0)()


class _Timer:
    """A call that waits for its time."""

    def __init__(self, loop: HandLoop, at_s: float, call: Callable[[], object]) -> None:
        self.loop = loop
        self.at_s = at_s
        self.call = call

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)


class HandLoop:
    """Callbacks wait until `turn`, timers until time `pass`es."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.soon: list[Callable[[], object]] = []
        self.timers: list[_Timer] = []
        self.now_s = 0.0

    def call_soon(self, call: Callable[[], object]) -> None:
        self.soon.append(call)

    def call_later(self, delay_s: float, call: Callable[[], object]) -> _Timer:
        timer = _Timer(self, self.now_s + delay_s, call)
        self.timers.append(timer)
        return timer

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now_s += seconds
        for timer in sorted(self.timers, key=lambda one: one.at_s):
            if timer in self.timers and timer.at_s <= self.now_s:
                self.timers.remove(timer)
                timer.call()


class FullState(MemoryState):
    """A state that finds no room while ``full``."""

    full = False

    def sync(self) -> None:
        if self.full:
            raise DiskFull("no room")
        super().sync()


class Rig:
    """A host by hand."""

    def __init__(self, durability: str = "synced", engine: Engine | None = None) -> None:
        self.clock = FakeClock(start_ns=1_000_000_000_000)
        self.loop = HandLoop(self.clock)
        self.pool = HandPool()
        self.engine = engine if engine is not None else MemoryEngine()
        options = HostOptions(BrokerOptions(TopicPolicy(durability=durability)))
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.host = Host(options, self.engine, self.pool, self.clock, loop, seed=1)
        self.host.start()

    def topic(self, name: str) -> Topic:
        topic = self.host.topic(name, _unexpected)
        assert topic is not None
        return topic

    def publish(self, topic: Topic, *bodies: bytes) -> Turn:
        turn = topic.publish(bodies, sum(map(len, bodies)), self.clock.now_ns())
        self.host.wake()
        return turn

    def settle(self) -> None:
        """Until nothing is left to do, short of time passing."""
        while self.loop.soon or self.pool.jobs:
            self.loop.turn()
            self.pool.run(len(self.pool.jobs))


def _unexpected(topic: Topic | None, error: PenstockError | None) -> None:
    raise AssertionError(f"called back with {topic}, {error}")


def is_over(turn: Turn) -> bool:
    """Asked of a function, so that a type checker does not take the first answer for good."""
    return turn.over
