"""A damaged log gives what was written, as it was and in order; what was synced, or an error.

What was synced is known by the note of the synced end, while that is whole, and by each block that
is still there. With the error nothing is changed. A log that opens can be written on.
"""

from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.errors import CorruptionError
from penstock.protocol.block import Block
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileLog, FileOptions
from tests.support.blocks import block

OPTIONS = FileOptions(
    segment_bytes_max=600, index_step_bytes=200, checkpoint_bytes=250, reserve_bytes=0
)
WRITTEN = [
    *[block(base, [b"%d" % base * 9] * 2) for base in range(0, 12, 2)],
    block(20, [b"moved"], ids=[5], mark=(3, 9)),
    *[block(base, [b"%d" % base * 9] * 2) for base in range(21, 31, 2)],
]
SYNCED_COUNT = 10
SYNCED_END = WRITTEN[SYNCED_COUNT - 1].end
MEMORY = Path("/dev/shm")  # noqa: S108  a disk in memory where there is one: thousands of logs
WHERE = str(MEMORY) if MEMORY.is_dir() else None


def seeds() -> list[bytes]:
    """Damage: five bytes each, see ``_damaged``."""
    nothing = b""
    flip, cut, zero, swap, grow = (
        bytes([file, kind, 1, 0x90, 7]) for file, kind in ((2, 0), (3, 1), (1, 2), (2, 3), (3, 4))
    )
    return [nothing, flip, cut, zero, swap, grow, flip + cut, b"\0" * 10]


@cache
def _stored() -> dict[str, bytes]:
    """The files of a broker that was killed: some of the log is synced, some only written."""
    with TemporaryDirectory(dir=WHERE) as place:
        engine = FileEngine(f"{place}/data", OPTIONS)
        log = engine.log("t", 0, 0)
        for count, one in enumerate(WRITTEN, 1):
            log.append(one)
            log.write()
            if count <= SYNCED_COUNT:
                log.sync()
        root = Path(place, "data")
        found = {str(at.relative_to(root)): at.read_bytes() for at in _files(root)}
        engine.close()
        return found


def _files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*")) if path.is_file()]


def check(data: bytes) -> None:
    stored, untouched = _damaged(data)
    with TemporaryDirectory(dir=WHERE) as place:
        root = Path(place, "data")
        for name, content in stored.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with closing(FileEngine(str(root), OPTIONS)) as engine:
            try:
                log = engine.log("t", 0, 0)
            except CorruptionError:
                left = {str(at.relative_to(root)): at.read_bytes() for at in _files(root)}
                assert {name: left.get(name) for name in stored if _of_log(name)} == {
                    name: content for name, content in stored.items() if _of_log(name)
                }
                return
            _check(log, vouched=any(map(_is_witness, untouched)))


def _of_log(name: str) -> bool:
    return name.startswith("topics/")


def _is_witness(name: str) -> bool:
    """The note of the synced end; the manifest vouches only for what is sealed."""
    return name.endswith(".synced")


def _check(log: FileLog, *, vouched: bool) -> None:
    found, whole = _read(log)
    bases = {one.base for one in found}
    assert found == [one for one in WRITTEN if one.base in bases], "not what was written"
    synced_end = max([one.synced_end for one in found], default=0)
    synced_end = max(synced_end, SYNCED_END) if vouched and whole else synced_end
    synced = {one.base for one in WRITTEN if one.end <= synced_end}
    assert synced <= bases, "synced messages are missing, and nobody says so"
    if not whole:
        return
    end = log.bounds().end
    assert end == (found[-1].end if found else 0)
    more = block(end + 5, [b"more"], at_ns=1000)
    log.append(more)
    log.write()
    assert log.sync() == more.end
    assert _read(log) == ([*found, more], True)


def _read(log: FileLog) -> tuple[list[Block], bool]:
    """All that can be read, and whether that was all without an error."""
    found: list[Block] = []
    at = log.bounds().start
    try:
        while taken := log.read(at, 300):
            found += taken
            at = taken[-1].end
    except CorruptionError:
        return found, False
    return found, True


def _damaged(data: bytes) -> tuple[dict[str, bytes], set[str]]:
    """The files with the damage done, and which were left alone."""
    stored = {**_stored()}
    names = [name for name in stored if _of_log(name) and "/0/" in name]
    untouched = {*names}
    for i in range(0, len(data) - 4, 5):
        file, kind, high, low, value = data[i : i + 5]
        name = names[file % len(names)]
        content = bytearray(stored[name])
        at = (high << 8 | low) % (len(content) + 1)
        match kind % 5:
            case 0:
                content[at : at + 1] = bytes([value])
            case 1:
                del content[at:]
            case 2:
                content[at : at + value] = bytes(len(content[at : at + value]))
            case 3:
                other = bytes(content[: value * 8])
                content[at : at + len(other)] = other[: len(content) - at]
            case _:
                content[at:at] = bytes([value]) * (value + 1)
        if bytes(content) != stored[name]:
            stored[name] = bytes(content)
            untouched.discard(name)
    return stored, untouched
