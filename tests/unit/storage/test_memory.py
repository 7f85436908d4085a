"""The memory engine where several threads use it: topics are dropped off the loop."""

import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from penstock.storage.memory import MemoryEngine

TOPICS = 2000


@pytest.fixture
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_many_switches")
def test_topics_are_made_while_others_are_dropped() -> None:
    engine = MemoryEngine()
    for number in range(TOPICS):
        engine.log(f"old{number}", 0, 0)
    failures: list[Exception] = []

    def drop() -> None:
        try:
            for number in range(TOPICS):
                engine.drop_topic(f"old{number}")
        except RuntimeError as error:
            failures.append(error)

    thread = Thread(target=drop)
    thread.start()
    made = [engine.log(f"new{number}", 0, 0) for number in range(TOPICS)]
    thread.join()
    assert not failures
    assert [engine.log(f"new{number}", 0, 0) for number in range(TOPICS)] == made
