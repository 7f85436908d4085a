"""Log lines on stderr, for people (`serve`) and in nsqd's own format (`nsqd`).

Called once, before the broker starts. The rest of Penstock logs through the standard library and
knows neither format.
"""

import logging
import sys
import time

from penstock.config import LogLevel

# nsqd writes FATAL where the standard library writes CRITICAL
_NSQD_NAMES = {"CRITICAL": "FATAL"}


class NsqdFormatter(logging.Formatter):
    """`[nsqd] 2026/01/31 15:04:05.000000 INFO: TCP: listening on 127.0.0.1:4150`."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        level = _NSQD_NAMES.get(record.levelname, record.levelname)
        line = f"{self._prefix}{at}.{micros:06} {level}: {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def log_for_people(level: LogLevel) -> None:
    """`2026-01-31 15:04:05,000 INFO TCP: listening on 127.0.0.1:4150`."""
    _log(level, logging.Formatter("%(asctime)s %(levelname)s %(message)s"))


def log_as_nsqd(level: LogLevel, prefix: str) -> None:
    _log(level, NsqdFormatter(prefix))


def _log(level: LogLevel, formatter: logging.Formatter) -> None:
    handler = logging.StreamHandler(sys.stderr)  # flushes after every line
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.standard, handlers=[handler], force=True)
