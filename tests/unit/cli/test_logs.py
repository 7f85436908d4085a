"""nsqd's log lines, as scripts that read them expect."""

import logging
import re
import sys

from penstock.cli.logs import NsqdFormatter


def line(level: int, exc_info: bool = False) -> str:
    record = logging.LogRecord(
        "penstock.x", level, "x.py", 1, "TCP: listening on %s", ("127.0.0.1:4150",), None
    )
    if exc_info:
        record.exc_info = sys.exc_info()
    return NsqdFormatter("[nsqd] ").format(record)


def test_a_line_has_nsqds_shape() -> None:
    shape = (
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on 127\.0\.0\.1:4150"
    )
    assert re.fullmatch(shape, line(logging.INFO))


def test_levels_have_nsqds_names() -> None:
    levels = (logging.DEBUG, logging.WARNING, logging.ERROR, logging.CRITICAL)
    names = [line(level).split()[3] for level in levels]
    assert names == ["DEBUG:", "WARNING:", "ERROR:", "FATAL:"]


def test_a_traceback_follows() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        assert line(logging.ERROR, exc_info=True).endswith("ValueError: x")
