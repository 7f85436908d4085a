"""The host stops while something is under way: what is not done yet is left for the next start."""

import asyncio
from pathlib import Path
from typing import Any, cast

from penstock import failpoint
from penstock.storage.file.log import FileLog
from penstock.testing import FakeClock
from tests.integration.test_housekeeping import SECOND, House, house, on_a_loop, until


async def all_delayed(home: House) -> int:
    """How many messages are in the ready lane or on their way there."""
    topic = await home.topic()
    partition = topic.partitions[0]
    await until(lambda: partition.move is None)
    ready = partition.ready[0]
    return ready.messages_between(ready.start, ready.durable_end) + len(partition.schedule)


@on_a_loop
async def test_a_move_of_delayed_messages_under_way(tmp_path: Path) -> None:
    clock = FakeClock()
    bugs: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        topic.channel("c", clock.now_ns())
        await home.publish(topic, 20, delay_ns=10 * SECOND)
    async with house(tmp_path / "data", clock) as home:
        topic = await home.topic()
        clock.advance(11)
        home.host.timers.ring()
        await asyncio.sleep(0)  # the blocks that it moves are being read now
        assert topic.partitions[0].move is not None
    assert not bugs
    async with house(tmp_path / "data", clock) as home:
        assert await all_delayed(home) == 20


@on_a_loop
async def test_what_comes_due_while_logs_are_closed(tmp_path: Path) -> None:
    clock = FakeClock()
    bugs: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: bugs.append(context))

    async def comes_due(home: House) -> None:
        writers = home.host.committer.writers
        logs = cast("list[FileLog]", [writer.log for writer in writers.values()])
        await until(lambda: all(log._closed for log in logs))
        clock.advance(11)

    failpoint.arm("clean.write=stall:1.5")  # so long nothing can be written any more
    try:
        async with house(tmp_path / "data", clock) as home:
            topic = await home.topic()
            topic.channel("c", clock.now_ns())
            await home.publish(topic, 20, delay_ns=10 * SECOND)
            task = asyncio.create_task(comes_due(home))
            home.host.timers.ring()  # and again in a second or less
        await task
    finally:
        failpoint.arm("")
    assert not bugs
    async with house(tmp_path / "data", clock) as home:
        assert await all_delayed(home) == 20
