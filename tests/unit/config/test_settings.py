"""The table of settings: complete, consistent, and defaults that their own kinds take."""

from dataclasses import fields
from pathlib import Path

import pytest

from penstock.config import SETTINGS, Durability, Setting, Settings, TopicSettings, load


def test_every_field_is_a_setting() -> None:
    named = {setting.field for setting in SETTINGS.values()}
    assert named | {"topics"} == {field.name for field in fields(Settings)}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.key)
def test_a_default_is_of_its_kind_and_shows_as_itself(setting: Setting) -> None:
    assert setting.default == getattr(Settings(), setting.field)
    assert setting.kind.parse(setting.default_shown) == setting.default


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.key)
def test_a_setting_is_documented_in_a_sentence_with_a_reason(setting: Setting) -> None:
    assert setting.doc[0].isupper()
    assert setting.doc.endswith(".")
    assert setting.reason
    assert not setting.reason.endswith(".")


def test_nothing_given_is_the_defaults() -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert {origin.source for origin in loaded.origins.values()} == {"default"}


def test_storage_is_a_file_url_of_the_data_path_unless_said_otherwise() -> None:
    assert Settings(data_path=Path("/var/lib/a b")).storage_url == "file:///var/lib/a%20b"
    assert Settings(data_path=Path("x")).storage_url == f"file://{Path.cwd()}/x"
    assert Settings(storage="memory://").storage_url == "memory://"


def test_a_topic_has_its_own_settings_or_the_brokers() -> None:
    settings = Settings(
        partitions=2,
        topics={"orders": TopicSettings(durability=Durability.WRITTEN)},
    )
    assert settings.durability_of("orders") is Durability.WRITTEN
    assert settings.durability_of("other") is Durability.SYNCED
    assert settings.partitions_of("orders") == 2
