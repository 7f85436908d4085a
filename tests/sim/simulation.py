"""One simulated life of a broker: clients, a nemesis, crashes and restarts, and the verdict.

`Simulation(seed).run()` puts the real NSQ connections, host, core and file engine on a simulated
network, loop, clock and disk, lets clients publish and consume while the nemesis of that seed does
its worst, then heals everything, lets consumers drain, and asks the history whether all promises
were kept. The same seed does the same again, to the byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from types import ModuleType

import penstock.broker.broker
import penstock.broker.channel
import penstock.broker.handout
import penstock.broker.lanes
import penstock.broker.partition
import penstock.broker.schedule
import penstock.runtime.committer
import penstock.runtime.housekeeping
import penstock.runtime.journals
import penstock.runtime.reader
import penstock.storage.file.finder
import penstock.storage.file.log
import penstock.storage.file.recovery
import penstock.storage.file.redo
import penstock.storage.file.reserve
import penstock.storage.file.state
from penstock.config import Durability, Settings, TopicSettings
from penstock.doors.nsq.connection import Connection
from penstock.doors.nsq.door import NsqDoor
from penstock.errors import PenstockError
from penstock.runtime.host import Host
from penstock.server import host_options
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from tests.sim.clients import Client, Consumer, Publisher
from tests.sim.disk import Killed, Mount, SimDisk
from tests.sim.history import History, TopicHistory, Violation
from tests.sim.nemesis import PROFILES, Nemesis
from tests.sim.network import End, Link
from tests.sim.world import MS, SECOND, SimPool, World, patched_locks

ROOT = "/data"
CHAOS_NS = 12 * SECOND
DRAIN_NS = 60 * SECOND
VERIFY_EACH = 100  # turns of the loop

# Sizes at which the code changes its ways, brought within reach of a few hundred messages.
KNOBS: tuple[tuple[ModuleType, str, tuple[float, ...]], ...] = (
    (penstock.broker.lanes, "BLOCK_BYTES_MAX", (1 << 20, 3000)),
    (penstock.broker.partition, "BLOCK_BYTES_MAX", (1 << 20, 1500)),
    (penstock.broker.broker, "RESERVATION", (1_000_000, 40)),
    (penstock.broker.handout, "DELIVERY_BYTES_MAX", (256 * 1024, 4000)),
    (penstock.broker.schedule, "MOVE_MESSAGES_MAX", (2000, 3)),
    (penstock.runtime.journals, "SNAPSHOT_BYTES", (8 << 20, 4000, 500)),
    (penstock.runtime.housekeeping, "LOOK_AGAIN_NS", (10 * SECOND, 300 * MS)),
    (penstock.runtime.reader, "READ_BYTES_MAX", (1 << 20, 3000)),
    (penstock.storage.file.recovery, "SCAN_BYTES", (8 << 20, 2048)),
    (penstock.storage.file.state, "GARBAGE_BYTES_MIN", (1 << 20, 3000)),
    (penstock.storage.file.reserve, "ROOM_BYTES", (4096,)),
    (penstock.storage.file.finder, "POSITIONS_MAX", (64, 2)),
    (penstock.storage.file.finder, "INDEXES_MAX", (16, 2)),
    (penstock.storage.file.finder, "WALK_BYTES", (256 << 10, 400)),
    (penstock.storage.file.log, "READ_AGAIN_BYTES", (1 << 20, 2000)),
    (penstock.storage.file.log, "UNSYNCED_BYTES_MAX", (128 << 10, 2000)),
    (penstock.storage.file.redo, "SECONDS_MAX", (5.0, 0.5)),
    (penstock.storage.file.redo, "FILES_MAX", (4, 1)),
    (penstock.runtime.committer, "TOGETHER_BYTES_MAX", (64 << 10, 1000)),
    (penstock.broker.partition, "MOVE_BYTES_MAX", (4 << 20, 2000)),
    (penstock.broker.channel, "ALARM_MESSAGES_MAX", (2000, 5)),
)


class Simulation:
    """One seed."""

    def __init__(self, seed: int, profile: str = "", *, chaos_ns: int = CHAOS_NS) -> None:
        self.seed = seed
        self.rng = Random(f"penstock {seed}")
        self.profile = profile or PROFILES[seed % len(PROFILES)]
        self.chaos_ns = chaos_ns
        # of an event loop's methods it has those that are called
        self.world = World(Random(f"world {seed}"))  # type: ignore[abstract]
        self.disk = SimDisk(Random(f"disk {seed}"))
        self.history = History(self.world, 2 * SECOND)
        self.nemesis = Nemesis(
            self.profile,
            Random(f"nemesis {seed}"),
            self.world,
            self.disk,
            self.history,
            self,
        )
        self.links: list[Link] = []
        self.link_count = 0
        self.mount: Mount | None = None
        self.host: Host | None = None
        self.door: NsqDoor | None = None
        self.stopping: asyncio.Task[None] | None = None
        self.clients: list[Client] = []
        self.trace: list[str] = []
        self.boots = 0
        self.turns = 0
        self.settings = self._settings()
        self.host_options = replace(
            host_options(self.settings),
            retain_ms=self.rng.choice((0, 24 * 3_600_000)),
            idle_unload_ms=self.rng.choice((500, 300_000)),
        )
        self.options = FileOptions(
            segment_bytes_max=self.rng.choice((4_000, 20_000, 1 << 30)),
            files_open_max=self.rng.choice((3, 512)),
            reserve_bytes=self.rng.choice((0, 20_000, 200_000)),
            index_step_bytes=self.rng.choice((500, 256 << 10)),
            checkpoint_bytes=self.rng.choice((3_000, 64 << 20)),
            checkpoint_blocks=self.rng.choice((5, 50_000)),
            writes_inline=self.rng.random() < 0.7,
        )

    def _settings(self) -> Settings:
        rng = self.rng
        topics: dict[str, TopicSettings] = {}
        for number in range(rng.choice((1, 2, 3))):
            durability = rng.choice(("synced", "synced", "written", "written", "memory"))
            name = f"topic{number}.{durability}"
            topics[name] = TopicSettings(Durability(durability), rng.choice((1, 1, 2, 3)))
            self.history.topics[name] = TopicHistory(name, durability)
        return Settings(
            topics=topics,
            block_cache_bytes=rng.choice((2_000, 32 << 20)),
            uncommitted_bytes_max=rng.choice((20_000, 64 << 20)),
            connection_uncommitted_bytes_max=rng.choice((10_000, 16 << 20)),
            sync_messages_max=rng.choice((20, 2_500)),
            sync_threads=rng.choice((1, 2, 8)),
        )

    # --- the whole of it

    def run(self) -> None:
        """Raises what went wrong, with what reproduces it."""
        try:
            with self._patched():
                self._start_clients()
                self._run_until(self.world.now + self.chaos_ns)
                self._heal()
                self._drain()
                self._after_clean_stop()
        except (Exception, Killed) as error:
            trace = "\n".join(self.trace[-60:])
            raise Violation(
                f"seed {self.seed} ({self.profile}): {type(error).__name__}: {error}\n"
                f"what the nemesis did:\n{trace}\n"
                f"again: PENSTOCK_SIM_SEED={self.seed}"
                " python -m pytest tests/sim -k promises_are_kept"
            ) from error
        finally:
            self._take_down()

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(patched_locks(self.world))
            log = logging.getLogger("penstock")
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.CRITICAL)  # trouble is what this is about
            stack.callback(setattr, os, "getpid", os.getpid)
            os.getpid = lambda: 1  # it is written into the lock
            for module, name, values in KNOBS:
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, self.rng.choice(values))
            yield

    def digest(self) -> str:
        """Of all that happened and of all that is on the disk."""
        told = hashlib.sha256("\n".join(self.trace).encode())
        for topic in self.history.topics.values():
            for message in topic.messages.values():
                told.update(str(message).encode())
        for path, inode in self.disk.files():
            told.update(path.encode() + inode.live + inode.durable)
        return told.hexdigest()

    def note(self, what: str) -> None:
        self.trace.append(f"{self.world.now / 1e9:.6f} {what}")

    def _run_until(self, until_ns: int, done: Callable[[], bool] | None = None) -> None:
        while self.world.now < until_ns and not (done is not None and done()):
            try:
                assert self.world.turn(), "nothing can happen any more"
                self.turns += 1
                if self.turns % VERIFY_EACH == 0:
                    self._verify()
                if self.stopping is not None and self.stopping.done():
                    self._stopped()
            except Killed:
                self._crashed()

    def _verify(self) -> None:
        if self.host is not None:
            for topic in self.host.broker.topics.values():
                for channel in topic.channels.values():
                    channel.verify()

    # --- the process

    def _boot(self) -> None:
        assert self.host is None
        self.boots += 1
        world = self.world
        world.now += self.rng.randrange(1, 20) * MS
        self.mount = self.disk.mount(world.before_disk)
        if self.boots > 1:
            self.nemesis.doom_at_start()
        try:
            engine = FileEngine(ROOT, self.options, disk=self.mount, now=world.time)
        except PenstockError as error:
            self.note(f"could not start: {error}")
            self._expect_trouble(error)
            self.mount.die()
            world.end_process()
            world.after(500 * MS, self._boot)
            return
        self.note(f"start number {self.boots}")
        pool = SimPool(world, self.settings.sync_threads)
        host = Host(self.host_options, engine, pool, world, world, seed=self.seed)
        self.door = NsqDoor(host, self.settings, world)
        self.host = host
        host.start()
        self.door._tick()

    def connect(self, end: End) -> Link | None:
        if self.door is None or self.stopping is not None:
            return None
        self.link_count += 1
        link = Link(
            self.world,
            Random(f"link {self.seed} {self.link_count}"),
            Connection(self.door),
            end,
            self.link_count,
        )
        self.links = [one for one in self.links if not one.lost]
        self.links.append(link)
        link.open()
        return link

    @property
    def working(self) -> bool:
        return self.host is not None and self.stopping is None

    def doom(self) -> None:
        assert self.mount is not None
        self.mount.dies_at = self.disk.calls + self.rng.randrange(1, 60)
        self.mount.dies_before = self.rng.random() < 0.5
        self.note(f"{self.nemesis.fate} is coming at call {self.mount.dies_at} of the disk")

    def _end_process(self) -> None:
        assert self.mount is not None
        self.mount.die()
        self.world.end_process()
        if self.door is not None:
            self.door.auth_pool.close()
        self.host = self.door = None
        self.stopping = None
        for link in self.links:
            link.process_died()
        self.links = []

    def _crashed(self) -> None:
        self._end_process()
        self.nemesis.crashed()
        self.world.after(self.rng.randrange(1, 500) * MS, self._boot)

    def stop(self) -> None:
        if self.working:
            self.note("stopping")
            self.stopping = self.world.create_task(self._stop_in_order())

    async def _stop_in_order(self) -> None:
        assert self.host is not None and self.door is not None
        self.door.drain()
        await self.door.settle(self.host.loop.time() + self.rng.choice((0, 1, 8)))
        await self.door.stop()
        await self.host.stop()

    def _stopped(self) -> None:
        assert self.stopping is not None
        task = self.stopping
        error = task.exception()
        if isinstance(error, PenstockError):
            self.note(f"stopped: {error}")
            self._expect_trouble(error)
            self._end_process()
            self.history.killed()
        elif error is not None:
            raise error
        else:
            self.note("stopped")
            self._end_process()
            self.history.stopped()
        self.world.after(self.rng.randrange(1, 300) * MS, self._boot)

    def _expect_trouble(self, error: PenstockError) -> None:
        if not self.nemesis.troubled:
            raise Violation(f"nothing is wrong with the disk, and yet: {error}") from error

    # --- clients

    def _start_clients(self) -> None:
        rng = self.rng
        self.world.after(0, self._boot)
        topics = [*self.history.topics.values()]
        publishers = rng.choice((1, 2, 4))
        pause_ns = publishers * rng.choice((25, 60, 150)) * MS
        for number in range(publishers):
            name = f"p{number}"
            self.clients.append(
                Publisher(self, name, Random(f"{name} {self.seed}"), topics, pause_ns)
            )
        for topic in topics:
            first = topic.channel("first", first=True)
            for channel in (first, topic.channel("second"), topic.channel("third")):
                for number in range(rng.choice((1, 1, 2, 3))):
                    name = f"{topic.name}/{channel.name}/c{number}"
                    after = None if channel is first else first
                    self.clients.append(
                        Consumer(self, name, Random(f"{name} {self.seed}"), topic, channel, after)
                    )
        for client in self.clients:
            delay = rng.choice((0, 0, 500, 4000)) * MS
            self.world.after(delay, client.start)
        self.nemesis.begin()

    # --- the end

    def _heal(self) -> None:
        self.note("all heals")
        self.nemesis.heal()
        if self.mount is not None:
            self.mount.dies_at = 0
        for client in self.clients:
            if isinstance(client, Publisher):
                client.stop()
            elif isinstance(client, Consumer):
                client.drain()
        if self.nemesis.troubled and self.working:
            self._crashed()

    def _drain(self) -> None:
        until = self.world.now + DRAIN_NS
        self._run_until(self.world.now + SECOND)
        self._run_until(until, lambda: not self.history.outstanding() and self._is_idle())
        self.history.judge()
        if not self._is_idle():
            raise Violation(f"nothing is owed any more, yet channels are not empty: {self._left()}")

    def _is_idle(self) -> bool:
        return self.host is not None and self.stopping is None and not self._left()

    def _left(self) -> list[str]:
        assert self.host is not None
        left = [f"{name} is not loaded" for name in self.host.topics.loading]
        left += [f"connection {link.number} is not read" for link in self.links if link.unread]
        if self.host.broker.uncommitted_bytes:
            left.append("something is not committed")
        for topic in self.host.broker.topics.values():
            left += [
                f"{channel}: depth {channel.depth()}, {channel.in_flight_count()} in flight,"
                f" {channel.sleeping_count()} asleep"
                for channel in topic.channels.values()
                if channel.depth() or channel.in_flight_count() or channel.sleeping_count()
            ]
            left += [
                f"{topic}/{partition.number}: {len(partition.schedule)} delayed"
                for partition in topic.partitions
                if len(partition.schedule)
            ]
        return left

    def _after_clean_stop(self) -> None:
        """A clean stop loses nothing, brings nothing back, and what is stored is whole."""
        if self.host is not None and self.host.problems:
            raise Violation(f"healed, and still: {self.host.problems}")
        self._run_until(self.world.now + 2 * SECOND)
        before = self.boots
        self.stop()
        self._run_until(self.world.now + 60 * SECOND, lambda: self.boots > before)
        self._run_until(self.world.now + 3 * SECOND)
        assert self.host is not None
        if self.host.problems:
            raise Violation(f"after a clean stop: {self.host.problems}")
        self.history.judge()

    def _take_down(self) -> None:
        if self.mount is not None and not self.mount.dead:
            self._end_process()
        self.world.close()
