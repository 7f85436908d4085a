"""Each kind of setting: what it takes from TOML, the environment and flags, and what it refuses."""

from pathlib import Path

import pytest

from penstock.config import Address, Durability, TlsRequired
from penstock.config.kinds import (
    ADDRESS,
    ADDRESS_OR_NONE,
    ADDRESSES,
    DURATION,
    DURATION_OR_NONE,
    FLAG,
    PATH_OR_NONE,
    SIZE,
    TEXTS,
    TLS_REQUIRED,
    Kind,
    choice,
    count,
)

TAKEN: list[tuple[Kind[object], object, object]] = [
    (ADDRESS, "127.0.0.1:4150", Address("127.0.0.1", 4150)),
    (ADDRESS, ":4150", Address("", 4150)),
    (ADDRESS, "[::1]:0", Address("::1", 0)),
    (ADDRESS, "/run/nsqd.sock", Address("/run/nsqd.sock", 0)),
    (ADDRESS_OR_NONE, "", None),
    (ADDRESSES, "a:1, b:2", (Address("a", 1), Address("b", 2))),
    (ADDRESSES, ["a:1", "b:2,c:3"], (Address("a", 1), Address("b", 2), Address("c", 3))),
    (ADDRESSES, "", ()),
    (TEXTS, ["http://x/auth"], ("http://x/auth",)),
    (DURATION, "2s", 2_000),
    (DURATION, 0, 0),
    (DURATION_OR_NONE, "none", None),
    (SIZE, 1024, 1024),
    (SIZE, "1KiB", 1024),
    (FLAG, True, True),
    (FLAG, "T", True),
    (FLAG, "0", False),
    (PATH_OR_NONE, "", None),
    (PATH_OR_NONE, "x/y", Path("x/y")),
    (TLS_REQUIRED, True, TlsRequired.YES),
    (TLS_REQUIRED, "false", TlsRequired.NO),
    (TLS_REQUIRED, "tcp-https", TlsRequired.TCP_HTTPS),
    (choice(Durability), "Written", Durability.WRITTEN),
    (count(1, 3), 3, 3),
    (count(1, 3), "2", 2),
]

REFUSED: list[tuple[Kind[object], object, str]] = [
    (ADDRESS, "127.0.0.1", "is not an address"),
    (ADDRESS, "host:http", "is not an address"),
    (ADDRESS, "host:65536", "is not an address"),
    (ADDRESS, "", "is not an address"),
    (ADDRESSES, "/run/nsqd.sock", "is not an address"),
    (ADDRESS, 4150, "is not a text"),
    (ADDRESSES, 4150, "is not a list"),
    (DURATION, 60, "has no unit"),
    (DURATION, True, "is not a duration"),
    (SIZE, True, "is not a size"),
    (SIZE, "12 parsecs", "is not a size"),
    (FLAG, "maybe", "neither true nor false"),
    (TLS_REQUIRED, "sometimes", "neither true nor false"),
    (choice(Durability), "fsync", "none of synced, written, memory"),
    (count(1, 3), 4, "out of range"),
    (count(1), "-1", "out of range"),
    (count(1), True, "not a whole number"),
    (count(1), "1.0", "not a whole number"),
]


@pytest.mark.parametrize(("kind", "given", "value"), TAKEN)
def test_takes(kind: Kind[object], given: object, value: object) -> None:
    assert kind.parse(given) == value
    assert kind.parse(kind.show(value)) == value


@pytest.mark.parametrize(("kind", "given", "reason"), REFUSED)
def test_refuses(kind: Kind[object], given: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kind.parse(given)


def test_an_address_shows_as_it_is_written() -> None:
    assert [str(Address("127.0.0.1", 1)), str(Address("::", 2)), str(Address("", 3))] == [
        "127.0.0.1:1",
        "[::]:2",
        ":3",
    ]


def test_tls_required_is_true_unless_it_is_not() -> None:
    assert [bool(one) for one in TlsRequired] == [False, True, True]
