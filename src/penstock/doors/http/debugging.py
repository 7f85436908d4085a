"""/debug: a look into the running process, at nsqd's paths, with Python's tools behind them.

Profiles are what ``python -m pstats`` reads, stacks are Python's. What only Go has (symbols, block
and thread profiles) is not there.
"""

from __future__ import annotations

import cProfile
import ctypes
import gc
import marshal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial

from penstock.doors.http.request import Request
from penstock.doors.http.stats import memory
from penstock.http.answers import Refused

PROFILE_SECONDS_DEFAULT, PROFILE_SECONDS_MAX = 30, 300
_BINARY = "application/octet-stream"

_INDEX = """\
/debug/pprof/
/debug/pprof/cmdline    the command line
/debug/pprof/goroutine  what each thread is doing
/debug/pprof/heap       memory in use
/debug/pprof/profile    ?seconds=30 of the event loop, for python -m pstats
/debug/freememory       (POST) collect garbage and give free memory back
"""


def index(request: Request) -> None:
    request.answer(_INDEX.encode(), headers="")


def command_line(request: Request) -> None:
    request.answer("\0".join(sys.orig_argv).encode("utf-8", "replace"), headers="")


def stacks(request: Request) -> None:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  documented, for debuggers
        lines.append(f"thread {names.get(ident, ident)}:\n")
        lines += traceback.format_stack(frame)
    request.answer("".join(lines).encode(), headers="")


def heap(request: Request) -> None:
    lines = [f"{name} {value}\n" for name, value in memory().items()]
    lines += [f"gc_generation_{age} {stats}\n" for age, stats in enumerate(gc.get_stats())]
    request.answer("".join(lines).encode(), headers="")


def profile(request: Request) -> None:
    """Of the loop's thread; everything is slower meanwhile, so only one at a time."""
    text = request.parameters().get("seconds", str(PROFILE_SECONDS_DEFAULT))
    seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
    if not 0 < seconds <= PROFILE_SECONDS_MAX:
        raise Refused(400, "INVALID_SECONDS")
    if request.door.profiling:
        raise Refused(500, "PROFILING_ALREADY")
    request.door.profiling = True
    profiler = cProfile.Profile()
    profiler.enable()
    request.door.host.loop.call_later(seconds, partial(_profiled, request, profiler))


def _profiled(request: Request, profiler: cProfile.Profile) -> None:
    profiler.create_stats()
    request.door.profiling = False
    request.answer(marshal.dumps(profiler.stats), _BINARY, headers="")


def free_memory(request: Request) -> None:
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library: it keeps what it likes
    request.answer(headers="")


HANDLERS: dict[bytes, dict[bytes, Callable[[Request], None]]] = {
    b"/debug/pprof/": {b"GET": index},
    b"/debug/pprof/cmdline": {b"GET": command_line},
    b"/debug/pprof/goroutine": {b"GET": stacks},
    b"/debug/pprof/heap": {b"GET": heap},
    b"/debug/pprof/profile": {b"GET": profile},
    b"/debug/freememory": {b"POST": free_memory},
}
