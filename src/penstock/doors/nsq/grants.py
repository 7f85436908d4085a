"""What an authenticated client may do, and until when.

Made once per answer of an auth server or token file; asked once per connection, topic and channel.
The rule is nsqd's: some authorization has the permission, its topic pattern matches, and one of its
channel patterns does. A publish has channel "", so an authorization whose channel patterns do not
match the empty text, or that has none, does not even allow publishing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from penstock.doors.nsq.gojson import encode
from penstock.doors.nsq.patterns import compile_go

SUBSCRIBE, PUBLISH = "subscribe", "publish"


@dataclass(frozen=True, slots=True)
class Authorization:
    """One line of what a client may do, its patterns compiled."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    @classmethod
    def of(cls, topic: str, channels: Iterable[str], permissions: Iterable[str]) -> Self:
        """ValueError for a pattern that is none, or a permission that nobody knows."""
        words = frozenset(permissions)
        for word in words - {SUBSCRIBE, PUBLISH}:
            raise ValueError(f"unknown permission '{word}'; there are {SUBSCRIBE} and {PUBLISH}")
        return cls(compile_go(topic), tuple(map(compile_go, channels)), words)

    def allows(self, topic: str, channel: str) -> bool:
        return (
            (SUBSCRIBE if channel else PUBLISH) in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) for pattern in self.channels)
        )


class Grants:
    """One client's authorizations. ``expires_at_ns`` is on the monotonic clock."""

    __slots__ = ("identity", "identity_url", "_authorizations", "_expires_at_ns")

    def __init__(
        self,
        identity: str,
        identity_url: str,
        authorizations: tuple[Authorization, ...],
        expires_at_ns: int,
    ) -> None:
        self.identity = identity
        self.identity_url = identity_url
        self._authorizations = authorizations
        self._expires_at_ns = expires_at_ns

    def __bool__(self) -> bool:
        """Whether there is anything to go by."""
        return bool(self._authorizations)

    def allows(self, topic: str, channel: str) -> bool:
        """Whether it may subscribe to the channel or, with channel "", publish to the topic."""
        return any(one.allows(topic, channel) for one in self._authorizations)

    def expired(self, now_ns: int) -> bool:
        """Whether it must be asked for again; ``now_ns`` on the monotonic clock."""
        return now_ns > self._expires_at_ns

    def answer(self) -> bytes:
        """AUTH's response, as nsqd writes it."""
        return encode(
            {
                "identity": self.identity,
                "identity_url": self.identity_url,
                "permission_count": len(self._authorizations),
            }
        )
