"""The token file: who may do what, in TOML, for those who do not want an auth server.

    [[token]]
    secret = "…"                      # what the client sends with AUTH
    identity = "reports"              # optional: who that is, for people
    identity_url = ""                 # optional
    [[token.authorizations]]
    topic = "^orders"                 # a pattern; it may match anywhere in the name
    channels = ["^reports$"]          # patterns; left out: every channel
    permissions = ["subscribe", "publish"]

Read in a pool's thread, never on the loop. A file that has changed is read again, looked at once a
second at most; one that has become wrong is reported, and what it said before stays in force.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from penstock.clock import Clock
from penstock.doors.nsq.grants import Authorization
from penstock.errors import ConfigError

log = logging.getLogger("penstock.auth")

_LOOK_INTERVAL_NS = 1_000_000_000
_OTHERS = 0o007
_TOKEN_KEYS = {"secret", "identity", "identity_url", "authorizations"}
_AUTHORIZATION_KEYS = {"topic", "channels", "permissions"}
_EVERY_CHANNEL = [".*"]

# what tells one state of the file from another: time, size, inode; None: it cannot be read
_Stamp = tuple[int, int, int] | None


class _Wrong(ValueError):
    """An entry that makes no sense; the text ends a sentence."""


@dataclass(frozen=True, slots=True)
class Token:
    """One client's entry, without its secret."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """The file as it was read; replaced as a whole, so that threads need no lock."""

    tokens: Mapping[bytes, Token]
    stamp: _Stamp
    looked_at_ns: int


class TokenFile:
    """The file in force."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """ConfigError if it cannot be read or says something that makes no sense."""
        self._path = path
        self._clock = clock
        stamp = _stamp(path)
        self._known = _Known(_read(path), stamp, clock.monotonic_ns())
        if path.stat().st_mode & _OTHERS:
            log.warning(
                "every user of this machine can reach the secrets in %s; `chmod o= %s` keeps them"
                " to its owner and group",
                path,
                path,
            )

    def find(self, secret: str) -> Token | None:
        """The entry of this secret, by the file as it is now."""
        return self._fresh().get(_digest(secret))

    def _fresh(self) -> Mapping[bytes, Token]:
        known = self._known
        now_ns = self._clock.monotonic_ns()
        if now_ns - known.looked_at_ns < _LOOK_INTERVAL_NS:
            return known.tokens
        stamp = _stamp(self._path)
        tokens = known.tokens
        if stamp != known.stamp:
            try:
                tokens = _read(self._path)
                log.info("%s has changed: %d tokens are in force", self._path, len(tokens))
            except ConfigError as error:
                log.warning("%s The %d tokens of before stay in force.", error, len(tokens))
        self._known = _Known(tokens, stamp, now_ns)
        return tokens


def _stamp(path: Path) -> _Stamp:
    try:
        stat = path.stat()
    except OSError:
        # reading it, which comes next, says what is wrong
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _read(path: Path) -> Mapping[bytes, Token]:
    where = f"auth_token_file {path}"
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {where}: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{where} is not TOML: {error}.") from error
    for key in table.keys() - {"token"}:
        raise ConfigError(f"{where} has '{key}', which means nothing; write [[token]].")
    entries = table.get("token", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{where} has a [token]; write [[token]], as there may be several.")
    tokens: dict[bytes, Token] = {}
    for number, entry in enumerate(entries, 1):
        try:
            digest, token = _token(entry)
            if digest in tokens:
                raise _Wrong("its secret is that of an earlier one")
        except ValueError as error:
            raise ConfigError(f"{where}, token {number}: {error}.") from error
        tokens[digest] = token
    return tokens


def _token(entry: object) -> tuple[bytes, Token]:
    table = _table(entry, _TOKEN_KEYS)
    secret = _text(table, "secret")
    if not secret:
        raise _Wrong("its secret is missing or empty")
    lines = table.get("authorizations", [])
    if not isinstance(lines, list) or not lines:
        raise _Wrong("it allows nothing; add a [[token.authorizations]] or leave it out")
    token = Token(
        identity=_text(table, "identity"),
        identity_url=_text(table, "identity_url"),
        authorizations=tuple(map(_authorization, lines)),
    )
    return _digest(secret), token


def _authorization(entry: object) -> Authorization:
    table = _table(entry, _AUTHORIZATION_KEYS)
    if "topic" not in table:
        raise _Wrong("an authorization has no topic; '.*' is every topic")
    channels = _texts(table.get("channels", _EVERY_CHANNEL), "channels")
    permissions = _texts(table.get("permissions", []), "permissions")
    if not channels:
        raise _Wrong("an empty list of channels allows nothing; leave it out for all of them")
    if not permissions:
        raise _Wrong("an authorization has no permissions")
    return Authorization.of(_text(table, "topic"), channels, permissions)


def _table(entry: object, keys: set[str]) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise _Wrong(f"{entry!r} is not a table")
    for key in entry.keys() - keys:
        raise _Wrong(f"'{key}' means nothing here; there are {', '.join(sorted(keys))}")
    return entry


def _text(table: dict[str, object], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise _Wrong(f"its {key} is not a text")
    return value


def _texts(value: object, key: str) -> list[str]:
    if not isinstance(value, list):
        raise _Wrong(f"its {key} are not a list of texts")
    texts = [one for one in value if isinstance(one, str)]
    if len(texts) < len(value):
        raise _Wrong(f"its {key} are not a list of texts")
    return texts


def _digest(secret: str) -> bytes:
    """What a secret is looked up by; the time that takes says nothing about other secrets."""
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
