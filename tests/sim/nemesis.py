"""Whoever wishes the broker ill: one strike after the other, chosen by seed from its profile.

It knows what each strike may cost, and tells the history so: a power cut takes what was not synced,
a disk in trouble makes journals late. What a strike has broken it also repairs, some time later.

    calm    clean stops
    kills   kill -9, at any moment or at a call to the disk
    power   the power goes, at any moment or at a call to the disk
    errors  EIO from any call to the disk
    full    the disk is full for a while
    flips   a bit changes in a file of a broker that was killed, and later changes back
    clocks  the wall clock steps
    stalls  calls to the disk take seconds
    everything  all of them but flips: after a power cut nobody knows how far the log was synced,
            so damage right at its end looks like what the cut has torn
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.sim.disk import ENDLESS, Fault, Killed, SimDisk
from tests.sim.history import History
from tests.sim.world import MS, SECOND, Stall, World

PROFILES = ("calm", "kills", "power", "errors", "full", "flips", "clocks", "stalls", "everything")

BROKEN = (
    ["write"],
    ["read"],
    ["sync"],
    ["sync", "sync_dir"],
    ["rename"],
    ["open"],
    ["list", "mkdir", "size"],
    ["truncate", "unlink", "allocate"],
)


class Victim(Protocol):
    """The broker's process."""

    @property
    def working(self) -> bool:
        """Whether it runs and is not about to stop."""

    def stop(self) -> None: ...

    def doom(self) -> None:
        """It will not survive one of its next calls to the disk."""

    def note(self, what: str) -> None: ...


