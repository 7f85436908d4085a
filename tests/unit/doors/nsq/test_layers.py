"""Layers against other implementations: zlib, the test kit's own snappy, and ssl's client side.

However the bytes are cut, the same come out; each piece is bounded; garbage is an error.
"""

from __future__ import annotations

import ssl
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Settings, TlsClientAuth
from penstock.doors.nsq.layers import (
    PIECE_BYTES_MAX,
    DeflateLayer,
    Layer,
    LayerError,
    SnappyLayer,
    TlsLayer,
)
from penstock.runtime.tlscontext import tls_context
from tests.support.certificates import CLIENT_COMMON_NAME
from tests.support.snappyframes import (
    STREAM_ID,
    SnappyDecoder,
    SnappyEncoder,
    chunk,
    masked_crc32c,
)

if TYPE_CHECKING:
    from tests.support.certificates import Certificates

WRITES = st.lists(st.binary(max_size=300) | st.just(b"run" * 300), max_size=6)


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """The bytes in pieces, cut at these places (taken modulo the length)."""
    places = sorted({place % (len(data) + 1) for place in at} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 1 << 20), max_size=20)


def fed(layer: Layer, pieces: Iterable[bytes]) -> bytes:
    out = [piece for data in pieces for piece in layer.feed(data)]
    assert all(0 < len(piece) <= PIECE_BYTES_MAX for piece in out)
    return b"".join(out)


# --- compression -------------------------------------------------------------------------------


class RawDeflate:
    """The other side, straight from zlib."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        self._inflate = zlib.decompressobj(-15)

    def encode(self, data: bytes) -> bytes:
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._inflate.decompress(data)


class Snappy:
    """The other side, the test kit's."""

    def __init__(self, *, compress: bool) -> None:
        self.encode = SnappyEncoder(compress=compress).encode
        self.decode = SnappyDecoder().decode


SIDES: dict[str, Callable[[], tuple[Layer, RawDeflate | Snappy]]] = {
    "deflate": lambda: (DeflateLayer(6), RawDeflate()),
    "snappy": lambda: (SnappyLayer(), Snappy(compress=True)),
    "snappy, not compressed": lambda: (SnappyLayer(), Snappy(compress=False)),
}
COMPRESSED = pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES.keys())


@COMPRESSED
@given(writes=WRITES, cuts=CUTS)
def test_what_a_client_writes_comes_out_however_it_is_cut(
    sides: Callable[[], tuple[Layer, RawDeflate | Snappy]], writes: list[bytes], cuts: list[int]
) -> None:
    layer, client = sides()
    sent = b"".join(client.encode(data) for data in writes if data)
    assert fed(layer, cut(sent, cuts)) == b"".join(writes)
    assert not layer.ended


@COMPRESSED
def test_single_bytes(sides: Callable[[], tuple[Layer, RawDeflate | Snappy]]) -> None:
    layer, client = sides()
    sent = client.encode(b"one" * 30) + client.encode(b"two")
    assert fed(layer, [bytes([byte]) for byte in sent]) == b"one" * 30 + b"two"


@COMPRESSED
@given(writes=WRITES)
def test_a_client_can_read_each_write_at_once(
    sides: Callable[[], tuple[Layer, RawDeflate | Snappy]], writes: list[bytes]
) -> None:
    layer, client = sides()
    for data in writes:
        assert client.decode(layer.wrap(data)) == data


@COMPRESSED
def test_large_writes_both_ways(
    sides: Callable[[], tuple[Layer, RawDeflate | Snappy]],
) -> None:
    layer, client = sides()
    plain = bytes(range(256)) * 600  # three chunks of snappy's
    sent = client.encode(plain)
    assert fed(layer, cut(sent, range(0, len(sent), 1000))) == plain
    assert client.decode(layer.wrap(plain)) == plain


@COMPRESSED
def test_nothing_costs_nothing(sides: Callable[[], tuple[Layer, RawDeflate | Snappy]]) -> None:
    layer, _ = sides()
    assert layer.wrap(b"") == b""
    assert list(layer.feed(b"")) == []


@COMPRESSED
def test_an_iterator_left_early_loses_nothing(
    sides: Callable[[], tuple[Layer, RawDeflate | Snappy]],
) -> None:
    layer, client = sides()
    plain = bytes(range(256)) * 10_000  # more than two pieces
    pieces = layer.feed(client.encode(plain))
    first = next(iter(pieces))
    assert first + fed(layer, [client.encode(b"more")]) == plain + b"more"


