"""A broker that does by hand what it is told on stdin, until it is killed.

`python -m tests.support.host_worker DIRECTORY DURABILITY` starts a `Server` on port 0 and says
`listening PORT`. Each line `VERB TOPIC [CHANNEL]` is answered with `done` once the broker says that
it is safe, or with `failed WHY`. The verbs are those of the host (`pause_topic`, `empty_channel`,
…) and `load`, which opens a topic or makes a channel. `kill` in front of a line ends the process
with SIGKILL at the moment when `done` would have been said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from penstock.broker.lanes import Turn
from penstock.broker.topic import Topic
from penstock.config import Address, Durability, Settings
from penstock.errors import PenstockError
from penstock.runtime.host import Host
from penstock.server import Server


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def opened(host: Host, name: str) -> Topic:
    made: asyncio.Future[Topic] = asyncio.get_running_loop().create_future()

    def then(topic: Topic | None, error: PenstockError | None) -> None:
        if topic is not None:
            made.set_result(topic)
        else:
            made.set_exception(error or AssertionError("neither topic nor error"))

    topic = host.topic(name, then)
    return topic if topic is not None else await made


async def no_longer_leaving(host: Host, topic: str, channel: str) -> None:
    while True:
        free = asyncio.Event()
        if not host.is_leaving(topic, channel, free.set):
            return
        await free.wait()


async def carry_out(host: Host, verb: str, name: str, channel: str) -> Turn:
    topic = await opened(host, name)
    match verb:
        case "load":
            if channel:
                await no_longer_leaving(host, name, channel)
                topic.channel(channel, host.clock.now_ns())
            return host.state_turn()
        case "pause_topic":
            return host.pause_topic(topic)
        case "unpause_topic":
            return host.unpause_topic(topic)
        case "empty_topic":
            return host.empty_topic(topic)
        case "delete_topic":
            return host.delete_topic(name)
        case "pause_channel":
            return host.pause_channel(topic, channel, paused=True)
        case "unpause_channel":
            return host.pause_channel(topic, channel, paused=False)
        case "empty_channel":
            return host.empty_channel(topic, channel)
        case "delete_channel":
            return host.delete_channel(topic, channel)
    raise AssertionError(verb)


async def over(turn: Turn) -> None:
    """Ask now and then: doors wait for a turn in their own way."""
    while not turn.over:  # noqa: ASYNC110  a turn's waiters are connections
        await asyncio.sleep(0.001)


async def work(directory: str, durability: str) -> None:
    settings = Settings(
        data_path=Path(directory),
        durability=Durability(durability),
        tcp_address=Address("127.0.0.1", 0),
        http_address=None,
        verify=True,
        # a kill must not find what it was told to sync only because time went by
        journal_write_interval_ms=60_000,
        journal_sync_interval_ms=60_000,
    )
    server = Server(settings)
    await server.start()
    say("listening", server.tcp_addresses[0][1])
    assert server.host is not None
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        words = line.split()
        kills = words[0] == "kill"
        verb, name, *channel = words[1:] if kills else words
        turn = await carry_out(server.host, verb, name, "".join(channel))
        await over(turn)
        if kills:
            os.kill(os.getpid(), signal.SIGKILL)
        say("done" if turn.error is None else f"failed {turn.error}")


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
