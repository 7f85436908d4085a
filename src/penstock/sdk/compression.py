"""A connection's compressed stream, as NSQ negotiates it in IDENTIFY: Snappy's framing or raw
deflate.

Stands between the socket's bytes and the protocol's. What comes in may end in the middle of a
chunk; what goes out is complete after each write, so that the broker need not wait for more to read
it.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import cramjam

from penstock.errors import PeerError
from penstock.sdk.options import Compression

# The chunk that opens a Snappy stream; the decoder wants it in front of whatever it is given.
_SNAPPY_OPENING = b"\xff\x06\x00\x00sNaPpY"
_RAW_DEFLATE = -15


class Codec(Protocol):
    """Both directions of one connection."""

    def compress(self, data: bytes) -> bytes:
        """Bytes for the socket, complete in themselves."""
        ...

    def decompress(self, data: bytes) -> bytes:
        """All plain bytes that ``data`` completes; maybe none."""
        ...


def new_codec(compression: Compression, deflate_level: int) -> Codec:
    """A fresh codec for one connection."""
    return Snappy() if compression == "snappy" else Deflate(deflate_level)


class Snappy:
    """Snappy's framing format: chunks of a type byte and a 3-byte little-endian length."""

    __slots__ = ("_opened", "_rest")

    def __init__(self) -> None:
        self._opened = False
        self._rest = b""

    def compress(self, data: bytes) -> bytes:
        framed = bytes(cramjam.snappy.compress(data))
        if self._opened:
            return framed[len(_SNAPPY_OPENING) :]
        self._opened = True
        return framed

    def decompress(self, data: bytes) -> bytes:
        data = self._rest + data if self._rest else data
        end = 0
        while len(data) - end >= 4:
            after = end + 4 + int.from_bytes(data[end + 1 : end + 4], "little")
            if after > len(data):
                break
            end = after
        self._rest = data[end:]
        if not end:
            return b""
        chunks = data[:end]
        if not chunks.startswith(_SNAPPY_OPENING):
            chunks = _SNAPPY_OPENING + chunks
        try:
            return bytes(cramjam.snappy.decompress(chunks))
        except cramjam.DecompressionError as error:
            raise PeerError("E_BAD_STREAM", f"the Snappy stream cannot be read: {error}") from error


class Deflate:
    """Raw deflate (no zlib header), flushed after each write."""

    __slots__ = ("_deflate", "_inflate")

    def __init__(self, level: int) -> None:
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE)
        self._inflate = zlib.decompressobj(_RAW_DEFLATE)

    def compress(self, data: bytes) -> bytes:
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def decompress(self, data: bytes) -> bytes:
        try:
            return self._inflate.decompress(data)
        except zlib.error as error:
            raise PeerError(
                "E_BAD_STREAM", f"the deflate stream cannot be read: {error}"
            ) from error
