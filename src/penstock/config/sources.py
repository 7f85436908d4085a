"""Where values come from: default, TOML file, environment, flags, the later over the earlier.

Each value remembers its origin, so that `penstock config` can say it. A bad value and an unknown
key are one sentence with the place and the nearest known name; nothing is ignored in silence, but
for environment variables that are far from every setting's name.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.config.kinds import TlsClientAuth, TlsRequired
from penstock.config.settings import (
    ENVIRONMENT_PREFIX,
    SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    Settings,
    TopicSettings,
)
from penstock.errors import ConfigError
from penstock.names import NAME_RULE, is_valid_name

CONFIG_FILE_VARIABLE = "PENSTOCK_CONFIG"


class Origin(NamedTuple):
    """Where a value came from: default, file, environment or flag, and which."""

    source: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.detail}" if self.detail else self.source


DEFAULT = Origin("default")


class Loaded(NamedTuple):
    """Settings in force, and by key where each came from (topic tables as `topics.NAME.KEY`)."""

    settings: Settings
    origins: Mapping[str, Origin]


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    base: Settings | None = None,
) -> Loaded:
    """Read all sources, the later over the earlier: base, file, environment, flags (by key).

    ConfigError is one sentence that says which value from where is wrong.
    """
    environment = environment or {}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, DEFAULT)
    if file is None and environment.get(CONFIG_FILE_VARIABLE):
        file = Path(environment[CONFIG_FILE_VARIABLE])
    if file is not None:
        origin = Origin("file", str(file))
        table = read_file(file)
        values["topics"] = _read_topics(table.pop("topics", {}), origins, origin)
        for key, given in table.items():
            _take(values, origins, key, given, origin)
    for variable, given in _settings_in(environment).items():
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        _take(values, origins, key, given, Origin("environment", variable))
    for key, given in (flags or {}).items():
        _take(values, origins, key, given, Origin("flag", SETTINGS[key].flag))
    settings = replace(base or Settings(), **values)
    return Loaded(check(settings), MappingProxyType(origins))


def read_file(file: Path) -> dict[str, Any]:
    """A TOML file as a table; ConfigError when it cannot be read or is not TOML."""
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {file}: {error.strerror}. Nothing was started."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}. Nothing was started.") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known name, or nothing."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean '{near[0]}'?" if near else "."


def _take(
    values: dict[str, Any], origins: dict[str, Origin], key: str, given: object, origin: Origin
) -> None:
    setting = SETTINGS.get(key)
    if setting is None:
        raise ConfigError(f"unknown setting '{key}' in {origin}{nearest(key, SETTINGS)}")
    values[setting.field] = read_value(setting, given, str(origin))
    origins[key] = origin


def read_value(setting: Setting, given: object, origin: str) -> object:
    """One value of one setting; ConfigError names both and where it came from."""
    try:
        return setting.kind.parse(given)
    except ValueError as error:
        raise ConfigError(f"bad value for {setting.key} in {origin}: {error}.") from error


def _settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for variable, given in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_FILE_VARIABLE:
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key in SETTINGS:
            found[variable] = given
        # What is far from every name belongs to others (an orchestrator names services' ports
        # after them); what is near is a typing mistake, and ignoring it would be silent.
        elif near := get_close_matches(key, list(SETTINGS), n=1, cutoff=0.85):
            raise ConfigError(
                f"unknown setting in environment variable {variable};"
                f" did you mean '{SETTINGS[near[0]].variable}'?"
            )
    return found


def _read_topics(
    tables: object, origins: dict[str, Origin], origin: Origin
) -> Mapping[str, TopicSettings]:
    topics = {}
    if not isinstance(tables, dict):
        raise ConfigError(f'topics in {origin} is not a table; write [topics."name"].')
    for name, table in tables.items():
        if not is_valid_name(name):
            raise ConfigError(f"'{name}' in {origin} is not a topic's name: {NAME_RULE}.")
        if not isinstance(table, dict):
            raise ConfigError(f'topics."{name}" in {origin} is not a table.')
        values: dict[str, Any] = {}
        for key, given in table.items():
            setting = TOPIC_SETTINGS.get(key)
            if setting is None:
                hint = nearest(key, TOPIC_SETTINGS)
                raise ConfigError(f"unknown setting '{key}' of topic '{name}' in {origin}{hint}")
            values[key] = read_value(setting, given, f"topic '{name}' in {origin}")
            origins[f"topics.{name}.{key}"] = origin
        topics[name] = TopicSettings(**values)
    return MappingProxyType(topics)


def check(settings: Settings) -> Settings:
    """What must hold between settings; returns them with what follows from them filled in."""
    if settings.storage and "://" not in settings.storage:
        raise ConfigError(
            f"storage '{settings.storage}' is not a URL; write file:///a/directory or memory://."
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("tls_cert", "tls_key") if settings.tls_cert else ("tls_key", "tls_cert")
        raise ConfigError(f"{given} is set but {missing} is not; TLS needs both.")
    asks_certificates = settings.tls_client_auth_policy != TlsClientAuth.NONE
    if asks_certificates and settings.tls_required == TlsRequired.NO:
        # as nsqd: who asks for certificates means that nobody comes in without one
        settings = replace(settings, tls_required=TlsRequired.YES)
    if settings.tls_required != TlsRequired.NO and settings.tls_cert is None:
        raise ConfigError("TLS is required of clients, but tls_cert and tls_key are not set.")
    return settings
