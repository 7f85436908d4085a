"""Progress for people: a bar on a terminal, and only for work that takes a while.

Work counts with `add`; nothing is shown in the first second, nor where stderr is no terminal.
"""

import sys
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_SECONDS = 1.0


class Meter:
    """`with Meter("publishing", total) as meter: meter.add(1)`; a total of None is unknown."""

    def __init__(
        self, what: str, total: int | None, *, in_bytes: bool = False, shown: bool = True
    ) -> None:
        self._what = what
        self._in_bytes = in_bytes
        self._total = total
        self._shown = shown and sys.stderr.isatty()
        self._done = 0
        self._started_at = monotonic()
        self._progress: Progress | None = None

    @property
    def seconds(self) -> float:
        return monotonic() - self._started_at

    def add(self, count: int) -> None:
        """So much more of the total is done."""
        self._done += count
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)
        elif self._shown and self.seconds > QUIET_SECONDS:
            self._show()

    def _show(self) -> None:
        from rich.console import Console  # noqa: PLC0415  60 ms that short work need not pay
        from rich.progress import (  # noqa: PLC0415  the same
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn(self._what),
            BarColumn(),
            DownloadColumn() if self._in_bytes else MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.add_task(self._what, total=self._total, completed=self._done)
        self._progress.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
