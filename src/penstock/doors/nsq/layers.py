"""What may lie between a connection's bytes and NSQ's protocol: TLS, snappy's framing, raw deflate.

Each layer takes bytes as they came from the socket (or from the layer below) and yields decoded
pieces of bounded size, so that a decompression bomb costs its reader time and no memory; the other
way it makes of each write a whole that the peer can decode at once. How the bytes are cut into
reads changes nothing of what comes out, put together.

    socket -> TlsLayer.feed -> SnappyLayer.feed or DeflateLayer.feed -> the protocol's scan
    socket <- TlsLayer.wrap <- SnappyLayer.wrap or DeflateLayer.wrap <- frames

Sans-IO and synchronous: no layer knows a socket, an event loop, a clock or a command.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Iterator
from typing import Protocol

import cramjam

from penstock.errors import PenstockError
from penstock.limits import MIB

PIECE_BYTES_MAX = 1 * MIB


class LayerError(PenstockError):
    """The peer's bytes are not what this layer reads; nothing after them can be read either."""


class Layer(Protocol):
    """One connection's both directions.

    ``feed`` keeps what it was given until the iterator has been run that far: an iterator that is
    left early loses nothing, the next one goes on there. After ``ended`` the peer sends no more.
    """

    ended: bool

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of at most ``PIECE_BYTES_MAX`` that ``data`` completes; LayerError on garbage."""
        ...

    def wrap(self, data: bytes) -> bytes:
        """The same bytes for the wire, flushed."""
        ...

    def close(self) -> bytes:
        """What tells the peer that this was all."""
        ...


# --- deflate -----------------------------------------------------------------------------------

_RAW_DEFLATE = -15


class DeflateLayer:
    """Raw deflate, one stream each way for the whole connection, a sync flush behind each write."""

    __slots__ = ("ended", "_inflate", "_deflate", "_pending")

    def __init__(self, level: int) -> None:
        self.ended = False
        self._inflate = zlib.decompressobj(_RAW_DEFLATE)
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE)
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._pending = self._pending + data if self._pending else data
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        inflate = self._inflate
        full = True
        # a full piece may leave more inside zlib, even when all input was taken
        while full and not self.ended:
            try:
                piece = inflate.decompress(self._pending, PIECE_BYTES_MAX)
            except zlib.error as error:
                raise LayerError(f"the deflate stream cannot be read ({error})") from error
            self._pending = inflate.unconsumed_tail
            # the final block: what a peer writes that closes its stream
            self.ended = inflate.eof
            full = len(piece) == PIECE_BYTES_MAX
            if piece:
                yield piece
        if self.ended:
            self._pending = b""

    def wrap(self, data: bytes) -> bytes:
        if not data:
            return b""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def close(self) -> bytes:
        return self._deflate.flush(zlib.Z_FINISH)


# --- snappy ------------------------------------------------------------------------------------

# A chunk: type u8, length u24 little-endian, then that many bytes.
#   ff  stream identifier, "sNaPpY"; first in the stream, may come again
#   00  masked CRC32C of the plain bytes, then the compressed ones
#   01  masked CRC32C of the plain bytes, then themselves
#   02 .. 7f  not to be skipped: an error      80 .. fe  to be skipped (fe is padding)
_COMPRESSED, _PLAIN, _STREAM = 0x00, 0x01, 0xFF
_UNSKIPPABLE_END = 0x80
_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_NO_IDENTIFIER = "the snappy stream does not begin with its identifier"
_HEAD_BYTES = 4
_CRC_BYTES = 4
_BLOCK_BYTES_MAX = 65_536
# the format's bound for 65,536 plain bytes when they cannot be compressed
_BLOCK_COMPRESSED_BYTES_MAX = 32 + _BLOCK_BYTES_MAX + _BLOCK_BYTES_MAX // 6
_CHUNK_BYTES_MAX = {
    _COMPRESSED: _CRC_BYTES + _BLOCK_COMPRESSED_BYTES_MAX,
    _PLAIN: _CRC_BYTES + _BLOCK_BYTES_MAX,
}
# no run of the format's copies, 3 bytes for 64, makes more of compressed bytes than this
_RATIO_MAX = 22


class SnappyLayer:
    """Snappy's framing format; a write becomes chunks of at most 65,536 plain bytes."""

    __slots__ = ("ended", "_opened", "_identified", "_data", "_at", "_skip")

    def __init__(self) -> None:
        self.ended = False
        self._opened = False  # outgoing: the stream identifier has been written
        self._identified = False  # incoming: it has been read
        self._data = b""
        self._at = 0  # everything before it has been yielded or passed over
        self._skip = 0  # bytes of a chunk to be skipped that have yet to come

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._data = self._data[self._at :] + data
        self._at = 0
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        while chunks := self._next_run():
            try:
                piece = bytes(cramjam.snappy.decompress(_STREAM_IDENTIFIER + chunks))
            except cramjam.DecompressionError as error:
                raise LayerError(f"the snappy stream cannot be read ({error})") from error
            if piece:
                yield piece

    def _next_run(self) -> bytes:
        """The next whole data chunks that stand together and make one piece; or nothing."""
        data = self._data
        end = len(data)
        skipped = min(self._skip, end - self._at)
        self._skip -= skipped
        start = at = self._at + skipped
        room = PIECE_BYTES_MAX
        while end - at >= _HEAD_BYTES:
            kind = data[at]
            size = int.from_bytes(data[at + 1 : at + 4], "little")
            if kind not in _CHUNK_BYTES_MAX:
                if at > start:
                    break
                passed = self._pass_over(kind, size, data, at)
                if not passed:
                    break
                start = at = at + passed
                continue
            if not self._identified:
                raise LayerError(_NO_IDENTIFIER)
            if not _CRC_BYTES <= size <= _CHUNK_BYTES_MAX[kind]:
                raise LayerError(f"a snappy chunk of type {kind:02x} has {size} bytes")
            room -= min(_BLOCK_BYTES_MAX, size * _RATIO_MAX)
            if at + _HEAD_BYTES + size > end or room < 0:
                break
            at += _HEAD_BYTES + size
        self._at = at
        return data[start:at]

    def _pass_over(self, kind: int, size: int, data: bytes, at: int) -> int:
        """How many bytes here belong to a chunk without data; 0: it must be whole first."""
        whole = _HEAD_BYTES + size
        if kind == _STREAM:
            if size != len(_STREAM_IDENTIFIER) - _HEAD_BYTES:
                raise LayerError(f"a snappy stream identifier has {size} bytes")
            if at + whole > len(data):
                return 0
            if not data.startswith(_STREAM_IDENTIFIER, at):
                raise LayerError("a snappy stream identifier is not sNaPpY")
            self._identified = True
            return whole
        if not self._identified:
            raise LayerError(_NO_IDENTIFIER)
        if kind < _UNSKIPPABLE_END:
            raise LayerError(f"a snappy chunk has the unknown type {kind:02x}")
        here = min(whole, len(data) - at)
        self._skip = whole - here
        return here

    def wrap(self, data: bytes) -> bytes:
        if not data:
            return b""
        framed = cramjam.snappy.compress(data)
        if self._opened:
            return bytes(memoryview(framed)[len(_STREAM_IDENTIFIER) :])
        self._opened = True
        return bytes(framed)

    def close(self) -> bytes:
        # the format has no end
        return b""


