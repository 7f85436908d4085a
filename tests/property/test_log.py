"""A log of the file engine against a list of blocks, through restarts, kills and torn tails.

What a kill leaves is what has been written: a copy of the directory is opened instead of it. A torn
tail is made in the copy, above what the log had noted as synced.
"""

import shutil
import struct
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.protocol.block import Block
from penstock.storage.file.disk import RealDisk
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.layout import parse_segment
from penstock.storage.file.log import FileOptions
from penstock.storage.file.segment import decode_synced_end
from tests.property.budget import budget
from tests.support.blocks import block

OPTIONS = FileOptions(
    segment_bytes_max=1500,
    index_step_bytes=300,
    checkpoint_bytes=700,
    checkpoint_blocks=4,
    files_open_max=2,
    reserve_bytes=0,
)


class QuickDisk(RealDisk):
    """No power is cut in here, so nothing has to reach the platter."""

    def fdatasync(self, handle: int) -> None:
        """Written is as good as durable."""

    def sync_dir(self, path: str) -> None:
        """The same for names."""


class LogMachine(RuleBasedStateMachine):
    """`blocks` is the log; of them the first `written` are in files, the first `synced` safe."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp(prefix="penstock-log-"))
        self.runs = 0
        self.blocks: list[Block] = []
        self.written = 0
        self.synced = 0
        self.start = 0
        self.end = 0
        self.at_ns = 0
        self.open()

    @property
    def path(self) -> Path:
        return self.root / str(self.runs)

    def open(self) -> None:
        self.engine = FileEngine(str(self.path), OPTIONS, disk=QuickDisk())
        self.log = self.engine.log("t", 0, 0)

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.root)

    @rule(
        count=st.integers(1, 5),
        size=st.sampled_from([0, 1, 20, 200, 2000]),
        hole=st.sampled_from([0, 0, 0, 1, 1000]),
        later_ns=st.integers(0, 3),
    )
    def append(self, count: int, size: int, hole: int, later_ns: int) -> None:
        self.at_ns += later_ns
        made = block(self.end + hole, [bytes([count]) * size] * count, at_ns=self.at_ns or 1)
        self.at_ns = made.appended_at_ns
        self.log.append(made)
        self.blocks.append(made)
        self.end = made.end

    @rule()
    def write(self) -> None:
        self.log.write()
        if not self.written and self.blocks:
            self.start = self.blocks[0].base
        self.written = len(self.blocks)

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == (self.blocks[self.written - 1].end if self.written else 0)
        self.synced = self.written

    @rule(part=st.floats(0, 1), bytes_max=st.sampled_from([1, 300, 5000]))
    def read(self, part: float, bytes_max: int) -> None:
        seq = int(part * self.end)
        expected = [one for one in self.blocks[: self.written] if one.end > seq]
        expected = [one for one in expected if one.end > self.start]
        found = self.log.read(seq, bytes_max)
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)

    @rule(back_ns=st.integers(-1, 20))
    def seek_time(self, back_ns: int) -> None:
        wanted = self.at_ns - back_ns
        there = [one for one in self.blocks[: self.written] if one.base >= self.start]
        later = [one.base for one in there if one.appended_at_ns >= wanted]
        end = self.blocks[self.written - 1].end if self.written else 0
        assert self.log.seek_time(wanted) == (later[0] if later else end)

    @rule(part=st.floats(0, 1))
    def drop_below(self, part: float) -> None:
        seq = int(part * self.end)
        before = self.start
        self.start = self.log.drop_below(seq)
        kept = [one.base for one in self.blocks[: self.written] if one.end > seq]
        assert self.start == before or self.start <= min([*kept, self.end])

    @rule()
    def close_and_open_log(self) -> None:
        self.log.close()
        self.close_at_end()
        self.log = self.engine.log("t", 0, 0)
        assert self.log.bounds().clean

    @rule()
    def restart(self) -> None:
        self.engine.close()
        self.close_at_end()
        self.open()
        assert self.log.bounds().clean

    def close_at_end(self) -> None:
        if not self.written and self.blocks:
            self.start = self.blocks[0].base
        self.written = self.synced = len(self.blocks)

    @rule()
    def kill(self) -> None:
        self.copied()
        self.open()
        assert not self.log.bounds().clean
        assert not self.log.bounds().cut_bytes
        self.shortened(self.written)

    @precondition(lambda self: self.written > self.synced)
    @rule(part=st.floats(0, 1), how=st.sampled_from(["cut", "zeros", "flip"]))
    def kill_and_tear(self, part: float, how: str) -> None:
        self.copied()
        self.tear(part, how)
        self.open()
        end = self.log.bounds().end
        kept = len([one for one in self.blocks[: self.written] if one.end <= end])
        assert kept >= self.synced
        self.shortened(kept)

    def copied(self) -> None:
        """Go on in a copy, which the old engine knows nothing of."""
        old = self.engine
        shutil.copytree(self.path, self.root / str(self.runs + 1))
        old.close()
        shutil.rmtree(self.path)
        self.runs += 1

    def tear(self, part: float, how: str) -> None:
        directory = self.path / "topics" / "t" / "0"
        note = directory / "ready_0.synced"
        synced = decode_synced_end(note.read_bytes()) if note.exists() else None
        name = max(path.name for path in directory.glob("*.seg"))
        parsed = parse_segment(name)
        assert parsed is not None
        stored = (directory / name).read_bytes()
        first = synced.bytes if synced is not None and synced.base == parsed[1] else 0
        at = first + int(part * (len(stored) - first))
        torn = stored[:at]
        if how == "zeros":
            torn += bytes(len(stored) - at)
        elif how == "flip" and at < len(stored):
            torn += struct.pack("B", stored[at] ^ 0x10) + stored[at + 1 :]
        (directory / name).write_bytes(torn)

    def shortened(self, count: int) -> None:
        del self.blocks[count:]
        self.written = count
        self.end = self.log.bounds().end
        self.at_ns = self.blocks[-1].appended_at_ns if self.blocks else 0
        self.start = self.log.bounds().start if self.blocks else 0
        assert self.end == (self.blocks[-1].end if self.blocks else 0)

    @invariant()
    def all_is_there(self) -> None:
        there = [one for one in self.blocks[: self.written] if one.base >= self.start]
        found: list[Block] = []
        seq = self.start
        while taken := self.log.read(seq, 1000):
            found += taken
            seq = taken[-1].end
        assert found == there
        bounds = self.log.bounds()
        assert bounds.end == self.end
        assert bounds.synced_end == (self.blocks[self.synced - 1].end if self.synced else 0)
        holes = [(one.end, other.base) for one, other in pairwise(there) if one.end < other.base]
        assert [*bounds.holes] == holes


TestLog = LogMachine.TestCase
TestLog.settings = budget(25, 40)
