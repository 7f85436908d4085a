"""What a process costs is read from the system, and a server's log is waited for, not guessed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from penstock.bench.metered import new_meter, read_syncs
from penstock.bench.process import Observed, ServerProcess, disk_bytes
from penstock.bench.wire import BenchError

SERVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("listening on 127.0.0.1:4711", flush=True)
time.sleep(60)
"""


def server(tmp_path: Path, program: str) -> ServerProcess:
    return ServerProcess(
        [sys.executable, "-c", program],
        ready=r"listening on (\S+):(\d+)",
        log=tmp_path / "log",
        environment={},
    )


def test_this_process_is_seen_as_it_sees_itself() -> None:
    here = Observed(os.getpid())
    before_ns = time.process_time_ns()
    seen_ns = here.cpu_ns()
    assert before_ns <= seen_ns <= time.process_time_ns()
    assert 0 < here.rss_bytes() <= here.rss_peak_bytes()
    assert here.open_files() >= 3


def test_a_server_is_waited_for_and_stopped(tmp_path: Path) -> None:
    with server(tmp_path, SERVER) as started:
        assert started.wait_ready()[2] == "4711"
        started.stop()


def test_a_second_server_on_the_same_log_is_not_taken_for_the_first(tmp_path: Path) -> None:
    with server(tmp_path, SERVER) as first:
        first.wait_ready()
        first.kill()
    with (
        server(tmp_path, "print('no port is free')") as second,
        pytest.raises(BenchError, match="no port is free"),
    ):
        second.wait_ready()


def test_a_process_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with server(tmp_path, SERVER) as started:
        started.wait_ready()
        started.kill()
        with pytest.raises(BenchError, match="gone"):
            started.observed.cpu_ns()
        with pytest.raises(BenchError, match="gone"):
            started.observed.rss_bytes()


def test_disk_bytes_counts_blocks_not_sizes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "file").write_bytes(b"x" * 10_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(10_000_000)
    assert 10_000 <= disk_bytes(tmp_path) < 1_000_000


def test_a_new_meter_has_counted_nothing(tmp_path: Path) -> None:
    meter = tmp_path / "syncs"
    new_meter(meter)
    assert read_syncs(meter) == 0
