"""Bytes are a message's attributes, the same when encoded and decoded again, or CorruptionError."""

from penstock.errors import CorruptionError
from penstock.protocol.attributes import Attributes, decode_attributes, encode_attributes


def seeds() -> list[bytes]:
    everything = Attributes(
        key="k\xe4",
        tags=("a", "b"),
        headers={"trace": "1", "": ""},
        priority=-3,
        due_at_ns=1 << 60,
        expires_at_ns=0,
        dedupe_id="d",
    )
    return [encode_attributes(one) for one in (everything, Attributes(), Attributes(key=""))]


def check(data: bytes) -> None:
    try:
        found = decode_attributes(data)
    except CorruptionError:
        return
    assert decode_attributes(encode_attributes(found)) == found
