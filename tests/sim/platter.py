"""Files and directories as programs see them (the page cache), and as they are on the platter.

The two meet at `fdatasync` for a file's bytes and length, and at `sync_dir` for names; between
syncs any part of the difference may have landed, in any order.
"""

from __future__ import annotations

from random import Random

PAGE = 512  # smaller than a real page: more ways to tear the small files of a simulation


class Inode:
    """A file's bytes, as programs see them and as they are on the platter."""

    __slots__ = (
        "dirty",
        "durable",
        "flips",
        "landed",
        "lengths",
        "links",
        "live",
        "locked",
        "opened",
    )

    def __init__(self, stored: bytes = b"") -> None:
        self.live = bytearray(stored)
        self.durable = bytearray(stored)
        self.dirty: set[int] = set()  # pages that the next sync will bring to the platter
        self.landed: dict[int, bytes] = {}  # brought there before, though no sync asked for it
        self.lengths = [len(stored)]  # on the platter, and each one since
        self.links = 0
        self.opened = 0
        self.locked = False
        self.flips: dict[int, int] = {}  # bits that are wrong, by offset

    def write(self, offset: int, data: bytes) -> None:
        live = self.live
        self._overwritten(offset, offset + len(data))
        if offset > len(live):
            self.dirty.update(range(len(live) // PAGE, offset // PAGE + 1))
            live.extend(bytes(offset - len(live)))
        live[offset : offset + len(data)] = data
        self.dirty.update(range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1))
        if len(live) != self.lengths[-1]:
            self.lengths.append(len(live))

    def truncate(self, length: int) -> None:
        live = self.live
        if length < len(live):
            self._overwritten(length, len(live))
            del live[length:]
            self.dirty = {page for page in self.dirty if page * PAGE < length}
            self.landed = {at: data for at, data in self.landed.items() if at * PAGE < length}
            if length % PAGE:
                self.dirty.add(length // PAGE)
        elif length > len(live):
            self.write(len(live), bytes(length - len(live)))
        if length != self.lengths[-1]:
            self.lengths.append(length)

    def flip(self, offset: int, bit: int) -> None:
        """One bit changes on the platter, and in what programs read."""
        self._turn(offset, bit)
        self.flips[offset] = bit

    def mend(self) -> None:
        """Bits that were flipped, and that nobody has written since, are as before."""
        while self.flips:
            self._turn(*self.flips.popitem())

    def _turn(self, offset: int, bit: int) -> None:
        before = self.live[offset]
        self.live[offset] ^= 1 << bit
        if offset < len(self.durable) and self.durable[offset] == before:
            self.durable[offset] ^= 1 << bit

    def _overwritten(self, low: int, high: int) -> None:
        self.flips = {at: bit for at, bit in self.flips.items() if not low <= at < high}

    def sync(self) -> None:
        """Everything that is dirty lands. What a failed sync dropped does not."""
        durable = self.durable
        del durable[min(self.lengths) :]
        durable.extend(bytes(len(self.live) - len(durable)))
        for page, data in self.landed.items():
            durable[page * PAGE : page * PAGE + len(data)] = data
        for page in self.dirty:
            low = page * PAGE
            durable[low : low + PAGE] = self.live[low : low + PAGE]
        self.dirty.clear()
        self.landed.clear()
        self.lengths = [len(self.live)]

    def write_back(self, rng: Random, share: float) -> None:
        """The system brings some pages to the platter in its own time."""
        for page in sorted(self.dirty):
            if rng.random() < share:
                self.landed[page] = bytes(self.live[page * PAGE : (page + 1) * PAGE])
                self.dirty.discard(page)

    def fail_sync(self, rng: Random) -> None:
        self.write_back(rng, 0.5)
        self.dirty.clear()

    def after_power_cut(self, rng: Random) -> Inode:
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        last = rng.choice((0, len(self.lengths) - 1, rng.randrange(len(self.lengths))))
        lengths = self.lengths[: last + 1]
        image = self.durable[: min(lengths)]
        image.extend(bytes(lengths[-1] - len(image)))
        landing = [page for page in sorted(self.dirty) if rng.random() < share]
        pages = {page: bytes(self.live[page * PAGE : (page + 1) * PAGE]) for page in landing}
        for page, data in [*self.landed.items(), *pages.items()]:
            room = len(image) - page * PAGE
            if room > 0:
                image[page * PAGE : page * PAGE + len(data)] = data[:room]
        found = Inode(bytes(image))
        found.flips = {
            at: bit
            for at, bit in self.flips.items()
            if at < len(image) and image[at] == self.live[at]
        }
        return found


class Directory:
    """Names, as programs see them and as they are on the platter."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.pending: list[tuple[Change, dict[str, Inode | Directory | None]]] = []

    def change(self, change: Change, bindings: dict[str, Inode | Directory | None]) -> None:
        for name, node in bindings.items():
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node
        self.pending.append((change, bindings))

    def sync(self) -> None:
        for change, _ in self.pending:
            change.synced()
        self.durable = dict(self.names)
        self.pending.clear()


class Change:
    """One change of names; a rename from one directory to another lands as a whole, or not."""

    __slots__ = ("lands", "target")

    def __init__(self, target: Directory | None = None) -> None:
        self.lands: bool | None = None
        self.target = target  # where a rename puts the file: never later than its old name goes

    def synced(self) -> None:
        self.lands = True
        target, self.target = self.target, None
        if target is not None:
            kept: list[tuple[Change, dict[str, Inode | Directory | None]]] = []
            for change, bindings in target.pending:
                if change is not self:
                    kept.append((change, bindings))
                    continue
                for name, node in bindings.items():
                    assert node is not None
                    target.durable[name] = node
            target.pending = kept

    def decide(self, rng: Random, share: float) -> bool:
        if self.lands is None:
            self.lands = rng.random() < share
        return self.lands
