"""The border to the operating system: whole writes, whole replacements."""

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import failpoint
from penstock.storage.file.disk import (
    PIECES_MAX,
    Disk,
    Mode,
    RealDisk,
    names_in,
    read_file,
    remove_tree,
    replace_file,
    write_all,
)


class StubbornDisk(RealDisk):
    """Takes as many bytes at a time as it is told to; after that, none."""

    def __init__(self, takes: Sequence[int]) -> None:
        self.takes = [*takes]
        self.stored = bytearray()

    def pwritev(self, handle: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        assert len(pieces) <= PIECES_MAX
        data = b"".join(pieces)[: self.takes.pop(0) if self.takes else 0]
        self.stored[offset : offset + len(data)] = data
        return len(data)


pieces_lists = st.lists(st.binary(max_size=9), max_size=8)


@given(pieces_lists, st.lists(st.integers(1, 12)))
def test_short_writes_are_gone_on_with(pieces: list[bytes], takes: list[int]) -> None:
    disk = StubbornDisk([*takes, *([100] * 10)])
    disk.stored += b"---"
    write_all(disk, 0, pieces, 3, "log.write")
    assert disk.stored == b"---" + b"".join(pieces)


def test_a_disk_that_takes_nothing_is_an_error() -> None:
    with pytest.raises(OSError) as caught:
        write_all(StubbornDisk([2]), 0, [b"abc"], 0, "log.write")
    assert caught.value.errno == errno.EIO


def test_many_pieces_are_written_in_turns() -> None:
    disk = StubbornDisk([10**9] * 5)
    write_all(disk, 0, [b"%d," % n for n in range(3000)], 0, "log.write")
    assert disk.stored == b"".join([b"%d," % n for n in range(3000)])


def test_the_failpoint_short_writes_all_the_same() -> None:
    disk = StubbornDisk([10**9] * 5)
    failpoint.arm("log.write=short")
    write_all(disk, 0, [b"abcdef", b"ghi"], 0, "log.write")
    assert disk.stored == b"abcdefghi"


@pytest.fixture
def disk() -> Disk:
    return RealDisk()


def test_a_file_is_replaced_as_a_whole(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    assert read_file(disk, path) is None
    replace_file(disk, path, b"old, and longer", "manifest")
    replace_file(disk, path, b"new", "manifest")
    assert read_file(disk, path) == b"new"
    assert names_in(disk, str(tmp_path)) == ["f"]


@pytest.mark.parametrize("action", ["eio", "enospc"])
def test_a_replacement_that_fails_leaves_the_old_file(
    disk: Disk, tmp_path: Path, action: str
) -> None:
    path = str(tmp_path / "f")
    replace_file(disk, path, b"old", "manifest")
    failpoint.arm(f"manifest.write={action}")
    with pytest.raises(OSError):
        replace_file(disk, path, b"new", "manifest")
    assert read_file(disk, path) == b"old"
    assert names_in(disk, str(tmp_path)) == ["f"]


def test_reading_stops_at_the_end_of_a_file(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    handle = disk.open(str(tmp_path / "f"), Mode.READ)
    assert disk.pread(handle, 10, 1) == b"bc"
    assert disk.pread(handle, 10, 3) == b""
    assert disk.size(handle) == disk.size_of(str(tmp_path / "f")) == 3
    disk.close(handle)


def test_a_lock_is_for_one(disk: Disk, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    disk.close(held)
    disk.close(disk.lock(path))


def test_a_tree_goes_with_all_it_has(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "f").write_bytes(b"")
    (tmp_path / "a" / "b" / "g").write_bytes(b"")
    remove_tree(disk, str(tmp_path / "a"))
    assert names_in(disk, str(tmp_path)) == []
    assert names_in(disk, str(tmp_path / "a")) == []


def test_space_can_be_taken_for_real(disk: Disk, tmp_path: Path) -> None:
    handle = disk.open(str(tmp_path / "f"), Mode.CREATE)
    disk.allocate(handle, 100_000)
    assert disk.size(handle) == 100_000
    disk.truncate(handle, 5)
    assert disk.size(handle) == 5
    disk.fdatasync(handle)
    disk.close(handle)
    assert disk.free_bytes(str(tmp_path)) > 0
