"""Penstock: a durable message queue for people who work in Python.

What programs use is named here and loaded at first use, so that ``import penstock`` costs nothing
to the broker and to the command line: ``penstock.Client``, ``Producer``, ``Consumer``, ``Message``
and the exceptions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.errors import ConfigError, OperatingError, PenstockError
    from penstock.sdk import (
        AlreadySettled,
        BrokerUnreachable,
        Client,
        ClientClosed,
        Consumer,
        Message,
        MessageInvalid,
        Producer,
        PublishError,
        PublishLost,
        PublishRefused,
        PublishTimeout,
        Refused,
    )

__all__ = [
    "Client",
    "Producer",
    "Consumer",
    "Message",
    "PenstockError",
    "OperatingError",
    "ConfigError",
    "PublishError",
    "PublishRefused",
    "PublishLost",
    "PublishTimeout",
    "BrokerUnreachable",
    "Refused",
    "MessageInvalid",
    "AlreadySettled",
    "ClientClosed",
]

_GENERAL = {"PenstockError", "OperatingError", "ConfigError"}  # not only the SDK's


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    home = "penstock.errors" if name in _GENERAL else "penstock.sdk"
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
