"""The arguments with which `pub` and `tail` reach a broker, and the SDK's client made of them."""

import argparse
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import ConfigError, OperatingError
from penstock.names import NAME_RULE, is_valid_name
from penstock.sdk import Client
from penstock.sdk.errors import Refused
from penstock.sdk.sync import SyncClient

BROKER_VARIABLE = "PENSTOCK_BROKER"
SECRET_VARIABLE = "PENSTOCK_AUTH_SECRET"  # noqa: S105  the variable's name, not a secret
BROKER = "127.0.0.1:4150"


def add_connecting_arguments(parser: argparse.ArgumentParser) -> None:
    """`--broker` and what a broker may ask for: TLS, a secret, compression."""
    group = parser.add_argument_group("the broker")
    group.add_argument(
        "--broker",
        action="append",
        metavar="HOST:PORT",
        help=f"where it listens, may be repeated (or {BROKER_VARIABLE}; default {BROKER})",
    )
    group.add_argument("--tls", action="store_true", help="speak TLS")
    group.add_argument(
        "--tls-ca", type=Path, metavar="FILE", help="authorities to trust (PEM); means --tls"
    )
    group.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="our certificate and key (PEM); means --tls"
    )
    group.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="our key, where it has a file of its own"
    )
    group.add_argument("--compression", choices=["snappy", "deflate"], help="compress the traffic")
    group.add_argument(
        "--auth-secret",
        metavar="SECRET",
        help=f"for AUTH; better in {SECRET_VARIABLE}, since others can see a process's arguments",
    )


def name(text: str) -> str:
    """A topic's or a channel's name as an argument: a wrong one is told before anything is done."""
    if not is_valid_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name; a name is {NAME_RULE}")
    return text


@contextmanager
def client_of(args: argparse.Namespace) -> Iterator[SyncClient]:
    """The client that the arguments ask for, not connected yet."""
    try:
        with _client(args) as client:
            yield client
    except Refused as error:
        if error.code != "E_AUTH_FIRST":
            raise
        raise OperatingError(f"{error}: put it into {SECRET_VARIABLE}") from error


def _client(args: argparse.Namespace) -> SyncClient:
    named = os.environ.get(BROKER_VARIABLE, "").split(",")
    brokers = args.broker or [broker for broker in named if broker] or [BROKER]
    return Client.sync(
        brokers,
        tls=_tls(args),
        compression=args.compression,
        auth_secret=args.auth_secret or os.environ.get(SECRET_VARIABLE),
    )


def _tls(args: argparse.Namespace) -> bool | ssl.SSLContext:
    if not (args.tls_ca or args.tls_cert):
        return bool(args.tls)
    try:
        context = ssl.create_default_context(cafile=args.tls_ca)
        if args.tls_cert:
            context.load_cert_chain(args.tls_cert, args.tls_key)
    except OSError as error:
        raise ConfigError(
            f"the files for TLS cannot be used: {error}. Nothing was sent."
        ) from error
    return context
