"""``async for`` over a consumer: one task's turn through the messages."""

from __future__ import annotations

from typing import Protocol, Self

from penstock.sdk.message import Message


class Iterated(Protocol):
    """What an iteration asks of its consumer."""

    @property
    def auto_finish(self) -> bool: ...

    async def next_message(self) -> Message | None: ...


class Iteration:
    """One task's ``async for``; with auto_finish, asking for a message finishes the one before."""

    __slots__ = ("_consumer", "_auto_finish", "_in_hand")

    def __init__(self, consumer: Iterated) -> None:
        self._consumer = consumer
        self._auto_finish = consumer.auto_finish
        self._in_hand: Message | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        in_hand = self._in_hand
        if in_hand is not None:
            self._in_hand = None
            if self._auto_finish and not in_hand.settled:
                in_hand.finish()
        self._in_hand = await self._consumer.next_message()
        if self._in_hand is None:
            raise StopAsyncIteration
        return self._in_hand

    @property
    def at_work(self) -> bool:
        """Whether the loop's body has a message that is not settled."""
        return self._in_hand is not None and not self._in_hand.settled

    def give_back(self) -> None:
        """The loop was left: what it had in hand was not worked through."""
        message, self._in_hand = self._in_hand, None
        if message is not None and self._auto_finish and not message.settled:
            message.requeue(0)