@pytest.mark.parametrize(
    ("layer", "encode"),
    [(DeflateLayer(6), RawDeflate().encode), (SnappyLayer(), cramjam.snappy.compress)],
    ids=["deflate", "snappy"],
)
def test_a_bomb_comes_out_in_bounded_pieces(layer: Layer, encode: Callable[[bytes], bytes]) -> None:
    bomb = bytes(encode(bytes(32 * PIECE_BYTES_MAX)))
    tracemalloc.start()
    try:
        total = sum(len(piece) for piece in layer.feed(bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 32 * PIECE_BYTES_MAX
    assert peak < 4 * PIECE_BYTES_MAX + 4 * len(bomb)


@COMPRESSED
@given(writes=WRITES, place=st.integers(0, 1 << 20), flip=st.integers(1, 255), cuts=CUTS)
def test_a_flipped_byte_is_an_error_or_other_bytes_and_nothing_worse(
    sides: Callable[[], tuple[Layer, RawDeflate | Snappy]],
    writes: list[bytes],
    place: int,
    flip: int,
    cuts: list[int],
) -> None:
    layer, client = sides()
    sent = bytearray(b"".join(client.encode(data) for data in [*writes, b"last"] if data))
    sent[place % len(sent)] ^= flip
    try:
        fed(layer, cut(bytes(sent), cuts))
    except LayerError:
        pass  # deflate has no checksum: it may as well have come out as something else


# --- deflate -----------------------------------------------------------------------------------


def test_deflate_garbage_is_an_error() -> None:
    with pytest.raises(LayerError, match="the deflate stream cannot be read"):
        list(DeflateLayer(6).feed(b"\xff\xff\xff\xff"))


def test_a_closed_deflate_stream_is_the_end() -> None:
    layer = DeflateLayer(1)
    writer = zlib.compressobj(6, zlib.DEFLATED, -15)
    sent = writer.compress(b"the last words") + writer.flush()
    assert b"".join(layer.feed(sent + b"what follows is nobody's")) == b"the last words"
    assert layer.ended
    assert list(layer.feed(b"more of it")) == []


# --- snappy ------------------------------------------------------------------------------------


def plain_chunk(data: bytes, crc: int | None = None) -> bytes:
    value = masked_crc32c(data) if crc is None else crc
    return chunk(0x01, value.to_bytes(4, "little") + data)


def test_the_identifier_is_written_once() -> None:
    layer = SnappyLayer()
    assert layer.wrap(b"a").startswith(STREAM_ID)
    assert STREAM_ID not in layer.wrap(b"b")


def test_writes_are_cut_into_chunks_of_64_kib() -> None:
    # the decoder fails on larger ones
    data = bytes(range(256)) * 1000
    assert SnappyDecoder().decode(SnappyLayer().wrap(data)) == data


@given(cuts=CUTS)
def test_padding_skippable_chunks_and_further_identifiers_are_passed_over(cuts: list[int]) -> None:
    stream = (
        STREAM_ID
        + chunk(0xFE, bytes(100))
        + plain_chunk(b"one")
        + chunk(0x80, b"")
        + STREAM_ID
        + plain_chunk(b"two")
        + plain_chunk(b"")
        + chunk(0xFD, bytes(70_000))
        + plain_chunk(b"three")
    )
    assert fed(SnappyLayer(), cut(stream, cuts)) == b"onetwothree"


def test_a_skippable_chunk_is_not_kept() -> None:
    layer = SnappyLayer()
    skipped = (1 << 24) - 1
    head = STREAM_ID + b"\x99" + skipped.to_bytes(3, "little")
    tracemalloc.start()
    try:
        assert fed(layer, [head]) == b""
        for _ in range(skipped // 1023):
            assert fed(layer, [bytes(1023)]) == b""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    rest = bytes(skipped % 1023)
    assert fed(layer, [rest + plain_chunk(b"at last")]) == b"at last"


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (plain_chunk(b"x"), "does not begin with its identifier"),
        (chunk(0xFE, b"x"), "does not begin with its identifier"),
        (b"PUB t\n\x00\x00\x00\x01x", "does not begin with its identifier"),
        (chunk(0xFF, b"sNaPpX"), "is not sNaPpY"),
        (chunk(0xFF, b"sNaPpYY"), "identifier has 7 bytes"),
        (STREAM_ID + plain_chunk(b"x", crc=0), "cannot be read .*checksum"),
        (STREAM_ID + chunk(0x02, b"x"), "unknown type 02"),
        (STREAM_ID + chunk(0x7F, b"x"), "unknown type 7f"),
        (STREAM_ID + chunk(0x01, b"x"), "type 01 has 1 bytes"),
        (STREAM_ID + chunk(0x00, b"abcd\x05"), "cannot be read"),
        # said before the chunk has come
        (STREAM_ID + b"\x01\x05\x00\x01", "type 01 has 65541 bytes"),
        (STREAM_ID + b"\x00\xff\xff\xff", "type 00 has 16777215 bytes"),
        # a few bytes that say they are four billion
        (STREAM_ID + chunk(0x00, b"abcd\xff\xff\xff\xff\x0f\x00"), "cannot be read"),
        # more than 64 KiB in one chunk
        (
            STREAM_ID + chunk(0x00, b"abcd" + bytes(cramjam.snappy.compress_raw(bytes(65_537)))),
            "cannot be read",
        ),
    ],
    ids=str,
)
def test_what_is_no_snappy_stream_is_an_error(stream: bytes, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        list(SnappyLayer().feed(stream))


def test_what_came_before_an_error_comes_out_first() -> None:
    pieces = SnappyLayer().feed(STREAM_ID + plain_chunk(b"good") + chunk(0x02, b""))
    assert next(iter(pieces)) == b"good"
    with pytest.raises(LayerError, match="unknown type 02"):
        next(iter(pieces))


# --- TLS ---------------------------------------------------------------------------------------


def settings_of(certificates: Certificates, policy: TlsClientAuth) -> Settings:
    return Settings(
        tls_cert=certificates.server_cert,
        tls_key=certificates.server_key,
        tls_client_auth_policy=policy,
        tls_root_ca_file=certificates.authority,
    )


class TlsClient:
    """ssl's client side over memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def handshake(self) -> bytes:
        """One step; what is to be sent."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def take(self, data: bytes) -> None:
        self._incoming.write(data)

    def write(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def read(self) -> bytes:
        out = b""
        while True:
            try:
                data = self._tls.read(65_536)
            except ssl.SSLWantReadError:
                return out
            if not data:
                return out
            out += data

    def close(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._outgoing.read()

    def closed_by_peer(self) -> bool:
        return self._tls.read(1) == b""


def shake_hands(layer: TlsLayer, client: TlsClient, step: int | None = None) -> None:
    """Until both are done; the client's bytes come `step` at a time."""
    for _ in range(4):
        sent = client.handshake()
        for data in cut(sent, range(0, len(sent), step) if step else []):
            assert list(layer.feed(data)) == []
            client.take(layer.take_outgoing())
    assert layer.secure


def pair(
    certificates: Certificates,
    context: ssl.SSLContext,
    policy: TlsClientAuth = TlsClientAuth.NONE,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    step: int | None = None,
) -> tuple[TlsLayer, TlsClient]:
    context.maximum_version = version
    server = tls_context(settings_of(certificates, policy))
    assert server is not None
    layer, client = TlsLayer(server), TlsClient(context)
    shake_hands(layer, client, step)
    return layer, client


VERSIONS = pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"]
)


@VERSIONS
@pytest.mark.parametrize("step", [None, 1, 100])
def test_both_ways_whatever_the_cuts(
    certificates: Certificates, version: ssl.TLSVersion, step: int | None
) -> None:
    layer, client = pair(certificates, certificates.context(), version=version, step=step)
    plain = bytes(range(256)) * 200
    sent = client.write(b"first") + client.write(plain) + client.write(b"last")
    assert fed(layer, cut(sent, range(0, len(sent), step or len(sent)))) == (
        b"first" + plain + b"last"
    )
    client.take(layer.wrap(plain) + layer.wrap(b"!"))
    assert client.read() == plain + b"!"
    assert layer.common_name == ""


def test_what_comes_with_the_end_of_the_handshake_is_read(certificates: Certificates) -> None:
    server = tls_context(settings_of(certificates, TlsClientAuth.NONE))
    assert server is not None
    layer, client = TlsLayer(server), TlsClient(certificates.context())
    assert list(layer.feed(client.handshake())) == []
    assert not layer.secure
    client.take(layer.take_outgoing())
    finished = client.handshake()
    assert list(layer.feed(finished + client.write(b"at once"))) == [b"at once"]


def test_wrap_takes_along_what_the_handshake_has_to_say(certificates: Certificates) -> None:
    server = tls_context(settings_of(certificates, TlsClientAuth.NONE))
    assert server is not None
    layer, client = TlsLayer(server), TlsClient(certificates.context())
    list(layer.feed(client.handshake()))
    client.take(layer.take_outgoing())
    list(layer.feed(client.handshake()))
    client.take(layer.wrap(b"OK"))  # and session tickets before it
    assert client.read() == b"OK"
    assert layer.take_outgoing() == b""


def test_many_records_are_few_pieces(certificates: Certificates) -> None:
    layer, client = pair(certificates, certificates.context())
    sent = client.write(b"x" * 3_000_000)
    pieces = list(layer.feed(sent))
    assert b"".join(pieces) == b"x" * 3_000_000
    assert len(pieces) <= 4
    assert max(map(len, pieces)) <= PIECE_BYTES_MAX


@VERSIONS
def test_the_peers_close_is_the_end(certificates: Certificates, version: ssl.TLSVersion) -> None:
    layer, client = pair(certificates, certificates.context(), version=version)
    sent = client.write(b"goodbye") + client.close()
    assert list(layer.feed(sent)) == [b"goodbye"]
    assert layer.ended
    assert list(layer.feed(b"garbage behind it")) == []


@VERSIONS
def test_our_close_is_told(certificates: Certificates, version: ssl.TLSVersion) -> None:
    layer, client = pair(certificates, certificates.context(), version=version)
    client.take(layer.close())
    assert client.closed_by_peer()
    assert layer.close() == b""


def test_close_before_the_handshake_says_nothing(certificates: Certificates) -> None:
    server = tls_context(settings_of(certificates, TlsClientAuth.NONE))
    assert server is not None
    layer = TlsLayer(server)
    assert layer.close() == b""
    assert layer.common_name == ""


def test_a_broken_record_is_an_error_behind_what_was_good(certificates: Certificates) -> None:
    layer, client = pair(certificates, certificates.context())
    good, bad = client.write(b"good"), bytearray(client.write(b"bad"))
    bad[-1] ^= 1
    pieces = layer.feed(good + bytes(bad))
    assert next(iter(pieces)) == b"good"
    with pytest.raises(LayerError, match="the TLS stream cannot be read"):
        next(iter(pieces))
    assert layer.take_outgoing()  # the alert
    with pytest.raises(LayerError, match="the TLS stream cannot be written"):
        layer.wrap(b"more")


def test_what_is_no_handshake_is_an_error(certificates: Certificates) -> None:
    server = tls_context(settings_of(certificates, TlsClientAuth.NONE))
    assert server is not None
    layer = TlsLayer(server)
    with pytest.raises(LayerError, match=r"the TLS handshake failed \(.+\)"):
        list(layer.feed(b"PUB topic\n\x00\x00\x00\x05hello"))
    assert not layer.secure


@VERSIONS
@pytest.mark.parametrize(
    ("policy", "who", "name"),
    [
        (TlsClientAuth.NONE, "client", ""),
        (TlsClientAuth.REQUIRE, "nobody", None),
        (TlsClientAuth.REQUIRE, "stranger", "stranger"),
        (TlsClientAuth.REQUIRE, "client", CLIENT_COMMON_NAME),
        (TlsClientAuth.REQUIRE_VERIFY, "nobody", None),
        (TlsClientAuth.REQUIRE_VERIFY, "stranger", None),
        (TlsClientAuth.REQUIRE_VERIFY, "client", CLIENT_COMMON_NAME),
    ],
)
def test_whose_certificate_lets_in(
    certificates: Certificates,
    version: ssl.TLSVersion,
    policy: TlsClientAuth,
    who: str,
    name: str | None,
) -> None:
    context = {
        "nobody": certificates.context(),
        "stranger": certificates.stranger_context,
        "client": certificates.client_context,
    }[who]
    if name is None:
        with pytest.raises(LayerError, match="the TLS handshake failed"):
            pair(certificates, context, policy, version)
    else:
        layer, client = pair(certificates, context, policy, version)
        assert layer.common_name == name
        assert list(layer.feed(client.write(b"in"))) == [b"in"]


def test_one_stranger_does_not_let_in_another(certificates: Certificates) -> None:
    # under `require` a certificate is trusted by its own connection only, and all share one context
    server = tls_context(settings_of(certificates, TlsClientAuth.REQUIRE))
    assert server is not None
    shake_hands(TlsLayer(server), TlsClient(certificates.stranger_context))
    assert server.get_ca_certs() == []
    with pytest.raises(LayerError, match="certificate"):
        shake_hands(TlsLayer(server), TlsClient(certificates.context()))
