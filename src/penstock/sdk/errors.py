"""What can go wrong for a program that uses the SDK, and what it then knows about its messages.

Everything is under ``PenstockError``. A failed publish always says which of three things is true of
its messages: they were *not kept* (publish them again once the cause is gone), they *may have been
kept* (publishing them again can make duplicates), or, in the middle of a ``publish_many``, how many
of each. The counts are attributes, so that a program can decide without reading the sentence.
"""

from __future__ import annotations

from penstock.errors import OperatingError, PenstockError


class BrokerUnreachable(OperatingError):
    """No broker could be connected to at any of the addresses."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=True)


class Refused(OperatingError):
    """The broker answered with an error; ``code`` is NSQ's."""

    def __init__(self, message: str, *, code: str, retry: bool = False) -> None:
        super().__init__(message, retry=retry)
        self.code = code


class PublishError(OperatingError):
    """Messages were not acknowledged: so many kept, so many not, so many may have been kept."""

    def __init__(
        self,
        message: str,
        *,
        kept: int = 0,
        not_kept: int = 0,
        unknown: int = 0,
        retry: bool = True,
    ) -> None:
        super().__init__(message, retry=retry)
        self.kept = kept
        self.not_kept = not_kept
        self.unknown = unknown


class PublishRefused(PublishError):
    """The broker refused the messages and kept none of them; ``code`` is NSQ's."""

    def __init__(self, message: str, *, code: str, not_kept: int, retry: bool = False) -> None:
        super().__init__(message, not_kept=not_kept, retry=retry)
        self.code = code


class PublishLost(PublishError):
    """The connection, or the producer, ended before the broker's answer."""


class PublishTimeout(PublishError):
    """No broker acknowledged the messages in time."""


class MessageInvalid(PenstockError, ValueError):
    """A message, topic, channel or delay that no broker would take; nothing was sent."""


class AlreadySettled(PenstockError):
    """A message was finished or requeued a second time: a bug in the program."""


class ClientClosed(PenstockError):
    """A client, producer or consumer was used before it was started or after it was closed."""