class Nemesis:
    """Strikes until all heals."""

    def __init__(
        self,
        profile: str,
        rng: Random,
        world: World,
        disk: SimDisk,
        history: History,
        victim: Victim,
    ) -> None:
        self.profile = profile
        self.rng = rng
        self.world = world
        self.disk = disk
        self.history = history
        self.victim = victim
        self.fate = "kill"  # what it is that the process dies of next
        self.slack_ns = 300 * MS  # how late the sync of written logs may be
        self.troubled = False  # the broker has had reason to complain
        self.healing = False
        disk.short_write_share = rng.choice((0.0, 0.0, 0.1))
        disk.write_back_share = rng.choice((0.0, 0.3))

    def begin(self) -> None:
        self.world.after(self._pause(), self._strike)

    def heal(self) -> None:
        """No more strikes, and nothing stays broken."""
        self.healing = True
        disk, world = self.disk, self.world
        disk.faults.clear()
        disk.capacity = ENDLESS
        disk.mend()
        world.stalls.clear()
        world.catch_up()

    def crashed(self) -> None:
        """The process is dead: now the machine gets its share."""
        self.victim.note(f"{self.fate} at call {self.disk.calls} of the disk")
        fate, self.fate = self.fate, "kill"
        if fate == "power":
            self.disk.power_cut()
            self.history.power_cut(self.slack_ns)
            return
        self.history.killed()
        if fate == "flip":
            self._flip_bit()

    def doom_at_start(self) -> None:
        """Starts are dangerous, too."""
        if not self.healing and self.rng.random() < 0.15:
            self._soon(self.rng.choice(("kill", "power")))

    # --- strikes

    def _pause(self) -> int:
        return int(self.rng.expovariate(1.0) * 1500 * MS)

    def _strike(self) -> None:
        if self.healing:
            return
        self.world.after(self._pause(), self._strike)
        if self.victim.working:
            self.rng.choice(self._strikes())()

    def _strikes(self) -> list[Callable[[], None]]:
        strikes: dict[str, list[Callable[[], None]]] = {
            "calm": [self.victim.stop],
            "kills": [self._kill_soon, self._kill, self.victim.stop],
            "power": [self._cut_soon, self._cut, self._kill_soon],
            "errors": [self._break_disk, self._break_disk, self._kill, self._cut],
            "full": [self._fill_disk, self._fill_disk, self._kill],
            "clocks": [self._step_clock, self._kill, self.victim.stop],
            "stalls": [self._stall, self._stall, self._kill_soon, self._cut_soon],
        }
        strikes["everything"] = [one for each in strikes.values() for one in each]
        strikes["flips"] = [self._flip, self._kill, self.victim.stop]
        return strikes[self.profile]

    def _kill_soon(self) -> None:
        self._soon("kill")

    def _cut_soon(self) -> None:
        self._soon("power")

    def _soon(self, fate: str) -> None:
        self.fate = fate
        self.victim.doom()

    def _kill(self) -> None:
        self.fate = "kill"
        raise Killed

    def _cut(self) -> None:
        self.fate = "power"
        raise Killed

    def _break_disk(self) -> None:
        kinds = self.rng.choice(BROKEN)
        path = self.rng.choice((r"\.seg$", r"/journal_", r"/state", r"/redo_", ""))
        fault = Fault(kinds, path, errno.EIO, self.rng.choice((1, 1, 5)))
        self.victim.note(f"EIO for {kinds} of {path or 'anything'}, {fault.count} times")
        self._trouble()
        self.disk.faults.append(fault)
        self.world.after(self.rng.randrange(100, 2000) * MS, self._repair_disk)

    def _repair_disk(self) -> None:
        if self.disk.faults:
            self.victim.note("the disk works again, the broker is restarted")
            self.disk.faults.clear()
            self._over()
            self._restart()

    def _fill_disk(self) -> None:
        self.disk.capacity = self.disk.used + self.rng.randrange(5_000)
        self.victim.note("the disk is full")
        self._trouble()
        self.world.after(self.rng.randrange(100, 4000) * MS, self._empty_disk)

    def _empty_disk(self) -> None:
        if self.disk.capacity < ENDLESS:
            self.victim.note("there is room again")
            self.disk.capacity = ENDLESS
            self._over()

    def _flip(self) -> None:
        if not self.disk.flipped:
            self.fate = "flip"
            raise Killed

    def _flip_bit(self) -> None:
        files = [(path, inode) for path, inode in self.disk.files() if inode.live]
        path, inode = self.rng.choice(files)
        offset, bit = self.rng.randrange(len(inode.live)), self.rng.randrange(8)
        inode.flip(offset, bit)
        self.victim.note(f"bit {bit} at {offset} of {path} flips")
        self.history.damaged(self.slack_ns)
        self._trouble()
        self.world.after(self.rng.randrange(500, 3000) * MS, self._mend)

    def _mend(self) -> None:
        if self.disk.flipped:
            self.victim.note("the bit is as before, the broker is restarted")
            self.disk.mend()
            self._over()
            self._restart()

    def _step_clock(self) -> None:
        step = self.rng.choice((-3600, -2, -1, 1, 2)) * SECOND
        self.victim.note(f"the wall clock steps by {step / 1e9:.0f} s")
        self.world.wall_ahead += step

    def _stall(self) -> None:
        lasts = self.rng.choice((300 * MS, 2 * SECOND, 10 * SECOND))
        kinds = self.rng.choice((["sync"], ["write"], ["sync", "write", "sync_dir", "open"]))
        self.victim.note(f"{kinds} stall for {lasts / 1e9} s")
        self.slack_ns = max(self.slack_ns, lasts + SECOND)
        self.history.trouble()
        self.world.stalls.append(Stall(frozenset(kinds), "", self.world.now + lasts))
        self.world.after(lasts + MS, self._over)

    # --- trouble

    def _restart(self) -> None:
        if self.victim.working:
            self._kill()

    def _trouble(self) -> None:
        self.troubled = True
        self.history.trouble()

    def _over(self) -> None:
        disk, world = self.disk, self.world
        stalled = any(stall.until_ns > world.now for stall in world.stalls)
        if not (disk.faults or disk.flipped or disk.capacity < ENDLESS or stalled):
            self.history.trouble_over()
