"""Both codecs: what one side writes the other reads, however it is cut."""

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PeerError
from penstock.sdk.compression import new_codec
from penstock.sdk.options import Compression

codecs = st.sampled_from(["snappy", "deflate"])


@given(codecs, st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 64))
def test_any_chunking_gives_the_same_bytes(
    name: Compression, writes: list[bytes], size: int
) -> None:
    writer, reader = new_codec(name, 6), new_codec(name, 6)
    stream = b"".join(map(writer.compress, writes))
    plain = b"".join(
        reader.decompress(stream[start : start + size]) for start in range(0, len(stream), size)
    )
    assert plain == b"".join(writes)


@given(codecs, st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4))
def test_each_write_is_complete_in_itself(name: Compression, writes: list[bytes]) -> None:
    writer, reader = new_codec(name, 6), new_codec(name, 6)
    for data in writes:
        assert reader.decompress(writer.compress(data)) == data


def test_a_large_write_takes_several_snappy_chunks() -> None:
    writer, reader = new_codec("snappy", 6), new_codec("snappy", 6)
    data = bytes(range(256)) * 2000
    assert reader.decompress(writer.compress(data)) == data


def test_a_stream_may_open_again() -> None:
    # Go's writer opens once, but the format lets every writer open as often as it likes.
    reader = new_codec("snappy", 6)
    stream = bytes(cramjam.snappy.compress(b"one")) + bytes(cramjam.snappy.compress(b"two"))
    assert reader.decompress(stream) == b"onetwo"


def test_garbage_is_the_peers_fault() -> None:
    with pytest.raises(PeerError, match="Snappy"):
        new_codec("snappy", 6).decompress(b"\x00\x04\x00\x00abcd" + bytes(40))
    with pytest.raises(PeerError, match="deflate"):
        new_codec("deflate", 6).decompress(b"\xff" * 40)
