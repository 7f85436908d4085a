"""The broker's state on its way to storage: what changed in a turn is saved as one batch, off the
loop.

One save is under way at a time; what changes meanwhile goes with the next. Whoever needs a change
to be safe waits for its version (``turn``, ``after``): a block for what it hangs on, a request for
what it asked for. When a save fails, those who wait for it are refused, and nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.broker.lanes import Turn
from penstock.errors import DiskFull, OperatingError
from penstock.runtime.pool import Pool
from penstock.storage.port import Engine

log = logging.getLogger("penstock.state")


class StateSaver:
    """How far the state is safe, and who waits for more."""

    def __init__(
        self, broker: Broker, engine: Engine, pool: Pool, wake: Callable[[], None]
    ) -> None:
        self.broker = broker
        self.engine = engine
        self.pool = pool
        self.wake = wake
        self.busy = False
        self.durable = 0  # version of the broker's state
        self.failure: OperatingError | None = None  # of the newest save
        self.waiters: list[tuple[int, Turn]] = []
        self.on_saved: Callable[[OperatingError | None], None] = _nothing

    def turn(self, version: int | None = None) -> Turn:
        """A turn that ends when the state of that version is safe, or all that changed so far."""
        turn = Turn()
        needed = self.broker.state_version if version is None else version
        if needed <= self.durable:
            turn.over = True
        else:
            self.waiters.append((needed, turn))
            self.wake()
        return turn

    def after(self, then: Callable[[Exception | None], None], version: int | None = None) -> None:
        """Call when that state (all that changed so far) is safe, or can't be made so."""
        turn = self.turn(version)
        if turn.over:
            then(None)
        else:
            turn.waiters.append(_Continuation(turn, then))

    def try_again(self) -> None:
        """Called now and then: what found no room, and nobody waits for."""
        if isinstance(self.failure, DiskFull):
            self.turn()

    def save(self) -> None:
        """At each commit turn: what changed, if nothing is under way."""
        broker = self.broker
        if self.busy or not (broker.state_changes or self.waiters):
            return
        changes, broker.state_changes = broker.state_changes, []
        version = broker.state_version
        state = self.engine.state
        for key, value in changes:
            if value is None:
                state.delete(key)
            else:
                state.put(key, value)
        self.busy = True

        def job() -> None:
            state.write()
            state.sync()

        def then(_: None, failure: Exception | None) -> None:
            self.busy = False
            self._saved(version, failure)

        self.pool.submit(job, then)

    def _saved(self, version: int, failure: Exception | None) -> None:
        error: OperatingError | None = None
        if failure is None:
            self.durable = version
        else:
            error = _not_saved(failure)
            if self.failure is None:
                log.error("%s; what depends on it is refused", error)
        self.failure = error
        self.on_saved(error)
        waiters, self.waiters = self.waiters, []
        for needed, turn in waiters:
            if needed <= version:
                turn.end(error)
            else:
                self.waiters.append((needed, turn))
        self.wake()


class _Continuation:
    """What goes on when a turn is over."""

    __slots__ = ("then", "turn")

    def __init__(self, turn: Turn, then: Callable[[Exception | None], None]) -> None:
        self.turn = turn
        self.then = then

    def turn_over(self) -> None:
        self.then(self.turn.error)


def _not_saved(failure: Exception) -> OperatingError:
    if not isinstance(failure, OperatingError):
        raise failure  # our bug: end loudly
    kind = DiskFull if isinstance(failure, DiskFull) else OperatingError
    return kind(f"state could not be saved: {failure}")


def _nothing(*_: object) -> None:
    """Nobody listens."""
