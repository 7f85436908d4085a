"""The simulated disk: it answers as a real one does, and a power cut takes what it may."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from penstock.storage.file.disk import Disk, Mode, RealDisk
from tests.sim.disk import Fault, Killed, Mount, SimDisk

FILES = ("a", "b", "d/a", "d/b", "d/e/a")
DIRECTORIES = ("d", "d/e")
NOT_THERE = {errno.ENOENT, errno.ENOTDIR}


def quiet(kind: str, path: str) -> None:
    """Nothing happens before a call."""


def mounted(seed: int = 1, capacity: int = 1 << 40) -> tuple[SimDisk, Mount]:
    disk = SimDisk(Random(seed), capacity)
    return disk, disk.mount(quiet)


def put(disk: Disk, path: str, content: bytes, *, sync: bool = True) -> int:
    handle = disk.open(path, Mode.CREATE)
    disk.pwritev(handle, [content], 0)
    if sync:
        disk.fdatasync(handle)
    return handle


class Caller:
    """Makes the same calls of any disk; answers are what they give, or the error's number."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.handles: list[int] = []

    def call(self, rng: Random) -> object:
        disk = self.disk
        path, other = (f"{self.root}/{rng.choice(FILES)}" for _ in range(2))
        directory = f"{self.root}/{rng.choice(DIRECTORIES)}"
        offset, length = rng.randrange(2000), rng.randrange(1500)
        handle = rng.randrange(5)
        calls: dict[str, Callable[[], object]] = {
            "open": lambda: self.handles.append(disk.open(path, rng.choice([*Mode]))),
            "write": lambda: disk.pwritev(self.at(handle), [b"x" * length, b"y"], offset),
            "read": lambda: disk.pread(self.at(handle), length, offset),
            "truncate": lambda: disk.truncate(self.at(handle), length),
            "size": lambda: disk.size(self.at(handle)),
            "size of": lambda: disk.size_of(path),
            "close": lambda: disk.close(self.handles.pop(handle)),
            "sync": lambda: disk.fdatasync(self.at(handle)),
            "sync dir": lambda: disk.sync_dir(directory),
            "list": lambda: sorted(disk.listdir(directory)),
            "mkdir": lambda: disk.mkdir(directory),
            "rmdir": lambda: disk.rmdir(directory),
            "unlink": lambda: disk.unlink(path),
            "rename": lambda: disk.rename(path, other),
        }
        kind = rng.choice([*calls])
        try:
            return kind, calls[kind]()
        except OSError as error:
            return kind, "not there" if error.errno in NOT_THERE else error.errno
        except IndexError:
            return kind, "no such handle"

    def at(self, number: int) -> int:
        return self.handles[number]


@pytest.mark.parametrize("seed", range(30))
def test_it_answers_as_a_real_disk_does(tmp_path: Path, seed: int) -> None:
    simulated = Caller(mounted()[1], "")
    real = Caller(RealDisk(), str(tmp_path))
    rngs = Random(seed), Random(seed)
    for number in range(150):
        assert simulated.call(rngs[0]) == real.call(rngs[1]), f"call {number}"
    for handle in real.handles:
        real.disk.close(handle)


def contents(disk: SimDisk) -> dict[str, bytes]:
    return {path: bytes(inode.live) for path, inode in disk.files()}


def test_what_is_synced_outlives_any_power_cut() -> None:
    for seed in range(50):
        disk, mount = mounted(seed)
        mount.mkdir("/d")
        put(mount, "/d/f", b"a" * 3000)
        mount.sync_dir("/d")
        mount.sync_dir("/")
        mount.die()
        disk.power_cut()
        assert contents(disk) == {"/d/f": b"a" * 3000}


def test_a_power_cut_takes_any_part_of_the_rest() -> None:
    seen: set[bytes] = set()
    for seed in range(200):
        disk, mount = mounted(seed)
        handle = put(mount, "/f", b"a" * 600)
        mount.sync_dir("/")
        mount.pwritev(handle, [b"b" * 1200], 600)
        mount.die()
        disk.power_cut()
        seen.add(contents(disk)["/f"])
    old = b"a" * 600
    assert old in seen  # all of it was lost
    assert old + b"b" * 1200 in seen  # all of it landed
    # the end landed and not what is before it: a hole of zeros
    assert any(one.startswith(old + b"\0") and one.endswith(b"b") for one in seen)
    assert all(one.startswith(old) for one in seen)


def test_names_land_in_their_order_or_not_at_all() -> None:
    seen: set[tuple[str, ...]] = set()
    for seed in range(200):
        disk, mount = mounted(seed)
        mount.close(put(mount, "/f", b"old"))
        mount.sync_dir("/")
        mount.close(put(mount, "/f.new", b"new"))
        mount.rename("/f.new", "/f")
        mount.die()
        disk.power_cut()
        found = contents(disk)
        assert found["/f"] in {b"old", b"new"}
        seen.add(tuple(found))
    assert seen == {("/f",), ("/f", "/f.new")}


def test_a_rename_between_directories_never_loses_the_file() -> None:
    for seed in range(100):
        disk, mount = mounted(seed)
        for name in ("/from", "/to"):
            mount.mkdir(name)
        mount.close(put(mount, "/from/f", b"x"))
        mount.sync_dir("/from")
        mount.sync_dir("/")
        mount.rename("/from/f", "/to/f")
        mount.sync_dir("/from")
        mount.die()
        disk.power_cut()
        assert contents(disk) == {"/to/f": b"x"}


def test_after_a_failed_sync_the_next_one_promises_nothing() -> None:
    lost = 0
    for seed in range(30):
        disk, mount = mounted(seed)
        handle = put(mount, "/f", b"a" * 2000, sync=False)
        mount.sync_dir("/")
        disk.faults = [Fault(["sync"], "/f", errno.EIO, 1)]
        with pytest.raises(OSError):
            mount.fdatasync(handle)
        mount.fdatasync(handle)
        mount.die()
        disk.power_cut()
        lost += contents(disk)["/f"] != b"a" * 2000
    assert lost


def test_a_full_disk_takes_what_fits() -> None:
    disk, mount = mounted(capacity=1000)
    handle = mount.open("/f", Mode.CREATE)
    assert mount.pwritev(handle, [b"a" * 1500], 0) == 1000
    with pytest.raises(OSError) as caught:
        mount.pwritev(handle, [b"a"], 1000)
    assert caught.value.errno == errno.ENOSPC
    mount.close(handle)
    mount.unlink("/f")
    assert disk.used == 0


def test_a_bit_that_flips_can_be_put_right_unless_it_was_written_over() -> None:
    disk, mount = mounted()
    put(mount, "/f", b"abc")
    [(_, inode)] = disk.files()
    inode.flip(1, 0)
    assert contents(disk) == {"/f": b"acc"}
    disk.mend()
    assert contents(disk) == {"/f": b"abc"}
    inode.flip(1, 0)
    put(mount, "/f", b"xyz")
    disk.mend()
    assert contents(disk) == {"/f": b"xyz"}


def test_the_dead_do_nothing() -> None:
    disk, mount = mounted()
    held = mount.lock("/lock")
    mount.die()
    with pytest.raises(Killed):
        mount.close(held)
    with pytest.raises(Killed):
        mount.open("/f", Mode.CREATE)
    assert [*contents(disk)] == ["/lock"]
    disk.mount(quiet).lock("/lock")  # it is free again
