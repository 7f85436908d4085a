"""Simulated time, an event loop, threads and locks: all that happens, one thing at a time, by seed.

`World` is the clock and the event loop (`call_soon`, `call_later`, `call_soon_threadsafe` and what
tasks need). Disk jobs run in real threads, but only one thread ever runs: at each call to the disk
a job may be parked, and goes on at some later simulated moment. So jobs interleave with the loop
and with each other at every call to the disk, in an order that only the seed decides. The file
engine's locks are replaced by ones that park as well (`patched_locks`); a deadlock is an error
here, not a hanging test.

When the simulated process dies every parked job is unwound by `Killed`.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from tests.sim.disk import Killed

T = TypeVar("T")

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000


class Timer(asyncio.TimerHandle):
    """A callback that is due at a time; its exceptions are the simulation's. One that a process
    asked for dies with it (``epoch``)."""

    def __init__(
        self,
        at_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: World,
        epoch: int | None,
    ) -> None:
        super().__init__(at_ns / 1e9, callback, args, loop)
        self.go = partial(callback, *args)
        self.epoch = epoch


class Stall:
    """Calls to the disk that take until a certain time."""

    def __init__(self, kinds: frozenset[str], path: str, until_ns: int) -> None:
        self.kinds = kinds
        self.path = re.compile(path)
        self.until_ns = until_ns


class World(asyncio.AbstractEventLoop):
    """The clock, the loop, and whoever runs on them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0  # monotonic, ns
        self.wall_ahead = 1_700_000_000 * SECOND
        self.wall_highest = self.wall_ahead
        self.ready: deque[Timer] = deque()
        self.events: list[tuple[int, int, Timer]] = []
        self.work: list[tuple[int, int, Worker]] = []
        self.count = 0
        self.workers: list[Worker] = []  # with a job
        self.idle: list[Worker] = []
        self.current: Worker | None = None
        self.back = threading.Lock()
        self.back.acquire()
        self.stalls: list[Stall] = []
        self.epoch = 0  # counts processes; what belongs to a dead one does not run any more

    # --- the Clock Protocol

    def now_ns(self) -> int:
        wall = self.now + self.wall_ahead
        self.wall_highest = max(self.wall_highest, wall)
        return wall

    def monotonic_ns(self) -> int:
        return self.now

    def catch_up(self) -> None:
        """A wall clock that was set back shows its highest time again."""
        self.wall_ahead = max(self.wall_ahead, self.wall_highest - self.now)

    # --- the event loop

    def time(self) -> float:
        return self.now / 1e9

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        timer = Timer(self.now, callback, args, self, self.epoch)
        self.ready.append(timer)
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        return self._push(self.now, callback, args, self.epoch)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        # a real loop is never early, and late by its clock's resolution
        return self._push(self.now + int(delay * 1e9) + 1, callback, args, self.epoch)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Timer:
        return self._push(int(when * 1e9), callback, args, self.epoch)

    def _push(
        self,
        at_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        epoch: int | None,
    ) -> Timer:
        timer = Timer(at_ns, callback, args, self, epoch)
        self.count += 1
        heappush(self.events, (at_ns, self.count, timer))
        return timer

    def at(self, at_ns: int, callback: Callable[..., object], *args: Any) -> Timer:
        """For the world outside of the process: it outlives that."""
        return self._push(at_ns, callback, args, None)

    def after(self, delay_ns: int, callback: Callable[..., object], *args: Any) -> Timer:
        return self.at(self.now + delay_ns, callback, *args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asked by asyncio; a cancelled timer is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it may die with its process
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def done(result: T | None, failure: Exception | None) -> None:
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self.worker().begin(partial(func, *args), done)
        return future

    # --- what happens next

    def turn(self) -> bool:
        """One round of the loop, as asyncio's: what is due now joins what is ready, and runs."""
        if not self.ready:
            upcoming = [heap[0][0] for heap in (self.events, self.work) if heap]
            if not upcoming:
                return False
            self.now = max(self.now, min(upcoming))
        while self.events and self.events[0][0] <= self.now:
            self.ready.append(heappop(self.events)[2])
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self.ready)):
                self.run_workers()
                timer = self.ready.popleft()
                if not timer.cancelled() and timer.epoch in {None, self.epoch}:
                    timer.go()
            self.run_workers()
        finally:
            asyncio._set_running_loop(None)
        self.now += self.rng.randrange(1, 100) * US
        return True

    def worker(self) -> Worker:
        return self.idle.pop() if self.idle else Worker(self)

    def run_workers(self) -> None:
        while self.work and self.work[0][0] <= self.now:
            heappop(self.work)[2].go_on()

    # --- the disk's time

    def before_disk(self, kind: str, path: str) -> None:
        """A call to the disk: it takes a while, and others go on meanwhile."""
        worker = self.current
        if worker is None:
            return  # on the loop: the whole process waits, and nobody can tell
        delay = 0
        if kind in {"sync", "sync_dir"}:
            delay = int(self.rng.expovariate(1.0) * 500 * US)
        elif self.rng.random() < 0.3:
            delay = self.rng.randrange(200) * US
        for stall in self.stalls:
            if kind in stall.kinds and stall.path.search(path):
                delay = max(delay, stall.until_ns - self.now)
        if delay:
            worker.park(self.now + delay)

    def end_process(self) -> None:
        """After the mount died: unwind what is parked; what was scheduled is passed over."""
        self.epoch += 1
        while self.workers:  # some park once more while they unwind, for a lock
            for worker in [*self.workers]:
                worker.go_on()
        self.work.clear()

    def close(self) -> None:
        """The threads end."""
        self.end_process()
        for worker in self.idle:
            worker.end()


