"""What a bug of ours does: inside a connection it ends that one, anywhere else the process, loudly.

The bug is put into a broker that runs in a process of its own, by a script around the real one.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.cli import ExitCode

BROKER = """
import os, signal, socket, threading
from penstock.cli.logs import log_as_nsqd
from penstock.cli.process import run_broker
from penstock.config import Address, EventLoop, LogLevel, Settings
from penstock.doors.nsq.connection import HANDLERS

def bug(*_):
    raise ZeroDivisionError("the bug")

log_as_nsqd(LogLevel.INFO, "")
settings = Settings(
    tcp_address=Address("127.0.0.1", 0), storage="memory://", event_loop=EventLoop("{loop}")
)
"""

IN_THE_LOOP = """
run_broker(settings, lambda server: server.host.loop.call_soon(bug))
"""

IN_A_CONNECTION = """
HANDLERS["NOP"] = bug

def use(port):
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(b"  V2NOP\\n")
        print("closed", one.recv(100), flush=True)
    with socket.create_connection(("127.0.0.1", port)) as two:
        two.sendall(b"  V2PUB t\\n\\0\\0\\0\\1x")
        print("published", two.recv(100)[-2:], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

def on_listening(server):
    threading.Thread(target=use, args=(server.tcp_addresses[0].port,)).start()

run_broker(settings, on_listening)
"""


def run(script: str, loop: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BROKER.format(loop=loop) + script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_in_the_loop_it_ends_the_process(loop: str) -> None:
    done = run(IN_THE_LOOP, loop)
    assert done.returncode == ExitCode.BUG
    assert "ZeroDivisionError: the bug" in done.stderr
    assert "FATAL: this is a bug in Penstock, which ends at once" in done.stderr


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_in_a_connection_it_ends_that_one(loop: str) -> None:
    done = run(IN_A_CONNECTION, loop)
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError: the bug" in done.stderr
    assert done.stdout == "closed b''\npublished b'OK'\n"
