"""Loading: precedence, origins, and the sentence for everything that is wrong."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.config import (
    SETTINGS,
    Durability,
    Origin,
    Settings,
    TlsClientAuth,
    TlsRequired,
    TopicSettings,
    load,
)
from penstock.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "penstock.toml"


def complaint(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> str:
    with pytest.raises(ConfigError) as raised:
        load(file=file, environment=environment, flags=flags)
    return str(raised.value)


def test_flags_go_over_the_environment_over_the_file_over_defaults(file: Path) -> None:
    file.write_text('sync_interval = "1s"\nsync_threads = 2\nretain_hours = 3\n')
    loaded = load(
        file=file,
        environment={"PENSTOCK_SYNC_THREADS": "4", "PENSTOCK_RETAIN_HOURS": "5", "HOME": "/root"},
        flags={"retain_hours": "6"},
    )
    settings, origins = loaded
    assert (settings.sync_interval_ms, settings.sync_threads) == (1_000, 4)
    assert (settings.retain_hours, settings.partitions) == (6, 1)
    assert origins["sync_interval"] == Origin("file", str(file))
    assert origins["sync_threads"] == Origin("environment", "PENSTOCK_SYNC_THREADS")
    assert str(origins["retain_hours"]) == "flag --retain-hours"
    assert str(origins["partitions"]) == "default"


def test_the_environment_can_name_the_file(file: Path) -> None:
    file.write_text('durability = "written"\n')
    loaded = load(environment={"PENSTOCK_CONFIG": str(file)})
    assert loaded.settings.durability is Durability.WRITTEN


def test_a_base_stands_in_for_the_defaults() -> None:
    loaded = load(flags={"sync_threads": 3}, base=Settings(retain_hours=1, sync_threads=2))
    assert (loaded.settings.retain_hours, loaded.settings.sync_threads) == (1, 3)


def test_topics_have_tables_of_their_own(file: Path) -> None:
    file.write_text('[topics."a.b"]\ndurability = "memory"\npartitions = 4\n[topics.c]\n')
    loaded = load(file=file)
    assert loaded.settings.topics == {
        "a.b": TopicSettings(Durability.MEMORY, 4),
        "c": TopicSettings(),
    }
    assert loaded.origins["topics.a.b.partitions"] == Origin("file", str(file))


def test_every_setting_can_come_from_everywhere(file: Path) -> None:
    """What `penstock config` prints loads again as it was, from each source."""
    shown = {
        key: setting.kind.show(getattr(Settings(), setting.field))
        for key, setting in SETTINGS.items()
    }
    file.write_text("\n".join(f"{key} = '{value}'" for key, value in shown.items()))
    assert load(file=file).settings == Settings()
    assert load(flags=shown).settings == Settings()
    environment = {SETTINGS[key].variable: value for key, value in shown.items()}
    assert load(environment=environment).settings == Settings()


def test_an_unknown_key_names_its_place_and_the_nearest(file: Path) -> None:
    file.write_text('tcp_adress = "x:1"\n')
    assert complaint(file=file) == (
        f"unknown setting 'tcp_adress' in file {file}; did you mean 'tcp_address'?"
    )
    file.write_text('[topics.a]\ndurabillity = "x"\n')
    assert complaint(file=file) == (
        f"unknown setting 'durabillity' of topic 'a' in file {file}; did you mean 'durability'?"
    )
    file.write_text("colour = 1\n")
    assert complaint(file=file) == f"unknown setting 'colour' in file {file}."


def test_a_mistyped_variable_is_told_and_a_strange_one_is_not_ours() -> None:
    assert complaint(environment={"PENSTOCK_TCP_ADRESS": "x:1"}) == (
        "unknown setting in environment variable PENSTOCK_TCP_ADRESS;"
        " did you mean 'PENSTOCK_TCP_ADDRESS'?"
    )
    # an orchestrator's variables for a service of our name
    load(environment={"PENSTOCK_PORT_4150_TCP_ADDR": "10.0.0.1", "PENSTOCK_SERVICE_HOST": "x"})


def test_a_bad_value_names_the_setting_its_place_and_what_to_write(file: Path) -> None:
    file.write_text("max_msg_size = '12 parsecs'\n")
    assert complaint(file=file) == (
        f"bad value for max_msg_size in file {file}:"
        " '12 parsecs' is not a size (write 1048576, 512KiB or 64MiB)."
    )
    assert complaint(environment={"PENSTOCK_SYNC_INTERVAL": "2"}) == (
        "bad value for sync_interval in environment PENSTOCK_SYNC_INTERVAL:"
        " '2' is not a duration (write 250ms, 60s or 1m30s)."
    )
    assert complaint(flags={"sync_threads": "0"}) == (
        "bad value for sync_threads in flag --sync-threads: 0 is out of range (1 to 64)."
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("topics = 1", "is not a table"),
        ("topics.a = 1", "is not a table"),
        ("[topics.'a b']", "'a b' in file"),
        ("a = ", "is not TOML"),
        ("[topics.a]\npartitions = 0", "bad value for partitions in topic 'a' in file"),
    ],
)
def test_a_file_that_makes_no_sense(file: Path, text: str, part: str) -> None:
    file.write_text(text)
    assert part in complaint(file=file)


def test_a_file_that_is_not_there_or_not_text(file: Path) -> None:
    assert complaint(file=file) == (
        f"cannot read the configuration file {file}: No such file or directory."
        " Nothing was started."
    )
    file.write_bytes(b"\xff\xfe")
    assert "is not TOML" in complaint(file=file)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"storage": "/data"}, "storage '/data' is not a URL"),
        ({"tls_cert": "c.pem"}, "tls_cert is set but tls_key is not"),
        ({"tls_key": "k.pem"}, "tls_key is set but tls_cert is not"),
        ({"tls_required": "true"}, "TLS is required of clients, but"),
        ({"tls_client_auth_policy": "require"}, "TLS is required of clients, but"),
    ],
)
def test_settings_that_do_not_go_together(flags: dict[str, object], sentence: str) -> None:
    assert sentence in complaint(flags=flags)


def test_asking_for_certificates_makes_tls_required() -> None:
    flags = {"tls_cert": "c", "tls_key": "k", "tls_client_auth_policy": "require-verify"}
    settings = load(flags=flags).settings
    assert settings.tls_client_auth_policy is TlsClientAuth.REQUIRE_VERIFY
    assert settings.tls_required is TlsRequired.YES
