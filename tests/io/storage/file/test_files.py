"""Open files under one bound."""

from pathlib import Path

import pytest

from penstock.storage.file.disk import RealDisk
from penstock.storage.file.files import File, Files


class CountingDisk(RealDisk):
    """Counts open handles and syncs; fails the sync of files in `bad`."""

    def __init__(self) -> None:
        self.open_now = 0
        self.synced: list[int] = []
        self.bad: set[int] = set()

    def open(self, path: str, mode: object) -> int:
        self.open_now += 1
        return super().open(path, mode)  # type: ignore[arg-type]  # the same Mode, passed on

    def close(self, handle: int) -> None:
        self.open_now -= 1
        super().close(handle)

    def fdatasync(self, handle: int) -> None:
        if handle in self.bad:
            raise OSError(5, "the device says no")
        self.synced.append(handle)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


def made(tmp_path: Path, count: int) -> list[File]:
    return [File(str(tmp_path / str(n)), writable=True) for n in range(count)]


def test_clean_files_are_closed_beyond_the_bound(tmp_path: Path, disk: CountingDisk) -> None:
    files = Files(disk, 3)
    many = made(tmp_path, 10)
    for file in many:
        files.write(file, [b"x"], 0, "log.write")
        files.sync(file)
    assert len(files) == disk.open_now == 3
    for file in many:
        assert files.pread(file, 1, 0) == b"x"
    assert [file.handle >= 0 for file in many] == [False] * 7 + [True] * 3
    files.close()
    assert disk.open_now == 0


def test_files_with_unsynced_writes_stay_open_up_to_twice_the_bound(
    tmp_path: Path, disk: CountingDisk
) -> None:
    files = Files(disk, 2)
    many = made(tmp_path, 6)
    for file in many[:4]:
        files.write(file, [b"x"], 0, "log.write")
    assert disk.open_now == 4 and not disk.synced
    files.write(many[4], [b"x"], 0, "log.write")
    assert disk.open_now <= 4
    assert len(disk.synced) == 1
    assert not many[0].dirty and many[4].dirty
    files.close()


def test_an_early_sync_that_fails_is_told_at_the_owners_own(
    tmp_path: Path, disk: CountingDisk
) -> None:
    files = Files(disk, 1)
    first, second, third = made(tmp_path, 3)
    files.write(first, [b"x"], 0, "log.write")
    disk.bad.add(first.handle)
    files.write(second, [b"x"], 0, "log.write")
    files.write(third, [b"x"], 0, "log.write")
    disk.bad.clear()
    for _ in range(2):
        with pytest.raises(OSError, match="says no"):
            files.sync(first)
    files.close()


def test_what_is_written_during_a_sync_is_dirty_after_it(
    tmp_path: Path, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(disk, 1)
    (file,) = made(tmp_path, 1)
    files.write(file, [b"x"], 0, "log.write")
    monkeypatch.setattr(disk, "fdatasync", lambda _: files.write(file, [b"y"], 1, "log.write"))
    files.sync(file)
    assert file.dirty
    files.close()


def test_a_forgotten_file_is_closed_when_its_last_reader_is_done(
    tmp_path: Path, disk: CountingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(disk, 1)
    (file,) = made(tmp_path, 1)
    files.write(file, [b"x"], 0, "log.write")
    read = disk.pread

    def forget_meanwhile(handle: int, length: int, offset: int) -> bytes:
        files.forget(file)
        assert disk.open_now == 1
        return read(handle, length, offset)

    monkeypatch.setattr(disk, "pread", forget_meanwhile)
    assert files.pread(file, 1, 0) == b"x"
    assert disk.open_now == 0
    with pytest.raises(FileNotFoundError):
        files.pread(file, 1, 0)


def test_a_note_is_never_waited_for(tmp_path: Path, disk: CountingDisk) -> None:
    files = Files(disk, 1)
    (file,) = made(tmp_path, 1)
    files.note(file, b"abc", "log.write")
    files.note(file, b"def", "log.write")
    assert not file.dirty
    assert files.size(file) == 3
    files.close()
