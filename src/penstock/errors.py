"""One tree of errors. Four kinds, never mixed:

- ``PeerError``: the other side broke the protocol. It has the code that goes on the wire and says
  whether the connection must close; the door answers, and closes if and only if it is fatal.
- ``OperatingError``: disk, network, database or coordinator. It says whether trying again can help.
- ``CorruptionError``: stored bytes are not what was written. That log stops; its bytes are kept.
- our own bugs: ``AssertionError`` and friends. They are not in this tree and are never caught here.

Every message to a person says what was wrong, what was kept, and what to do.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Anything Penstock says to a person without a traceback."""


class ConfigError(PenstockError):
    """A setting, a flag or a name that a person gave is wrong."""


class PeerError(PenstockError):
    """A peer broke the protocol; ``code`` goes on the wire, ``fatal`` closes the connection."""

    def __init__(self, code: str, message: str, *, fatal: bool = True) -> None:
        super().__init__(f"{code} {message}" if message else code)
        self.code = code
        self.fatal = fatal


class OperatingError(PenstockError):
    """The world outside failed; ``retry`` says whether trying again can help."""

    def __init__(self, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.retry = retry


class DiskFull(OperatingError):
    """No room to publish: nothing of the batch was kept, consumers go on finishing."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=True)


class LogFrozen(OperatingError):
    """A log takes no more writes until it is opened again (its disk failed at fsync or write)."""


class DirectoryLocked(OperatingError):
    """Another broker has this data directory open."""


class CorruptionError(PenstockError):
    """Stored bytes below the synced end are not what was written."""
