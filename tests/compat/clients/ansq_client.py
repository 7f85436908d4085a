"""ansq behind the dialogue of `tests/compat/driver.py`; runs alone, on asyncio."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import ansq
from ansq.tcp.connection import NSQConnection, open_connection
from ansq.tcp.reader import Reader
from ansq.tcp.types import NSQErrorSchema, NSQMessage
from ansq.tcp.writer import Writer


def say(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event} | more) + "\n")
    sys.stdout.flush()


async def orders() -> AsyncIterator[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        order["bodies"] = [base64.b64decode(body) for body in order["bodies"]]
        yield order


async def produce(job: dict[str, Any]) -> None:
    writer: Writer | None = await new_writer(job)
    say("ready")
    async for order in orders():
        if order["do"] == "stop":
            break
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                writer = writer or await new_writer(job)
                answers = await publish(writer, job["topic"], order)
            bad = [answer for answer in answers if isinstance(answer, NSQErrorSchema)]
            say("failed", why=repr(bad)) if bad else say("published")
        except Exception as error:  # noqa: BLE001  the test decides what a failure means
            say("failed", why=repr(error))
            writer = None
    if writer is not None:
        await writer.close()


# ansq 0.3 reconnects a writer, but a publish that waits for it goes out before the new connection
# has said IDENTIFY, and takes its answer: neither ends, whatever the broker. So its users give up
# on a writer that does not answer, and make another.
PATIENCE_SECONDS = 3


async def new_writer(job: dict[str, Any]) -> Writer:
    return await ansq.create_writer(nsqd_tcp_addresses=[f"{job['host']}:{job['port']}"])


async def publish(writer: Writer, topic: str, order: dict[str, Any]) -> list[Any]:
    if order["do"] == "publish":
        return [await writer.pub(topic, body) for body in order["bodies"]]
    if order["do"] == "mpublish":
        return [await writer.mpub(topic, *order["bodies"])]
    [body] = order["bodies"]
    return [await writer.dpub(topic, body, order["delay_ms"])]


async def hold(message: NSQMessage, body: str) -> None:
    await asyncio.sleep(1.2)
    await message.touch()
    await asyncio.sleep(1.2)
    await message.fin()
    say("finished", body=body)


async def handle(message: NSQMessage, held: set[asyncio.Task[None]]) -> None:
    body = base64.b64encode(message.body).decode()
    say("message", body=body, attempts=message.attempts)
    if message.body.startswith(b"requeue") and message.attempts == 1:
        await message.req(100)
    elif message.body.startswith(b"touch"):
        task = asyncio.create_task(hold(message, body))
        held.add(task)
        task.add_done_callback(held.discard)
    else:
        await message.fin()
        say("finished", body=body)


async def consume(job: dict[str, Any]) -> None:
    # ansq's reader keeps RDY at 1 ("Update max_in_flight not implemented yet"); its connection,
    # which it offers too, takes more.
    address = f"{job['host']}:{job['port']}"
    source: Reader | NSQConnection
    if job["max_in_flight"] > 1:
        source = connection = await open_connection(job["host"], job["port"])
        await connection.subscribe(job["topic"], job["channel"], job["max_in_flight"])
        messages: AsyncIterator[NSQMessage] = connection.messages()
    else:
        source = reader = await ansq.create_reader(
            topic=job["topic"],
            channel=job["channel"],
            nsqd_tcp_addresses=None if job["lookup"] else [address],
            lookupd_http_addresses=[job["lookup"]] if job["lookup"] else None,
        )
        messages = reader.messages()
    say("ready")

    held: set[asyncio.Task[None]] = set()

    async def loop() -> None:
        async for message in messages:
            await handle(message, held)

    consuming = asyncio.create_task(loop())
    async for order in orders():
        if order["do"] == "stop":
            break
    consuming.cancel()
    await source.close()


if __name__ == "__main__":
    JOB = json.loads(sys.argv[1])
    asyncio.run((produce if JOB["role"] == "producer" else consume)(JOB))
