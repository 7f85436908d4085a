"""What lookups show, as time goes by. (Who is registered where is tested as a property.)"""

from __future__ import annotations

import pytest

from penstock.errors import PeerError
from penstock.lookup import registry as module
from penstock.lookup.registry import Producer, Registry, RegistryOptions
from penstock.protocol.lookup import Node

S = 1_000_000_000


def producer(name: str, heard_at_ns: int = 0) -> Producer:
    return Producer(f"{name}:5000", Node(name, name, 4150, 4151, "1.3.0"), heard_at_ns)


def test_who_is_silent_for_too_long_is_not_shown() -> None:
    registry = Registry(RegistryOptions(inactive_timeout_ms=300_000))
    one = producer("a", 10 * S)
    registry.add(one)
    registry.register(one, "t", "c")
    assert registry.producers_of("t", 310 * S) == [one]
    assert registry.producers_of("t", 310 * S + 1) == []
    assert registry.active(310 * S + 1) == []
    assert registry.channels("t") == ["c"]
    one.heard_at_ns = 310 * S
    assert registry.producers_of("t", 310 * S + 1) == registry.active(400 * S) == [one]


def test_a_tombstone_hides_one_producer_of_one_topic_for_its_lifetime() -> None:
    registry = Registry(RegistryOptions(tombstone_lifetime_ms=45_000))
    one, other = producer("a"), producer("b")
    for each in (one, other):
        registry.add(each)
        registry.register(each, "t", "")
        registry.register(each, "u", "")
    registry.tombstone("t", "a:4151", 10 * S)
    registry.tombstone("nowhere", "a:4151", 10 * S)
    assert registry.producers_of("t", 54 * S) == [other]
    assert registry.producers_of("u", 54 * S) == [one, other]
    assert registry.topics_of(one, 54 * S) == {"t": True, "u": False}
    assert registry.active(54 * S) == [one, other]
    registry.register(one, "t", "c")
    assert registry.producers_of("t", 54 * S) == [other], "it says again what it had said"
    assert registry.producers_of("t", 55 * S) == [one, other]

    registry.tombstone("t", "a:4151", 60 * S)
    registry.unregister(one, "t", "")
    registry.register(one, "t", "")
    assert one in registry.producers_of("t", 61 * S), "it is there anew"


def test_what_had_producers_stays_known_unless_it_is_ephemeral() -> None:
    registry = Registry()
    one = producer("a")
    registry.add(one)
    for topic, channel in (("t", "c"), ("t", "d#ephemeral"), ("e#ephemeral", "c")):
        registry.register(one, topic, channel)
    registry.remove(one)
    assert registry.topics() == ["t"]
    assert registry.channels("t") == ["c"]
    assert "t" in registry and "e#ephemeral" not in registry


def test_a_flood_of_names_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 10)
    registry = Registry()
    one = producer("a")
    registry.add(one)
    for number in range(10):
        registry.register(one, f"t{number}", "")
    with pytest.raises(PeerError, match="E_INVALID REGISTER of more than 10"):
        registry.register(one, "t10", "")
    assert len(registry.topics()) == 10