class Worker:
    """A thread that runs only while the world waits for it; job after job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epoch = world.epoch
        self.go = threading.Lock()
        self.go.acquire()
        self.job: Callable[[], None] | None = None
        self.killed = False
        self.then: Callable[[], None] | None = None  # set when the job is over
        self.thread = threading.Thread(target=self._run, name="simulated disk job", daemon=True)
        self.thread.start()

    def begin(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run ``job`` a little later, then ``then`` on the loop."""

        def run() -> None:
            result: T | None = None
            failure: Exception | None = None
            try:
                if self.epoch != self.world.epoch:
                    raise Killed
                result = job()
            except Killed:
                self.killed = True
            except Exception as error:  # noqa: BLE001  as the real pool: the loop knows what it means
                failure = error
            self.then = partial(then, result, failure)

        self.epoch = self.world.epoch
        self.killed = False
        self.then = None
        self.job = run
        self.world.workers.append(self)
        self.wake_at(self.world.now + self.world.rng.randrange(20, 200) * US)

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.job is None:
                return
            self.job()
            self.world.back.release()

    def end(self) -> None:
        self.job = None
        self.go.release()
        self.thread.join()

    def wake_at(self, at_ns: int) -> None:
        world = self.world
        world.count += 1
        heappush(world.work, (at_ns, world.count, self))

    def go_on(self) -> None:
        """On the world's thread: let it run until it parks or ends."""
        world = self.world
        before, world.current = world.current, self
        self.go.release()
        world.back.acquire()
        world.current = before
        if self.then is None:
            return
        world.workers.remove(self)
        world.idle.append(self)
        if self.epoch != world.epoch:
            return
        if self.killed:
            raise Killed
        world.call_later(world.rng.randrange(5, 50) / 1e6, self.then)

    def park(self, until_ns: int | None) -> None:
        """On its own thread: let others run; without a time somebody calls ``wake_at``."""
        if until_ns is not None:
            self.wake_at(until_ns)
        self.world.back.release()
        self.go.acquire()
        if self.epoch != self.world.epoch:
            raise Killed


class SimPool:
    """The Pool Protocol: so many jobs at a time, in simulated time."""

    def __init__(self, world: World, threads: int) -> None:
        self.world = world
        self.free = threads
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(
        self, job: Callable[[], T], then: Callable[[T | None, Exception | None], None]
    ) -> None:
        def ended(result: T | None, failure: Exception | None) -> None:
            self.free += 1
            if self.waiting:
                self.free -= 1
                self.waiting.popleft()()
            then(result, failure)

        def begin() -> None:
            self.world.worker().begin(job, ended)

        if self.free:
            self.free -= 1
            begin()
        else:
            self.waiting.append(begin)


class SimLock:
    """A lock that lets simulated time pass while it is waited for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held = False
        self.waiting: deque[Worker] = deque()

    def acquire(self) -> bool:
        world = self.world
        while self.held:
            if world.current is not None:
                self.waiting.append(world.current)
                world.current.park(None)
            else:
                assert world.work, "deadlock: the loop waits for a lock that no job will release"
                world.now = max(world.now, world.work[0][0])
                heappop(world.work)[2].go_on()
        self.held = True
        return True

    def release(self) -> None:
        assert self.held
        self.held = False
        if self.waiting:
            self.waiting.popleft().wake_at(self.world.now)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@contextmanager
def patched_locks(world: World) -> Iterator[None]:
    """The engines' locks are the world's while this lasts."""
    modules: list[Any] = [
        module
        for name, module in sys.modules.items()
        if name.startswith("penstock.storage.") and vars(module).get("Lock") is threading.Lock
    ]
    for module in modules:
        module.Lock = partial(SimLock, world)
    try:
        yield
    finally:
        for module in modules:
            module.Lock = threading.Lock
