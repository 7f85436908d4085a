"""What is wrong at the moment: said in the log once, and kept for whoever asks how the broker is. A
full disk refuses publishes until there is room.

A problem has the name of what it concerns, a topic's or TOPIC/JOURNAL, or one that no topic can
have: ``the state``, ``the disk``. It goes when what it says is over.
"""

from __future__ import annotations

import logging

from penstock.broker.broker import Broker
from penstock.broker.lanes import Lane
from penstock.errors import CorruptionError, DiskFull, OperatingError, PenstockError
from penstock.runtime.journals import Keeper, journal_name
from penstock.storage.port import Engine

log = logging.getLogger("penstock.trouble")

DISK = "the disk"
STATE = "the state"


class Trouble:
    """The problems there are, by name."""

    def __init__(self, broker: Broker, engine: Engine) -> None:
        self.broker = broker
        self.engine = engine
        self.problems: dict[str, str] = {}

    def over(self, name: str) -> None:
        """What concerns a topic, or one of its journals, is no more, or was opened anew."""
        below = f"{name}/"
        for one in [one for one in self.problems if one == name or one.startswith(below)]:
            del self.problems[one]

    def topic_closed(self, name: str, failure: PenstockError) -> None:
        self.problems[name] = str(failure)
        log.error("topic %s stays closed: %s", name, failure)

    def lane_failed(self, lane: Lane, error: OperatingError) -> None:
        if isinstance(error, DiskFull):
            self._full(error)
        elif lane.topic not in self.problems:
            self.problems[lane.topic] = str(error)
            log.error("%s/%s takes no more writes: %s", lane.topic, lane.key, error)

    def lane_damaged(self, lane: Lane, error: CorruptionError) -> None:
        if lane.topic not in self.problems:
            self.problems[lane.topic] = str(error)
            log.error(
                "%s/%s is damaged and hands out nothing behind that: %s",
                lane.topic,
                lane.key,
                error,
            )

    def journal_failed(self, keeper: Keeper, error: OperatingError) -> None:
        if not isinstance(error, DiskFull):
            self.problems[f"{keeper.topic}/{journal_name(keeper)}"] = str(error)

    def state_saved(self, error: OperatingError | None) -> None:
        if error is not None:
            self.problems[STATE] = str(error)
        else:
            self.problems.pop(STATE, None)

    def look_at_disk(self) -> None:
        """Called now and then: is there room, or none any more?"""
        accepts = self.engine.accepts_publishes()
        if self.broker.refusal is None and not accepts:
            # journals live on the reserve already: publishes must not take what it gave up
            self._full(
                DiskFull(
                    "the disk is full: nothing is accepted until there is room. All that was "
                    "answered is safe, and consumers go on; free some space and publish again"
                )
            )
        elif self.broker.refusal is not None and accepts:
            log.info("there is room on the disk again: publishes are accepted")
            self.broker.refusal = None
            self.problems.pop(DISK, None)

    def _full(self, error: DiskFull) -> None:
        if self.broker.refusal is None:
            log.error("%s", error)
        self.broker.refusal = error
        self.problems[DISK] = str(error)
