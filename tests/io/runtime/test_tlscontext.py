"""What is told about certificate files that cannot be used, and the oldest version let in."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

from penstock.config import Settings, TlsClientAuth, TlsVersion
from penstock.errors import ConfigError
from penstock.runtime.tlscontext import tls_context

if TYPE_CHECKING:
    from tests.support.certificates import Certificates


@pytest.fixture
def settings(certificates: Certificates) -> Settings:
    return Settings(tls_cert=certificates.server_cert, tls_key=certificates.server_key)


def complaint(settings: Settings) -> str:
    with pytest.raises(ConfigError) as raised:
        tls_context(settings)
    return str(raised.value)


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls_context(Settings()) is None


@pytest.mark.parametrize(
    ("given", "version"),
    [
        (TlsVersion.TLS_1_0, ssl.TLSVersion.TLSv1),
        (TlsVersion.TLS_1_1, ssl.TLSVersion.TLSv1_1),
        (TlsVersion.TLS_1_2, ssl.TLSVersion.TLSv1_2),
        (TlsVersion.TLS_1_3, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_the_oldest_version(settings: Settings, given: TlsVersion, version: ssl.TLSVersion) -> None:
    context = tls_context(replace(settings, tls_min_version=given))
    assert context is not None
    assert context.minimum_version == version


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_root_ca_file"])
def test_a_file_that_is_missing(settings: Settings, setting: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    wrong = replace(
        settings,
        tls_client_auth_policy=TlsClientAuth.REQUIRE_VERIFY,
        **{setting: missing},  # type: ignore[arg-type]  # mypy does not know which setting it is
    )
    assert complaint(wrong) == f"cannot read {setting} {missing}: No such file or directory."


def test_a_file_that_is_something_else(settings: Settings, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text("this is a poem")
    assert complaint(replace(settings, tls_cert=other)).startswith(
        f"tls_cert {other} and tls_key {settings.tls_key} are not a certificate and its key"
    )
    verify = replace(settings, tls_client_auth_policy=TlsClientAuth.REQUIRE_VERIFY)
    assert complaint(replace(verify, tls_root_ca_file=other)).startswith(
        f"tls_root_ca_file {other} has no certificate in PEM form"
    )


def test_the_key_of_another_certificate(settings: Settings, certificates: Certificates) -> None:
    assert complaint(replace(settings, tls_key=certificates.client_key)) == (
        f"tls_key {certificates.client_key} is not the key of tls_cert {settings.tls_cert}."
    )


def test_a_key_with_a_password_asks_nobody(settings: Settings, tmp_path: Path) -> None:
    assert settings.tls_key is not None
    key = serialization.load_pem_private_key(settings.tls_key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "its key without a password" in complaint(replace(settings, tls_key=locked))
