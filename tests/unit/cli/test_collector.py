"""What is alive is out of the collector's sight, and cycles go all the same, once an hour."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import cast

import pytest

from penstock.cli.collector import COLLECT_EVERY_S, FREEZE_EVERY_S, Collector


class Loop:
    """A loop whose time the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: object) -> asyncio.TimerHandle:
        assert delay == FREEZE_EVERY_S
        assert callable(call)
        self.call = call
        return cast("asyncio.TimerHandle", self)

    def cancel(self) -> None:
        del self.call


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    collector = Collector(cast("asyncio.AbstractEventLoop", loop))
    collector.start()
    yield loop
    collector.stop()
    assert not gc.get_freeze_count()
    assert not hasattr(loop, "call")


def test_what_is_alive_is_out_of_sight(loop: Loop) -> None:
    assert gc.get_freeze_count()
    made = [Cycle() for _ in range(1000)]
    before = gc.get_freeze_count()
    loop.call()
    assert gc.get_freeze_count() >= before + len(made)


def test_cycles_go_once_an_hour(loop: Loop) -> None:
    gone = weakref.ref(Cycle())
    loop.call()
    gc.collect()
    assert gone() is not None
    loop.now = COLLECT_EVERY_S
    loop.call()
    assert gone() is None
