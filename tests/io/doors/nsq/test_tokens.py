"""The token file: what it may say, what is told of mistakes, and what happens when it changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from penstock.doors.nsq.tokens import Token, TokenFile
from penstock.errors import ConfigError
from tests.io.doors.nsq.hand_clock import HandClock

ONE = """
[[token]]
secret = "s3cret"
identity = "reports"
identity_url = "https://example.org/reports"
[[token.authorizations]]
topic = "^orders"
channels = ["^reports$"]
permissions = ["subscribe"]
[[token.authorizations]]
topic = "^done$"
permissions = ["publish"]
"""
OTHER = """
[[token]]
secret = "other"
[[token.authorizations]]
topic = ".*"
permissions = ["publish"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.touch(mode=0o600)
    return path


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def allowed(token: Token | None, topic: str, channel: str) -> bool:
    assert token is not None
    return any(one.allows(topic, channel) for one in token.authorizations)


def test_a_secret_finds_its_entry(path: Path, clock: HandClock) -> None:
    path.write_text(ONE + OTHER)
    file = TokenFile(path, clock)
    token = file.find("s3cret")
    assert token is not None
    assert token.identity == "reports"
    assert token.identity_url == "https://example.org/reports"
    assert allowed(token, "orders.eu", "reports")
    assert not allowed(token, "orders.eu", "other")
    assert not allowed(token, "orders.eu", "")
    # channels left out are all of them, and so a publish's "" too
    assert allowed(token, "done", "")
    other = file.find("other")
    assert other is not None
    assert (other.identity, other.identity_url) == ("", "")
    for secret in ("", "S3CRET", "s3cret ", "\udcff"):
        assert file.find(secret) is None


def test_an_empty_file_lets_nobody_in(path: Path, clock: HandClock) -> None:
    assert TokenFile(path, clock).find("s3cret") is None


AUTHORIZATION = '[[token.authorizations]]\ntopic = ".*"\npermissions = ["publish"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[token", "is not TOML"),
        ("\xff\xfe", "is not TOML"),
        ("[[tokens]]\nsecret = 's'", "has 'tokens', which means nothing; write [[token]]."),
        ("[token]\nsecret = 's'", "has a [token]; write [[token]], as there may be several."),
        ("token = [1]", ", token 1: 1 is not a table."),
        (f"[[token]]\n{AUTHORIZATION}", ", token 1: its secret is missing or empty."),
        (f"[[token]]\nsecret = ''\n{AUTHORIZATION}", ", token 1: its secret is missing or empty."),
        (f"[[token]]\nsecret = 7\n{AUTHORIZATION}", ", token 1: its secret is not a text."),
        (
            f"[[token]]\nsecret = 's'\nurl = 'x'\n{AUTHORIZATION}",
            "'url' means nothing here; there are authorizations, identity, identity_url, secret.",
        ),
        (f"{ONE}[[token]]\nsecret = 's'", ", token 2: it allows nothing; add a"),
        (f"{ONE}{ONE}", ", token 2: its secret is that of an earlier one."),
        (
            "[[token]]\nsecret = 's'\n[[token.authorizations]]\npermissions = ['publish']",
            ", token 1: an authorization has no topic; '.*' is every topic.",
        ),
        (
            "[[token]]\nsecret = 's'\n[[token.authorizations]]\ntopic = '.*'",
            ", token 1: an authorization has no permissions.",
        ),
        (
            f"[[token]]\nsecret = 's'\n{AUTHORIZATION}channels = []",
            ", token 1: an empty list of channels allows nothing; leave it out for all of them.",
        ),
        (
            f"[[token]]\nsecret = 's'\n{AUTHORIZATION}channels = 'c'",
            ", token 1: its channels are not a list of texts.",
        ),
        (
            f"[[token]]\nsecret = 's'\n{AUTHORIZATION}channels = [1]",
            ", token 1: its channels are not a list of texts.",
        ),
        (
            f"[[token]]\nsecret = 's'\n{AUTHORIZATION.replace('publish', 'write')}",
            ", token 1: unknown permission 'write'; there are subscribe and publish.",
        ),
        (
            f"[[token]]\nsecret = 's'\n{AUTHORIZATION.replace('.*', '(')}",
            ", token 1: '(' is not a pattern",
        ),
    ],
    ids=range(18),
)
def test_a_mistake_is_told_in_one_sentence(
    path: Path, clock: HandClock, text: str, sentence: str
) -> None:
    path.write_text(text, "latin-1")
    with pytest.raises(ConfigError) as raised:
        TokenFile(path, clock)
    assert str(raised.value).startswith(f"auth_token_file {path}")
    assert sentence in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_file_that_is_missing(path: Path, clock: HandClock) -> None:
    path.unlink()
    with pytest.raises(ConfigError) as raised:
        TokenFile(path, clock)
    assert str(raised.value) == f"cannot read auth_token_file {path}: No such file or directory."


def rewrite(path: Path, text: str, at_ns: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(at_ns, at_ns))


def test_a_change_is_seen_within_a_second(path: Path, clock: HandClock) -> None:
    rewrite(path, ONE, 1)
    file = TokenFile(path, clock)
    rewrite(path, OTHER, 2)
    clock.at_ns += 999_999_999
    assert file.find("s3cret") is not None
    assert file.find("other") is None
    clock.at_ns += 1
    assert file.find("s3cret") is None
    assert file.find("other") is not None


def test_a_file_that_has_become_wrong_changes_nothing_and_is_told_once(
    path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    rewrite(path, ONE, 1)
    file = TokenFile(path, clock)
    with caplog.at_level(logging.INFO, "penstock.auth"):
        rewrite(path, "[[token", 2)
        for _ in range(3):
            clock.at_ns += 1_000_000_000
            assert file.find("s3cret") is not None
        [record] = caplog.records
        assert record.levelname == "WARNING"
        assert "is not TOML" in record.getMessage()
        assert record.getMessage().endswith("The 1 tokens of before stay in force.")
        caplog.clear()
        path.unlink()
        for _ in range(3):
            clock.at_ns += 1_000_000_000
            assert file.find("s3cret") is not None
        [record] = caplog.records
        assert "No such file or directory" in record.getMessage()
        caplog.clear()
        rewrite(path, ONE + OTHER, 3)
        clock.at_ns += 1_000_000_000
        assert file.find("other") is not None
        [record] = caplog.records
        assert record.getMessage() == f"{path} has changed: 2 tokens are in force"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_everybody_can_read_is_warned_of(
    path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path.chmod(mode)
    TokenFile(path, clock)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
