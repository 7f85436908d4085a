"""A real client of nsqd's HTTP API against a real broker: gnsq's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.compat.driver import HERE
from tests.support.broker import Broker

pytestmark = pytest.mark.slow


def test_gnsq(broker: Broker) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "clients" / "gnsq_http.py"), str(broker.http_port)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    info, stats = (next(result for name, result in results if name == one) for one in SHOWN)
    assert (info["version"], info["tcp_port"]) == ("1.3.0", broker.port)
    (channel,) = stats["topics"][0]["channels"]
    assert channel["depth"] + channel["deferred_count"] == 5
    said = [result for name, result in results if name not in SHOWN]
    assert said == ["OK"] * 5 + [""] * 10 + ["http error <404>"]


SHOWN = ("info", "stats")