# --- TLS ---------------------------------------------------------------------------------------

_RECORD_BYTES_MAX = 16_384


class TlsLayer:
    """The server's side of TLS. ``secure`` once the handshake is done, ``ended`` once the peer has
    closed.

    The handshake has its own things to say: after every ``feed``, also one that raised, the
    connection sends what ``take_outgoing`` gives. ``wrap`` takes it along.
    """

    __slots__ = ("ended", "secure", "_incoming", "_outgoing", "_tls")

    def __init__(self, context: ssl.SSLContext) -> None:
        self.ended = False
        self.secure = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not self.ended:
            self._incoming.write(data)
        return self._pieces()

    def _pieces(self) -> Iterator[bytes]:
        try:
            if not self.secure:
                self._tls.do_handshake()
                self.secure = True
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise LayerError(f"the TLS handshake failed ({_reason(error)})") from error
        waiting = False
        while not waiting and not self.ended:
            records: list[bytes] = []
            broken: ssl.SSLError | None = None
            # a piece of whole records: one scan for many of them
            while len(records) < PIECE_BYTES_MAX // _RECORD_BYTES_MAX:
                try:
                    record = self._tls.read(_RECORD_BYTES_MAX)
                except ssl.SSLWantReadError:
                    waiting = True
                    break
                except ssl.SSLZeroReturnError:
                    self.ended = True
                    break
                except ssl.SSLError as error:
                    broken = error
                    break
                if not record:  # the same as SSLZeroReturnError, as read() says it
                    self.ended = True
                    break
                records.append(record)
            if records:
                yield b"".join(records)
            if broken is not None:
                raise LayerError(f"the TLS stream cannot be read ({_reason(broken)})") from broken

    def take_outgoing(self) -> bytes:
        """Bytes of handshakes and alerts, to be sent as they are."""
        return self._outgoing.read()

    def wrap(self, data: bytes) -> bytes:
        assert self.secure, "nothing is said inside TLS before the handshake is done"
        view = memoryview(data)
        try:
            while view:
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            raise LayerError(f"the TLS stream cannot be written ({_reason(error)})") from error
        return self._outgoing.read()

    def close(self) -> bytes:
        """An alert, and what else is still to be sent."""
        if self.secure:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                # the peer's alert has not come, or the stream is broken; ours is out either way
                pass
        return self._outgoing.read()

    @property
    def version(self) -> str:
        """As Go's tools name it: TLS1.3."""
        version = (self._tls.version() or "").replace("TLSv", "TLS")
        return "TLS1.0" if version == "TLS1" else version

    @property
    def cipher(self) -> str:
        """OpenSSL's name of it."""
        cipher = self._tls.cipher()
        return cipher[0] if cipher is not None else ""

    @property
    def common_name(self) -> str:
        """The name in the client's certificate; empty without one."""
        if not self.secure:
            return ""
        certificate = self._tls.getpeercert() or {}
        for names in certificate.get("subject", ()):
            for pair in names:
                if pair[0] == "commonName":
                    return str(pair[1])
        return ""


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
