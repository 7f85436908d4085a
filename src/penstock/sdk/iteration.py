"""Loops over a consumer: one task's turn through the messages, or one thread's."""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

from penstock.sdk.message import Message


class Settleable(Protocol):
    """A message as a loop sees it."""

    @property
    def settled(self) -> bool: ...

    def finish(self) -> object: ...

    def requeue(self, delay: float, /) -> object: ...


S = TypeVar("S", bound=Settleable)


class Loop(Generic[S]):
    """What one loop has in hand; with auto_finish, asking for a message finishes the one before."""

    __slots__ = ("_auto_finish", "_in_hand")

    def __init__(self, *, auto_finish: bool) -> None:
        self._auto_finish = auto_finish
        self._in_hand: S | None = None

    @property
    def at_work(self) -> bool:
        """Whether the loop's body has a message that is not settled."""
        return self._in_hand is not None and not self._in_hand.settled

    def finish(self) -> None:
        """The loop's body is done with it."""
        message, self._in_hand = self._in_hand, None
        if message is not None and self._auto_finish and not message.settled:
            message.finish()

    def give_back(self) -> None:
        """The loop was left: what it had in hand was not worked through."""
        message, self._in_hand = self._in_hand, None
        if message is not None and self._auto_finish and not message.settled:
            message.requeue(0)


class Source(Protocol):
    """What an iteration asks of its consumer."""

    async def next_message(self) -> Message | None: ...


class Iteration(Loop[Message]):
    """One task's ``async for``."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Source, *, auto_finish: bool) -> None:
        super().__init__(auto_finish=auto_finish)
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._in_hand is not None:
            self.finish()
        message = self._in_hand = await self._consumer.next_message()
        if message is None:
            raise StopAsyncIteration
        return message
