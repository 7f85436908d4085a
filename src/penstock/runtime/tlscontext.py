"""What TLS is made with: the settings, and the files that they name; a wrong one is a ConfigError.

For the doors: each serves its clients with it, and the NSQ door asks auth servers with what is
``trust``ed here.

nsqd's policy ``require`` wants any certificate of a client, whoever signed it, because its name
goes to the auth server. OpenSSL leaves that to a callback that Python's ``ssl`` does not have: it
verifies, or it does not ask at all. So under this policy each connection has a context of its own,
and the certificate that the client shows is put among those which this context trusts, just before
it is verified. What is left of verifying proves that the client has the certificate's key.
"""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path

from penstock.config import Settings, TlsClientAuth, TlsVersion
from penstock.errors import ConfigError

_VERSIONS = {
    TlsVersion.TLS_1_0: ssl.TLSVersion.TLSv1,
    TlsVersion.TLS_1_1: ssl.TLSVersion.TLSv1_1,
    TlsVersion.TLS_1_2: ssl.TLSVersion.TLSv1_2,
    TlsVersion.TLS_1_3: ssl.TLSVersion.TLSv1_3,
}


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What clients' TLS is made with; None without a certificate."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    if settings.tls_client_auth_policy is TlsClientAuth.REQUIRE:
        context: ssl.SSLContext = _AnyCertificate(ssl.PROTOCOL_TLS_SERVER)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _prepare(context, settings)
    return context


def _prepare(context: ssl.SSLContext, settings: Settings) -> None:
    assert settings.tls_cert is not None and settings.tls_key is not None
    # a peer could make the broker do handshakes for ever
    context.options |= ssl.OP_NO_RENEGOTIATION
    with warnings.catch_warnings():
        # that old versions are weak is told in the setting's documentation
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = _VERSIONS[settings.tls_min_version]
    _load_certificate(context, settings.tls_cert, settings.tls_key)
    if settings.tls_client_auth_policy is not TlsClientAuth.NONE:
        context.verify_mode = ssl.CERT_REQUIRED
    if settings.tls_client_auth_policy is TlsClientAuth.REQUIRE_VERIFY:
        trust(context, settings.tls_root_ca_file, ssl.Purpose.CLIENT_AUTH)
    if isinstance(context, _AnyCertificate):
        context.settings = settings


def trust(context: ssl.SSLContext, authorities: Path | None, purpose: ssl.Purpose) -> None:
    """Have the context believe whom these authorities (None: the system's) have signed."""
    if authorities is None:
        context.load_default_certs(purpose)
        return
    _read(authorities, "tls_root_ca_file")
    try:
        context.load_verify_locations(cafile=authorities)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls_root_ca_file {authorities} has no certificate in PEM form ({error.reason})."
        ) from error


def _load_certificate(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    _read(cert, "tls_cert")
    _read(key, "tls_key")
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key {key} is not the key of tls_cert {cert}.") from error
        raise ConfigError(
            f"tls_cert {cert} and tls_key {key} are not a certificate and its key without a"
            f" password, in PEM form ({error.reason or error})."
        ) from error


def _no_password() -> str:
    # without an answer OpenSSL would ask on the terminal
    return ""


def _read(path: Path, setting: str) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {setting} {path}: {error.strerror}.") from error


# --- any certificate ---------------------------------------------------------------------------

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which ssl has no name
_NO_CHECK_TIME = 0x200000
_HANDSHAKE_HEAD_BYTES = 4
_CERTIFICATE_MESSAGE = 11


class _AnyCertificate(ssl.SSLContext):
    """Makes each connection with a context like this one that comes to trust its client alone."""

    settings: Settings

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        _prepare(context, self.settings)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        # Python's hook for debuggers; if it were not called, nobody would be let in
        context._msg_callback = _trust_shown  # type: ignore[attr-defined]  # noqa: SLF001  not public
        return context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _trust_shown(
    tls: ssl.SSLObject,
    direction: str,
    version: int,
    _content: int,
    message: int,
    data: bytes,
) -> None:
    """Called by OpenSSL for each message of the handshake, before it looks at it itself.

    type u8, length u24 | TLS 1.3: context (length u8) | list (length u24) of:
    certificate (length u24) | TLS 1.3: extensions
    """
    if direction != "read" or message != _CERTIFICATE_MESSAGE:
        return
    at = _HANDSHAKE_HEAD_BYTES
    if version == ssl.TLSVersion.TLSv1_3:
        at += 1 + data[at]
    at += 3
    end = at + 3 + int.from_bytes(data[at : at + 3], "big")
    if at + 3 < end <= len(data):
        try:
            tls.context.load_verify_locations(cadata=data[at + 3 : end])
        except ssl.SSLError:
            # no certificate at all; OpenSSL comes to the same a moment later, and says so
            pass
