"""Journals that an earlier run left."""

from pathlib import Path

from penstock.protocol.journal import SKIPPED, Batch
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from tests.unit.runtime.rig import Rig


def test_a_journal_whose_channel_was_never_safe_is_begun_anew(tmp_path: Path) -> None:
    engine = FileEngine(str(tmp_path / "data"), FileOptions(reserve_bytes=0))
    left = engine.journal("t", "c")
    left.append(Batch([(SKIPPED, 1, 0, 5, 0, 0, 0)], {}))
    left.close()
    rig = Rig("synced", engine)
    channel = rig.topic("t").channel("c", rig.clock.now_ns())
    journal = rig.host.journals.open[channel]
    journal.write()
    assert [*journal.history()] == []
    rig.settle()
    engine.close()
