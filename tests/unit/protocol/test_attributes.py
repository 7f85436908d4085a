"""What a message carries beside its body, as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptionError
from penstock.protocol.attributes import (
    DUE,
    FIELD,
    HEADER,
    KEY,
    PRIORITY,
    Attributes,
    decode_attributes,
    encode_attributes,
)

texts = st.text(max_size=9)
times = st.none() | st.integers(-(2**63), 2**63 - 1)
attributes = st.builds(
    Attributes,
    key=st.none() | texts,
    tags=st.lists(texts, max_size=3).map(tuple),
    headers=st.dictionaries(texts, texts, max_size=3),
    priority=st.integers(-(2**31), 2**31 - 1),
    due_at_ns=times,
    expires_at_ns=times,
    dedupe_id=st.none() | texts,
)


@given(attributes)
def test_what_is_encoded_is_decoded(given_attributes: Attributes) -> None:
    assert decode_attributes(encode_attributes(given_attributes)) == given_attributes


def test_a_message_without_any_has_an_empty_entry() -> None:
    assert encode_attributes(Attributes()) == b""
    assert decode_attributes(b"") == Attributes()


def test_an_entry_is_laid_out_as_documented() -> None:
    entry = encode_attributes(Attributes(key="k", tags=("a", "b"), headers={"n": "v"}, priority=-2))
    assert entry == (
        b"\x01\x01\x00\x00\x00k"
        b"\x02\x01\x00\x00\x00a"
        b"\x02\x01\x00\x00\x00b"
        b"\x03\x04\x00\x00\x00\x01\x00nv"
        b"\x04\x04\x00\x00\x00\xfe\xff\xff\xff"
    )


def test_a_kind_of_a_newer_version_is_skipped() -> None:
    entry = FIELD.pack(200, 3) + b"new" + encode_attributes(Attributes(key="k"))
    assert decode_attributes(entry) == Attributes(key="k")


@given(attributes.filter(lambda one: one != Attributes()), st.data())
def test_an_entry_cut_inside_a_field_is_refused(one: Attributes, data: st.DataObject) -> None:
    entry = encode_attributes(one)
    borders = {0}
    at = 0
    while at < len(entry):
        at += FIELD.size + FIELD.unpack_from(entry, at)[1]
        borders.add(at)
    cut = data.draw(st.sampled_from(sorted({*range(len(entry))} - borders)))
    with pytest.raises(CorruptionError, match="cut short"):
        decode_attributes(entry[:cut])


@pytest.mark.parametrize(
    "entry",
    [
        FIELD.pack(KEY, 1) + b"\xff",
        FIELD.pack(PRIORITY, 3) + b"\0\0\0",
        FIELD.pack(DUE, 9) + b"\0" * 9,
        FIELD.pack(HEADER, 1) + b"\0",
    ],
)
def test_a_field_that_nobody_wrote_is_damage(entry: bytes) -> None:
    with pytest.raises(CorruptionError, match="cut short or damaged"):
        decode_attributes(entry)
