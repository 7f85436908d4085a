"""The broker's settings: one frozen dataclass, and where each value came from.

`settings` says what there is to set, with defaults and reasons; `kinds` how a value is read and
shown; `sources` reads files, environments and flags. Callers import from here. The package reads no
environment and no command line by itself, and does not know what the settings do.
"""

from penstock.config.kinds import (
    Address,
    Durability,
    EventLoop,
    HttpMethod,
    LogLevel,
    TlsClientAuth,
    TlsRequired,
    TlsVersion,
)
from penstock.config.settings import SETTINGS, TOPIC_SETTINGS, Setting, Settings, TopicSettings
from penstock.config.sources import DEFAULT, Loaded, Origin, load, nearest

__all__ = [
    "Address",
    "Durability",
    "EventLoop",
    "HttpMethod",
    "LogLevel",
    "TlsClientAuth",
    "TlsRequired",
    "TlsVersion",
    "SETTINGS",
    "TOPIC_SETTINGS",
    "Setting",
    "Settings",
    "TopicSettings",
    "DEFAULT",
    "Loaded",
    "Origin",
    "load",
    "nearest",
]
