"""Snappy's framing format, both ways, written for tests from its description.

The broker's own implementation must not be what checks it, so this one is separate, plain and slow.
It is also strict where a decoder may be lax: it fails on a wrong checksum, a chunk above 64 KiB, a
missing stream identifier.
"""

from __future__ import annotations

import cramjam

STREAM_ID = b"\xff\x06\x00\x00sNaPpY"
CHUNK_BYTES_MAX = 65536


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def chunk(kind: int, payload: bytes) -> bytes:
    return bytes([kind]) + len(payload).to_bytes(3, "little") + payload


class SnappyEncoder:
    """What a client sends: the identifier, then a chunk per 64 KiB (type 01 if not `compress`)."""

    def __init__(self, *, compress: bool = True) -> None:
        self._started = False
        self._compress = compress

    def encode(self, data: bytes) -> bytes:
        out = b"" if self._started else STREAM_ID
        self._started = True
        for start in range(0, len(data), CHUNK_BYTES_MAX):
            piece = data[start : start + CHUNK_BYTES_MAX]
            crc = masked_crc32c(piece).to_bytes(4, "little")
            if self._compress:
                out += chunk(0x00, crc + bytes(cramjam.snappy.compress_raw(piece)))
            else:
                out += chunk(0x01, crc + piece)
        return out


class SnappyDecoder:
    """What the broker sent, back to plain bytes."""

    def __init__(self) -> None:
        self._pending = b""
        self._identified = False

    def decode(self, data: bytes) -> bytes:
        self._pending += data
        out = []
        while len(self._pending) >= 4:
            kind = self._pending[0]
            size = int.from_bytes(self._pending[1:4], "little")
            if len(self._pending) < 4 + size:
                break
            payload = self._pending[4 : 4 + size]
            self._pending = self._pending[4 + size :]
            if kind == 0xFF:
                assert payload == b"sNaPpY", f"a stream identifier reads sNaPpY, not {payload!r}"
                self._identified = True
                continue
            assert self._identified, "a snappy stream begins with its identifier"
            if kind >= 0x80:
                continue  # padding, and chunks that a reader may skip
            assert kind in {0x00, 0x01}, f"chunk type {kind:#04x} must not be sent"
            piece = payload[4:]
            if kind == 0x00:
                piece = bytes(cramjam.snappy.decompress_raw(piece))
            assert len(piece) <= CHUNK_BYTES_MAX, "a chunk holds at most 64 KiB"
            crc = int.from_bytes(payload[:4], "little")
            assert crc == masked_crc32c(piece), "a chunk's checksum is wrong"
            out.append(piece)
        return b"".join(out)
