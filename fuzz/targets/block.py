"""Bytes are a block that encodes to the same bytes again, or CorruptionError; and never hold more.

Damage that the checksum finds is the rule; so that the search gets behind it, each input is also
tried with the length and the checksum put right.
"""

from fuzz.targets.forged import with_checksum
from penstock.errors import CorruptionError
from penstock.protocol.block import (
    CHECKED_FROM,
    HEADER_BYTES,
    Block,
    decode,
    decode_run,
    encode,
    gather,
)
from tests.support.blocks import block


def seeds() -> list[bytes]:
    blocks = [
        block(7, [b"a", b"bc", b""]),
        block(0, [b"x"] * 3, seqs=[0, 4, 9], ids=[1 << 40, 5, 6], wakes=[8, 9, 10]),
        block(3, [b"m", b"n"], ids=[(9 << 40) | 1, (9 << 40) | 2], mark=(55, 2), lane=4),
        block(1, [b"y", b"z"], attributes=[b"\x01\x01\0\0\0k", b""]),
    ]
    stored = [b"".join(encode(one)) for one in blocks]
    run = b"".join([b"".join(encode(block(base, [b"v"]))) for base in range(3)])
    return [*stored, run, stored[0] + stored[1] + run]


def check(data: bytes) -> None:
    _check(data)
    if len(data) >= HEADER_BYTES:
        with_length = data[:8] + len(data).to_bytes(4, "little") + data[12:]
        _check(with_checksum(with_length, CHECKED_FROM))


def _check(stored: bytes) -> None:
    found: list[Block] = []
    at = 0
    while at < len(stored):
        try:
            one = decode(stored, at)
        except CorruptionError:
            break
        again = b"".join(encode(one))
        assert stored.startswith(again, at)
        held = [len(one.frames), *[len(column or ()) * 4 for column in (one.ends, one.seqs)]]
        assert sum(held) + sum(map(len, one.attributes or ())) <= len(again)
        if found and one.base != found[-1].end:
            break
        found.append(one)
        at += len(again)
    try:
        run, end = decode_run(stored, 0, len(stored))
    except CorruptionError:
        run, end = [], 0
    assert (run, end) == (found, at)
    assert sum([len(one.frames) for one in gather(run)]) == sum([len(one.frames) for one in run])
