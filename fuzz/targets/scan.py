"""Any bytes, in any pieces, are the commands that a scanner finds which reads them one by one."""

from collections.abc import Iterator
from struct import pack

from penstock.protocol.nsq import Limits
from tests.property.naive_scan import in_pieces, naive_scan, whole

LIMITS = Limits(message_size_max=40, body_size_max=120, req_timeout_ms_max=3_600_000)


def seeds() -> list[bytes]:
    """The first byte says how to cut the rest."""
    one = pack(">i", 1) + b"x"
    fin = b"FIN 0123456789abcdef\n"
    batch = pack(">i", 2) + one + one
    streams = [
        (b"PUB orders\n" + one) * 3 + fin * 3,
        b"MPUB orders\n" + pack(">i", len(batch)) + batch + b"DPUB orders 50\n" + one,
        b"IDENTIFY\n" + pack(">i", 2) + b"{}" + b"SUB orders billing#ephemeral\nRDY 9\nNOP\n",
        b"REQ 0123456789abcdef 100\r\nTOUCH 0123456789abcdef\nAUTH\n" + one + b"CLS\n",
    ]
    return [bytes([step]) + stream for step, stream in zip((0, 1, 5, 77), streams)]


def check(data: bytes) -> None:
    stream = data[1:]
    found = whole(stream, LIMITS)
    assert found == naive_scan(stream, LIMITS)
    assert in_pieces(_cut(data[0] if data else 0, stream), LIMITS) == found[0]


def _cut(step: int, stream: bytes) -> Iterator[bytes]:
    """Pieces of ``step`` bytes, each a little longer than the one before; all at once for 0."""
    at = 0
    while at < len(stream):
        size = step or len(stream)
        yield stream[at : at + size]
        at, step = at + size, step + (step % 3 if step else 0)
