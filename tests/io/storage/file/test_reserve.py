"""Space kept back on the disk."""

import errno
from pathlib import Path

import pytest

from penstock.storage.file.disk import RealDisk
from penstock.storage.file.reserve import HEAD, STEP_BYTES, Reserve

MIB = 1 << 20


class SmallDisk(RealDisk):
    """Has so much space left; what files take is taken from it."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: str) -> int:
        return self.free

    def allocate(self, handle: int, length: int) -> None:
        more = length - self.size(handle)
        if more > self.free:
            super().truncate(handle, length - more + self.free)  # as a real one: as far as it goes
            self.free = 0
            raise OSError(errno.ENOSPC, "full")
        self.free -= max(more, 0)
        super().truncate(handle, length)

    def truncate(self, handle: int, length: int) -> None:
        self.free += self.size(handle) - length
        super().truncate(handle, length)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(tmp_path: Path, disk: SmallDisk, clock: Clock, asked: int = 64 * MIB) -> Reserve:
    return Reserve(disk, str(tmp_path), str(tmp_path / "reserve"), asked, clock)


def size(tmp_path: Path) -> int:
    return (tmp_path / "reserve").stat().st_size


def test_a_reserve_is_made_at_the_first_start(tmp_path: Path, clock: Clock) -> None:
    reserve = opened(tmp_path, SmallDisk(1000 * MIB), clock)
    assert size(tmp_path) == 64 * MIB
    assert reserve.whole
    assert reserve.accepts_publishes()
    reserve.close()


def test_a_small_disk_gives_a_quarter_and_it_stays_so(tmp_path: Path, clock: Clock) -> None:
    disk = SmallDisk(40 * MIB)
    opened(tmp_path, disk, clock).close()
    assert size(tmp_path) == 10 * MIB
    for _ in range(3):
        reserve = opened(tmp_path, disk, clock)
        assert reserve.accepts_publishes()
        reserve.close()
    assert size(tmp_path) == 10 * MIB


def test_another_size_is_taken_up_at_the_next_start(tmp_path: Path, clock: Clock) -> None:
    disk = SmallDisk(1000 * MIB)
    for asked, made in ((64, 64), (8, 8), (0, 0), (16, 16)):
        opened(tmp_path, disk, clock, asked * MIB).close()
        assert size(tmp_path) == made * MIB
    assert 984 * MIB <= disk.free <= 984 * MIB + 2 * HEAD.size


def test_the_reserve_is_spent_step_by_step(tmp_path: Path, clock: Clock) -> None:
    disk = SmallDisk(1000 * MIB)
    reserve = opened(tmp_path, disk, clock)
    disk.free = 0
    tried: list[int] = []

    def attempt() -> None:
        tried.append(disk.free)
        if disk.free < 20 * MIB:
            raise OSError(errno.ENOSPC, "full")

    reserve.spend(attempt)
    assert len(tried) == 4
    assert 0 < size(tmp_path) <= 64 * MIB - 20 * MIB
    assert not reserve.accepts_publishes()
    reserve.close()


def test_a_reserve_that_is_used_up_lets_the_error_through(tmp_path: Path, clock: Clock) -> None:
    disk = SmallDisk(1000 * MIB)
    reserve = opened(tmp_path, disk, clock)
    disk.free = 0

    def attempt() -> None:
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        reserve.spend(attempt)
    assert size(tmp_path) == HEAD.size
    reserve.close()


def test_other_errors_are_not_paid_for(tmp_path: Path, clock: Clock) -> None:
    reserve = opened(tmp_path, SmallDisk(1000 * MIB), clock)

    def attempt() -> None:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        reserve.spend(attempt)
    assert reserve.accepts_publishes()
    reserve.close()


def test_it_is_made_whole_when_there_is_room_asked_once_a_second(
    tmp_path: Path, clock: Clock
) -> None:
    disk = SmallDisk(1000 * MIB)
    reserve = opened(tmp_path, disk, clock)
    disk.free = 0
    with pytest.raises(OSError):
        reserve.spend(_full)
    disk.free = 0
    for _ in range(5):
        clock.now += 2
        assert not reserve.accepts_publishes()
    disk.free = 500 * MIB
    asked = 0
    while not reserve.accepts_publishes():
        clock.now += 0.5
        asked += 1
        assert asked < 20
    assert asked >= 2 * (64 * MIB // STEP_BYTES) - 2
    assert size(tmp_path) == 64 * MIB
    reserve.close()


def test_room_for_the_reserve_alone_is_not_room_for_publishes(tmp_path: Path, clock: Clock) -> None:
    disk = SmallDisk(1000 * MIB)
    reserve = opened(tmp_path, disk, clock)
    reserve.refuse()
    for free, accepted in ((0, False), (10 * MIB, False), (20 * MIB, True)):
        disk.free = free
        clock.now += 2
        assert reserve.accepts_publishes() == accepted
    reserve.close()


def test_a_start_on_a_full_disk_refuses_publishes(tmp_path: Path, clock: Clock) -> None:
    disk = SmallDisk(1000 * MIB)
    reserve = opened(tmp_path, disk, clock)
    disk.free = 0
    with pytest.raises(OSError):
        reserve.spend(_full)
    reserve.close()
    disk.free = 0
    again = opened(tmp_path, disk, clock)
    assert not again.accepts_publishes()
    again.close()


def _full() -> None:
    raise OSError(errno.ENOSPC, "full")
