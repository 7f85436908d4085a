"""The name server's protocol and its memory: any chunking gives the same commands, and whatever
brokers say in any order, what is registered is what a plain set of names says."""

from __future__ import annotations

from itertools import pairwise
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PeerError
from penstock.lookup.registry import Producer, Registry
from penstock.protocol.lookup import (
    MAGIC,
    PING,
    AnswerReader,
    CommandReader,
    Node,
    encode_answer,
    encode_identify,
    encode_register,
    encode_unregister,
)
from tests.property.budget import budget

NODE = Node("b", "h", 1, 2, "v")

names = st.sampled_from(["t", "u", "t#ephemeral", "x" * 64, "x" * 65, "?", ""])
pieces = st.one_of(
    st.builds(encode_register, names, names),
    st.builds(encode_unregister, names, names),
    st.sampled_from(
        [PING, b"\n", b"PING\r\n", b"ping\n", b"REGISTER t", b"x" * 9_000, b"IDENTIFY\n"]
    ),
    st.just(encode_identify(NODE)),
    st.binary(max_size=20).map(lambda body: b"IDENTIFY\n" + pack(">I", len(body)) + body),
    st.binary(max_size=20),
)
starts = st.sampled_from([MAGIC + encode_identify(NODE), MAGIC + PING, MAGIC, b"  V2", b""])
streams = st.builds(lambda start, many: start + b"".join(many), starts, st.lists(pieces))


def shown(found: list[object]) -> list[object]:
    return [str(one) if isinstance(one, PeerError) else one for one in found]


@budget(300)
@given(st.data(), streams)
def test_any_chunking_gives_the_same_commands(data: st.DataObject, stream: bytes) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream))).map(sorted))
    whole = shown([*CommandReader().feed(stream)])
    reader = CommandReader()
    in_pieces = []
    for begin, end in pairwise([0, *cuts, len(stream)]):
        in_pieces += reader.feed(stream[begin:end])
    assert shown([*in_pieces]) == whole
    assert not any(isinstance(one, PeerError) for one in in_pieces[:-1])


@given(st.lists(st.binary(max_size=30)), st.data())
def test_any_chunking_gives_the_same_answers(answers: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_answer, answers))
    cuts = data.draw(st.lists(st.integers(0, len(stream))).map(sorted))
    reader = AnswerReader()
    found = []
    for begin, end in pairwise([0, *cuts, len(stream)]):
        found += reader.feed(stream[begin:end])
    assert found == answers


Fact = tuple[int, str, str]

topics = st.sampled_from(["t", "u", "e#ephemeral"])
channels = st.sampled_from(["", "c", "d", "e#ephemeral"])
doings = st.sampled_from(
    ["register", "register", "register", "unregister", "vanish", "delete", "forget", "make"]
)
steps = st.lists(st.tuples(doings, st.integers(0, 2), topics, channels), max_size=60)


@budget(300)
@given(steps)
def test_a_registry_is_a_set_of_facts(script: list[tuple[str, int, str, str]]) -> None:
    registry = Registry()
    producers: list[Producer | None] = [None, None, None]
    facts: set[Fact] = set()
    known: set[tuple[str, str]] = set()

    def left(gone: set[Fact]) -> None:
        facts.difference_update(gone)
        for _, topic, channel in gone:
            used = any((topic, channel) == fact[1:] for fact in facts)
            if not used and (channel or topic).endswith("#ephemeral"):
                known.discard((topic, channel))
        for topic, channel in [*known]:
            if channel and (topic, "") not in known:
                known.discard((topic, channel))

    for doing, number, topic, channel in script:
        producer = producers[number]
        if doing == "vanish" and producer is not None:
            registry.remove(producer)
            producers[number] = None
            left({fact for fact in facts if fact[0] == number})
        elif doing == "register":
            if producer is None:
                producer = producers[number] = Producer(f"{number}", NODE, 0)
                registry.add(producer)
            registry.register(producer, topic, channel)
            facts |= {(number, topic, ""), (number, topic, channel)}
            known |= {(topic, ""), (topic, channel)}
        elif doing == "unregister" and producer is not None:
            registry.unregister(producer, topic, channel)
            left(
                {fact for fact in facts if fact[:2] == (number, topic) and channel in ("", fact[2])}
            )
        elif doing == "delete":
            registry.delete_topic(topic)
            facts -= {fact for fact in facts if fact[1] == topic}
            known -= {one for one in known if one[0] == topic}
        elif doing == "forget" and channel:
            assert registry.delete_channel(topic, channel) == ((topic, channel) in known)
            facts -= {fact for fact in facts if fact[1:] == (topic, channel)}
            known.discard((topic, channel))
        elif doing == "make" and channel:
            registry.make_channel(topic, channel)
            known |= {(topic, ""), (topic, channel)}
        registry.verify()
        said = {(int(one.remote_address), t, c) for t, c, one, _ in registry.registrations()}
        assert said == facts
        names = {(t, c) for t in registry.topics() for c in ["", *registry.channels(t)]}
        assert names == known
