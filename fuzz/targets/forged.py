"""Checksums put right, so that a search gets behind them. No fuzzer of its own."""

from zlib import crc32


def with_checksum(stored: bytes, checked_from: int) -> bytes:
    """The same bytes with their CRC-32 (little-endian at 4) as if somebody had meant them."""
    crc = crc32(stored[checked_from:])
    return stored[:4] + crc.to_bytes(4, "little") + stored[8:]
