"""Settings are checked when they are given, and their keywords are typed."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from penstock.errors import ConfigError
from penstock.sdk.options import (
    Address,
    ClientKeywords,
    ClientOptions,
    ConsumerKeywords,
    ConsumerOptions,
    ProducerKeywords,
    ProducerOptions,
    parse_address,
)


@pytest.mark.parametrize(
    ("keywords", "options"),
    [
        (ClientKeywords, ClientOptions),
        (ProducerKeywords, ProducerOptions),
        (ConsumerKeywords, ConsumerOptions),
    ],
)
def test_keywords_are_the_options(keywords: type, options: type) -> None:
    hints = get_type_hints(options)
    assert get_type_hints(keywords) == {field.name: hints[field.name] for field in fields(options)}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost", Address("localhost", 4150)),
        ("broker.example:5150", Address("broker.example", 5150)),
        ("[::1]:4150", Address("::1", 4150)),
        ("[::1]", Address("::1", 4150)),
        ("::1", Address("::1", 4150)),
        ("/run/penstock.sock", Address("/run/penstock.sock", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":4150", "a:", "a:b", "a:0", "a:65536", "[::1", "[::1]4150"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        parse_address(text)


def test_client_settings_are_checked() -> None:
    for wrong in (
        {"compression": "lz4"},
        {"deflate_level": 0},
        {"heartbeat_interval": 0.5},
        {"connect_timeout": 0},
        {"reconnect_delay": 0},
        {"reconnect_delay": 20.0},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ClientOptions(**wrong)


def test_producer_settings_are_checked() -> None:
    for wrong in (
        {"linger": 1.5},
        {"linger": -1},
        {"batch_messages": 0},
        {"batch_bytes": 0},
        {"batches_in_flight": 0},
        {"pending_bytes_max": 0},
        {"message_bytes_max": 0},
        {"on_lost": "ignore"},
        {"publish_timeout": 0},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ProducerOptions(**wrong)


def test_consumer_settings_are_checked() -> None:
    for wrong in (
        {"max_in_flight": 0},
        {"msg_timeout": 0},
        {"retry_delay": -1},
        {"retry_delay": 601.0},
        {"drain_timeout": -1},
        {"rotate_interval": 0},
        {"sample_rate": 100},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ConsumerOptions(**wrong)


def test_the_secret_is_not_shown() -> None:
    assert "sesame" not in repr(ClientOptions(auth_secret="open sesame"))
