"""A test that can't fail is a defect: brokers and disks that break a promise must be caught.

Each of them is broken on purpose, in one place, and one of a few seeds must raise the violation
that belongs to it. (They begin with one that does so quickly, as things are.)
"""

from collections.abc import Callable, Sequence

import pytest

from penstock.broker.channel import Channel
from penstock.broker.lanes import Lane
from penstock.broker.schedule import Schedule
from penstock.broker.subscriber import Subscriber
from penstock.runtime.committer import Committer, Writer
from penstock.runtime.journals import Journals
from penstock.storage.file.journal import FileJournal
from penstock.storage.file.log import FileLog
from penstock.storage.port import Log
from tests.sim.disk import Mount, SimDisk
from tests.sim.history import Violation
from tests.sim.simulation import Simulation
from tests.sim.world import MS, SECOND

Patch = pytest.MonkeyPatch
SEEDS = range(7, 19)  # more than it takes by far


def a_disk_that_only_says_it_synced(patch: Patch) -> None:
    def born(self: SimDisk, *args: object) -> None:
        init(self, *args)
        self.honest = False

    init: Callable[..., None] = SimDisk.__init__
    patch.setattr(SimDisk, "__init__", born)


def a_log_that_only_says_it_synced(patch: Patch) -> None:
    def fdatasync(self: Mount, handle: int) -> None:
        path, _ = self._handles.get(handle, ("", None))
        if not path.endswith(".seg") and "/redo" not in path:
            synced(self, handle)

    synced = Mount.fdatasync
    patch.setattr(Mount, "fdatasync", fdatasync)


def answers_before_the_sync(patch: Patch) -> None:
    def follow(self: Committer, lane: Lane, opened: Log, durability: str) -> Writer:
        return followed(self, lane, opened, "written")

    followed = Committer.follow
    patch.setattr(Committer, "follow", follow)


def reservations_that_are_ignored(patch: Patch) -> None:
    def restore(self: Lane, *bounds: int) -> None:
        restored(self, *bounds[:-1], 0)

    restored: Callable[..., None] = Lane.restore
    patch.setattr(Lane, "restore", restore)


def journals_that_keep_nothing(patch: Patch) -> None:
    patch.setattr(FileJournal, "append", lambda self, batch: None)


def journals_that_take_their_time(patch: Patch) -> None:
    def born(self: Journals, *args: object) -> None:
        init(self, *args)
        self.write_interval_s = 1.0

    init: Callable[..., None] = Journals.__init__
    patch.setattr(Journals, "__init__", born)


def sleepers_that_wake_early(patch: Patch) -> None:
    def begin(self: Schedule, now_ns: int) -> Sequence[tuple[int, int]]:
        return begun(self, now_ns + SECOND)

    begun = Schedule.begin_move
    patch.setattr(Schedule, "begin_move", begin)


def one_more_than_was_asked_for(patch: Patch) -> None:
    def ready(self: Channel, subscriber: Subscriber, count: int) -> None:
        set_ready(self, subscriber, count + 1)

    set_ready = Channel.set_ready
    patch.setattr(Channel, "set_ready", ready)


def leases_that_run_out_early(patch: Patch) -> None:
    def on_alarm(self: Channel, now_ns: int, monotonic_ns: int) -> None:
        alarmed(self, now_ns, monotonic_ns + 300 * MS)

    alarmed = Channel.on_alarm
    patch.setattr(Channel, "on_alarm", on_alarm)


def a_log_that_drops_a_block(patch: Patch) -> None:
    def write(self: FileLog) -> None:
        if self._pending and self._pending[0].base == 10:
            self._pending.pop(0)
        written(self)

    written = FileLog.write
    patch.setattr(FileLog, "write", write)


@pytest.mark.parametrize(
    ("broken", "profile", "violation"),
    [
        (a_disk_that_only_says_it_synced, "power", "are lost|nothing is wrong with the disk"),
        (a_log_that_only_says_it_synced, "power", "are lost|another body"),
        (answers_before_the_sync, "power", "are lost|another body"),
        (reservations_that_are_ignored, "power", "belongs to another body|are lost"),
        (journals_that_keep_nothing, "kills", "though it was finished"),
        (journals_that_take_their_time, "kills", "though it was finished"),
        (sleepers_that_wake_early, "calm", "before it is due"),
        (one_more_than_was_asked_for, "calm", "and one more came"),
        (leases_that_run_out_early, "calm", "in flight"),
        (a_log_that_drops_a_block, "kills", "are lost"),
    ],
)
def test_what_is_broken_is_caught(
    monkeypatch: Patch, broken: Callable[[Patch], None], profile: str, violation: str
) -> None:
    broken(monkeypatch)
    with pytest.raises(Violation, match=violation):
        run_some(profile)


def run_some(profile: str) -> None:
    for seed in SEEDS:
        Simulation(seed, profile).run()
