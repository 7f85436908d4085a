"""Room goes to those who wait in the order of asking, and never twice."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest

from penstock.sdk.room import Room


class Full:
    """What fills the room."""

    pending_bytes = 0


class Late(Exception):
    pass


def in_loop(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def queue(room: Room, full: Full, *sizes: int, deadline: float = 1.0) -> list[asyncio.Task[None]]:
    async def add(size: int) -> None:
        await room.wait(size, deadline)
        full.pending_bytes += size

    return [asyncio.create_task(add(size)) for size in sizes]


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@in_loop
async def test_as_many_as_fit_are_let_in_at_once_and_in_order() -> None:
    full = Full()
    room = Room(full, 10)
    room.open()
    full.pending_bytes = 10
    tasks = queue(room, full, 4, 4, 4, 4)
    await turns()
    assert len(room) == 4
    assert room.free_below == 0

    full.pending_bytes = 0
    room.give()
    # Promised, though none of them has run: what is given now would be given twice.
    room.give()
    assert len(room) == 1
    await turns()
    assert [task.done() for task in tasks] == [True, True, True, False]
    assert full.pending_bytes == 12

    full.pending_bytes = 0
    room.give()
    await turns()
    assert tasks[3].done()
    assert room.free_below == 10


@in_loop
async def test_who_gives_up_holds_nobody_back() -> None:
    full = Full()
    room = Room(full, 10)
    room.open()
    full.pending_bytes = 10
    waiting, promised, last = queue(room, full, 10, 10, 10)
    await turns()
    waiting.cancel()
    await turns()
    full.pending_bytes = 0
    room.give()
    promised.cancel()  # before it has run
    await turns()
    assert last.done()
    assert full.pending_bytes == 10
    assert room.free_below == 10


@in_loop
async def test_who_waits_too_long_is_told() -> None:
    full = Full()
    room = Room(full, 10)
    room.open()
    full.pending_bytes = 10
    (early,) = queue(room, full, 1, deadline=1.0)
    (later,) = queue(room, full, 1, deadline=2.0)
    await turns()
    room.expire(1.5, Late)
    await turns()
    with pytest.raises(Late):
        early.result()
    assert not later.done()
    room.close(Late)
    await turns()
    with pytest.raises(Late):
        later.result()
    full.pending_bytes = 0
    assert room.free_below == 0
