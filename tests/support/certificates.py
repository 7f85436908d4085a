"""TLS certificates made at test time: an authority, a server's, a client's, and a stranger's."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

CLIENT_COMMON_NAME = "penstock-test-client"


@dataclass(frozen=True)
class Certificates:
    """PEM files, for brokers and for clients in any language."""

    authority: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path
    stranger_cert: Path  # signed by an authority that nobody knows
    stranger_key: Path

    @property
    def broker_flags(self) -> tuple[str, ...]:
        return ("--tls-cert", str(self.server_cert), "--tls-key", str(self.server_key))

    def context(self, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
        """A client's side that verifies the server; with `cert` it shows one itself."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if cert is not None:
            context.load_cert_chain(cert, key)
        return context

    @property
    def client_context(self) -> ssl.SSLContext:
        return self.context(self.client_cert, self.client_key)

    @property
    def stranger_context(self) -> ssl.SSLContext:
        return self.context(self.stranger_cert, self.stranger_key)


def make_certificates(directory: Path) -> Certificates:
    directory.mkdir(parents=True, exist_ok=True)
    paths = Certificates(
        authority=directory / "ca.pem",
        server_cert=directory / "server.pem",
        server_key=directory / "server.key",
        client_cert=directory / "client.pem",
        client_key=directory / "client.key",
        stranger_cert=directory / "stranger.pem",
        stranger_key=directory / "stranger.key",
    )
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(paths.authority))
    _write(authority.issue_cert("localhost", "127.0.0.1"), paths.server_cert, paths.server_key)
    client = authority.issue_cert("client@localhost", common_name=CLIENT_COMMON_NAME)
    _write(client, paths.client_cert, paths.client_key)
    stranger = trustme.CA().issue_cert("stranger@localhost", common_name="stranger")
    _write(stranger, paths.stranger_cert, paths.stranger_key)
    return paths


def _write(cert: trustme.LeafCert, cert_path: Path, key_path: Path) -> None:
    cert.private_key_pem.write_to_path(str(key_path))
    for number, pem in enumerate(cert.cert_chain_pems):
        pem.write_to_path(str(cert_path), append=number > 0)
