"""The file engine: one locked directory, its logs, journals and state (the port's ``Engine``)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from threading import Lock

from penstock.errors import ConfigError, CorruptionError, DirectoryLocked, OperatingError
from penstock.storage.file import layout
from penstock.storage.file.dirs import Dirs
from penstock.storage.file.disk import (
    Disk,
    Mode,
    RealDisk,
    names_in,
    read_file,
    remove_tree,
    replace_file,
    write_all,
)
from penstock.storage.file.files import Files
from penstock.storage.file.journal import FileJournal
from penstock.storage.file.log import FileLog, FileOptions
from penstock.storage.file.redo import Redo, Written
from penstock.storage.file.reserve import Reserve
from penstock.storage.file.state import FileState
from penstock.storage.file.version import check_format, format_line, others_in
from penstock.storage.port import Log, State

logger = logging.getLogger(__name__)

ALL_CLEAN = "all logs are closed well"
SOME_CLEAN = "these logs are closed well:"

GROUP_MIN = 2  # logs in a commit, from which on a redo file costs less than a sync of each

LogKey = tuple[str, int, int]


class FileEngine:
    """Everything below one directory; a simulation gives its own ``disk`` and ``now``."""

    def __init__(
        self,
        path: str,
        options: FileOptions | None = None,
        *,
        disk: Disk | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options or FileOptions()
        self.writes_inline = self.options.writes_inline
        self._root = path.rstrip("/") or "/"
        self._disk: Disk = disk or RealDisk()
        self._lock = Lock()
        self._logs: dict[LogKey, FileLog] = {}
        self._journals: dict[tuple[str, str], FileJournal] = {}
        self._was_clean = False
        self._well_before: set[str] = set()
        self._closed_logs: set[LogKey] = set()  # in this run, once at least
        self._failed_logs: set[LogKey] = set()  # the last time not well: redo files are needed
        self._gone_count = 0
        self._closed = False
        try:
            self._lock_handle = self._locked()
        except OSError as error:
            raise _unusable(self._root, error) from error
        try:
            self._open(now)
        except OSError as error:
            self._disk.close(self._lock_handle)
            raise _unusable(self._root, error) from error
        except BaseException:
            self._disk.close(self._lock_handle)
            raise

    @property
    def files_open(self) -> int:
        return len(self._files)

    def log(self, topic: str, partition: int, lane: int) -> FileLog:
        key = (topic, partition, lane)
        assert key not in self._logs, f"{key} is open already"
        directory = layout.partition_directory(self._root, topic, partition)
        known = key in self._closed_logs or self._was_clean or _line(key) in self._well_before
        closed_well = known and key not in self._failed_logs
        try:
            if key in self._failed_logs:
                self._redo.restore(directory)  # what is about to be looked at must be all there is
            opened = FileLog(
                self._files,
                self._dirs,
                self._reserve,
                self.options,
                directory,
                lane,
                closed_well=closed_well,
                on_close=lambda log: self._log_closed(key, log),
                forget=self._redo.forget,
            )
        except OSError as error:
            raise OperatingError(
                f"the log of topic {topic} cannot be opened: {error}. Nothing was changed; check "
                "the disk"
            ) from error
        self._logs[key] = opened
        return opened

    def commit(self, logs: Sequence[Log]) -> list[int | OperatingError]:
        mine = [log for log in logs if isinstance(log, FileLog)]
        assert len(mine) == len(logs), "an engine commits its own logs"
        outcomes: dict[FileLog, int | OperatingError] = {}
        together: list[FileLog] = []
        written: list[Written] = []
        for log in mine:
            try:
                log.write()
            except OperatingError as error:
                outcomes[log] = error
                continue
            unsynced = log.unsynced()
            if unsynced is None:
                outcomes[log] = _ended(log.sync)
            else:
                together.append(log)
                written += unsynced
        vouched = (
            len(together) >= GROUP_MIN and self._redo.has_room and self._kept(together, written)
        )
        for log in together:
            outcomes[log] = _ended(log.vouched if vouched else log.sync)
        return [outcomes[log] for log in mine]

    def _kept(self, logs: Sequence[FileLog], written: Sequence[Written]) -> bool:
        try:
            self._redo.keep(logs, written)
        except OSError as error:
            logger.warning("%s takes no redo file (%s): logs sync themselves", self._root, error)
            return False
        return True

    def chore(self) -> Callable[[], None] | None:
        return self._redo.clear if self._redo.wants_clearing else None

    def journal(self, topic: str, channel: str) -> FileJournal:
        key = (topic, channel)
        assert key not in self._journals, f"the journal of {key} is open already"
        opened = FileJournal(
            self._files,
            self._dirs,
            self._reserve,
            layout.channel_directory(self._root, topic, channel),
            on_close=lambda _: self._journal_closed(key),
        )
        self._journals[key] = opened
        return opened

    def lanes(self, topic: str, partition: int) -> Sequence[int]:
        names = names_in(self._disk, layout.partition_directory(self._root, topic, partition))
        return sorted({lane for name in names if (lane := layout.parse_lane(name)) is not None})

    def drop_topic(self, topic: str) -> None:
        for key, journal in [*self._journals.items()]:
            if key[0] == topic:
                journal.abandon()
                self._journal_closed(key)
        assert not [key for key in self._logs if key[0] == topic], "its logs are closed first"
        below = f"{layout.encoded(topic)}/"
        with self._lock:
            self._closed_logs = {key for key in self._closed_logs if key[0] != topic}
            self._failed_logs = {key for key in self._failed_logs if key[0] != topic}
            self._well_before = {one for one in self._well_before if not one.startswith(below)}
        self._remove(f"{self._root}/{layout.TOPICS}/{layout.encoded(topic)}")

    def drop_channel(self, topic: str, channel: str) -> None:
        journal = self._journals.get((topic, channel))
        if journal is not None:
            journal.abandon()
            self._journal_closed((topic, channel))
        self._remove(layout.channel_directory(self._root, topic, channel))

    def accepts_publishes(self) -> bool:
        return self._reserve.accepts_publishes()

    def close(self) -> None:
        """Close what is still open, and note what is closed well."""
        if self._closed:
            return
        self._closed = True
        failures: list[Exception] = []
        for opened in self._open_things():
            try:
                opened.close()
            except OperatingError as error:
                failures.append(error)
        try:
            self._redo.close(needed=bool(failures or self._failed_logs))
            if not failures and not self._failed_logs:
                self._note_clean()
        except OSError as error:
            # without the note the next start only checks more than it would have to
            logger.warning("%s could not be closed cleanly: %s", self._root, error)
        finally:
            self._files.close()
            self._reserve.close()
            self._disk.close(self._lock_handle)
        if failures:
            raise failures[0]

    # --- opening ----------------------------------------------------------------------------------

    def _locked(self) -> int:
        self._make_root()
        path = f"{self._root}/{layout.LOCK}"
        try:
            handle = self._disk.lock(path)
        except BlockingIOError as error:
            holder = (read_file(self._disk, path) or b"").decode(errors="replace").strip()
            who = f" (process {holder})" if holder else ""
            raise DirectoryLocked(
                f"{self._root} is in use by another broker{who}: stop that one, or give this one "
                "another directory"
            ) from error
        self._disk.truncate(handle, 0)
        try:
            write_all(self._disk, handle, [b"%d\n" % os.getpid()], 0, "lock.write")
        except OSError:
            logger.debug("%s: no room to note who holds the lock", path)
        return handle

    def _make_root(self) -> None:
        missing: list[str] = []
        path = self._root
        while path not in {"", "/", "."} and not self._is_directory(path):
            missing.append(path)
            path = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
        for part in reversed(missing):
            try:
                self._disk.mkdir(part)
            except FileExistsError:
                pass  # another broker on the same directory: the lock decides
            self._disk.sync_dir(part.rpartition("/")[0] or ("/" if part.startswith("/") else "."))

    def _is_directory(self, path: str) -> bool:
        try:
            self._disk.listdir(path)
        except FileNotFoundError:
            return False
        return True

    def _open(self, now: Callable[[], float]) -> None:
        root = self._root
        self._check_format()
        for name in (layout.TOPICS, layout.GONE):
            try:
                self._disk.mkdir(f"{root}/{name}")
            except FileExistsError:
                pass  # every start but the first
        self._check_state()
        self._was_clean, self._well_before = self._take_clean()
        self._disk.sync_dir(root)
        self._files = Files(self._disk, self.options.files_open_max)
        self._dirs = Dirs(self._disk, root)
        self._reserve = Reserve(
            self._disk, root, f"{root}/{layout.RESERVE}", self.options.reserve_bytes, now
        )
        for name in self._disk.listdir(f"{root}/{layout.GONE}"):
            remove_tree(self._disk, f"{root}/{layout.GONE}/{name}")
        self._redo = Redo(
            self._disk, self._files, self._dirs, self._reserve, root, now, self.options.redo_bytes
        )
        self._state = FileState(self._disk, root, f"{root}/{layout.STATE}", self._reserve)
        self.state: State = self._state
        self._disk.sync_dir(root)

    def _check_format(self) -> None:
        path = f"{self._root}/{layout.FORMAT}"
        stored = read_file(self._disk, path)
        if stored is None:
            others = others_in(self._disk.listdir(self._root))
            if others:
                raise ConfigError(
                    f"{self._root} is not a data directory: it holds {others[0]} but no file "
                    "'format'. Nothing was changed; give an empty or a new directory"
                )
            replace_file(self._disk, path, format_line(), "format")
            self._disk.sync_dir(self._root)
        else:
            check_format(self._root, path, stored)

    def _check_state(self) -> None:
        """There are no topics without a state: a new one would forget them and give their tags
        again."""
        path = f"{self._root}/{layout.STATE}"
        topics = names_in(self._disk, f"{self._root}/{layout.TOPICS}")
        if topics and read_file(self._disk, path) is None:
            raise CorruptionError(
                f"{path} is missing: the broker does not know its {len(topics)} topics without "
                "it. Nothing was changed; put it back from a backup, or give an empty directory"
            )

    def _take_clean(self) -> tuple[bool, set[str]]:
        """Whether all logs were closed well, else which ones are known to have been. The note goes
        before anything is written: a run that is killed leaves none."""
        fresh = not names_in(self._disk, f"{self._root}/{layout.TOPICS}")
        path = f"{self._root}/{layout.CLEAN}"
        stored = read_file(self._disk, path)
        if stored is None:
            return fresh and read_file(self._disk, f"{self._root}/{layout.STATE}") is None, set()
        self._disk.unlink(path)
        first, *lines = stored.decode(errors="replace").split("\n")
        return first == ALL_CLEAN, {*lines} if first == SOME_CLEAN else set()

    # --- closing ----------------------------------------------------------------------------------

    def _open_things(self) -> list[FileLog | FileJournal | FileState]:
        return [*self._logs.values(), *self._journals.values(), self._state]

    def _note_clean(self) -> None:
        """A log that this run did not open may have lost its end in a run before it that was
        killed: nobody has looked, so it is not among those that were closed well."""
        lines = [ALL_CLEAN]
        if not self._was_clean:
            lines = [SOME_CLEAN, *sorted(self._well_before | {*map(_line, self._closed_logs)})]
        handle = self._disk.open(f"{self._root}/{layout.CLEAN}", Mode.CREATE)
        try:
            write_all(self._disk, handle, ["\n".join([*lines, ""]).encode()], 0, "clean.write")
            self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)
        self._disk.sync_dir(self._root)

    def _log_closed(self, key: LogKey, log: FileLog) -> None:
        with self._lock:
            self._logs.pop(key, None)
            if log.closed_well:
                self._closed_logs.add(key)
                self._failed_logs.discard(key)  # it was opened again since
            else:
                self._failed_logs.add(key)

    def _journal_closed(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._journals.pop(key, None)

    def _remove(self, path: str) -> None:
        """Out of sight at once and for good, then free its space."""
        with self._lock:
            self._gone_count += 1
            gone = f"{self._root}/{layout.GONE}/{self._gone_count}"
        try:
            self._reserve.spend(lambda: self._redo.forget(path))
            self._disk.rename(path, gone)
        except FileNotFoundError:
            return  # it never wrote anything
        except OSError as error:
            raise _unusable(path, error) from error
        self._dirs.forget(path)
        try:
            self._disk.sync_dir(path.rpartition("/")[0])
            remove_tree(self._disk, gone)
        except OSError as error:
            raise _unusable(path, error) from error


def _ended(step: Callable[[], int]) -> int | OperatingError:
    """What a step came to: the synced end, or the error that is that log's alone."""
    try:
        return step()
    except OperatingError as error:
        return error


def _line(key: LogKey) -> str:
    """A log in the note of what is closed well."""
    topic, partition, lane = key
    return f"{layout.encoded(topic)}/{partition}/{layout.lane_name(lane)}"


def _unusable(path: str, error: OSError) -> OperatingError:
    return OperatingError(
        f"{error.filename or path}: {error.strerror or error}. Nothing was changed; check the "
        "disk and the directory's permissions"
    )
