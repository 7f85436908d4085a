"""Deleted topics and channels on their way out: what they had on disk goes after the state says so.

Deleting forgets a name in the state and notes there, in the same batch, that its files have to go
(``gone/TOPIC``, ``gone/TOPIC/CHANNEL``). Once that is synced the files go, off the loop, and the
note after them; a start that finds a note does the rest. So after a crash a topic is as it was, or
gone: never known with its log missing, which would give its seqs and ids a second time.

Until the files are gone the name is taken: who asks for it waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.errors import OperatingError
from penstock.failpoint import hit
from penstock.runtime.committer import Committer
from penstock.runtime.pool import Pool
from penstock.storage.port import Engine

log = logging.getLogger("penstock.removal")


class Removals:
    """What is being removed; names are TOPIC or TOPIC/CHANNEL."""

    def __init__(self, broker: Broker, committer: Committer, pool: Pool) -> None:
        self.broker = broker
        self.committer = committer
        self.pool = pool
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        self.put_off: dict[str, Callable[[], None]] = {}
        self.refused: set[str] = set()
        self.under_way = 0

    def finish_earlier(self, engine: Engine) -> None:
        """What an earlier run had still to remove; before anything is opened."""
        for name in [*self.broker.gone]:
            topic, _, channel = name.partition("/")
            if channel:
                engine.drop_channel(topic, channel)
            else:
                engine.drop_topic(topic)
            self.broker.note_removed(name)

    def begin(self, name: str) -> None:
        """The name is taken from here on."""
        self.waiting[name] = []

    def wait(self, name: str, then: Callable[[], None]) -> bool:
        """Whether the name is taken; then ``then`` is called when it is free."""
        waiting = self.waiting.get(name)
        if waiting is None:
            return False
        waiting.append(then)
        return True

    def remove(self, name: str, job: Callable[[], None]) -> None:
        """Run ``job`` on a disk thread once the state says that the name is gone."""

        def then(error: Exception | None) -> None:
            if error is not None:
                self.put_off[name] = job
            else:
                self._submit(name, job)

        self.committer.state.after(then)

    def try_again(self) -> None:
        """Called now and then: what the disk refused."""
        put_off, self.put_off = self.put_off, {}
        for name, job in put_off.items():
            self.remove(name, job)

    def _submit(self, name: str, job: Callable[[], None]) -> None:
        self.under_way += 1

        def then(_: None, failure: Exception | None) -> None:
            self.under_way -= 1
            if isinstance(failure, OperatingError):
                if name not in self.refused:
                    log.error("%s is deleted, its files are not yet: %s", name, failure)
                self.refused.add(name)
                self.put_off[name] = job
                return
            if failure is not None:
                raise failure
            self.refused.discard(name)
            self.broker.note_removed(name)
            for free in self.waiting.pop(name):
                free()
            self.committer.wake()

        def drop() -> None:
            hit("removal.drop")
            job()

        self.pool.submit(drop, then)
