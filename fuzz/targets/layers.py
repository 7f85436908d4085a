"""However a compressed stream is cut, it is the same bytes, in bounded pieces, or LayerError."""

import cramjam

from penstock.doors.nsq.layers import (
    PIECE_BYTES_MAX,
    DeflateLayer,
    Layer,
    LayerError,
    SnappyLayer,
)

BYTES_MAX = 6 * PIECE_BYTES_MAX  # of a bomb, enough is seen by then


def seeds() -> list[bytes]:
    """The first byte says which layer, and how to cut the rest."""
    snappy, deflate = SnappyLayer(), DeflateLayer(6)
    texts = [b"PUB orders\n\0\0\0\1x" * 9, b"NOP\n", b"a" * 200_000]
    bomb = DeflateLayer(9).wrap(b"\0" * (3 * PIECE_BYTES_MAX))
    chunk = bytes(cramjam.snappy.compress(b"\0" * 65_536))
    return [
        b"\x00" + b"".join([deflate.wrap(text) for text in texts]),
        b"\x0d" + bomb,
        b"\x01" + b"".join([snappy.wrap(text) for text in texts]),
        b"\x0b" + snappy.wrap(b"x") + b"\xfe\x03\0\0pad" + snappy.wrap(b"y" * 70_000),
        b"\x01" + chunk + chunk[10:],
    ]


def check(data: bytes) -> None:
    choice, stream = (data[0], data[1:]) if data else (0, b"")
    step = (choice >> 1) * 7 + 1
    at_once, failed = _read(_layer(choice), [stream])
    cut, cut_failed = _read(
        _layer(choice), [stream[i : i + step] for i in range(0, len(stream), step)]
    )
    if min(len(at_once), len(cut)) < BYTES_MAX:
        assert failed == cut_failed
        # what stands before the damage may have been handed on already
        assert cut == at_once if not failed else cut.startswith(at_once) or at_once.startswith(cut)
    writer, reader = _layer(choice), _layer(choice)
    for _ in range(2):
        assert _read(reader, [writer.wrap(stream)]) == (stream, False)


def _layer(choice: int) -> Layer:
    return SnappyLayer() if choice & 1 else DeflateLayer(1)


def _read(layer: Layer, pieces: list[bytes]) -> tuple[bytes, bool]:
    """What comes out, and whether it ended in an error."""
    out = bytearray()
    try:
        for data in pieces:
            for piece in layer.feed(data):
                assert 0 < len(piece) <= PIECE_BYTES_MAX
                out += piece
                if len(out) >= BYTES_MAX:
                    return bytes(out), False
    except LayerError:
        return bytes(out), True
    return bytes(out), False
