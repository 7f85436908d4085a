"""/health: what it says, and with which status."""

from __future__ import annotations

import json

from tests.unit.doors.http.rig import HttpRig, get


def health(rig: HttpRig, path: str = "/health") -> tuple[int, dict[str, object]]:
    head, _, body = rig.ask(get(path)).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_broker_that_is_well() -> None:
    rig = HttpRig()
    for path in ("/health", "/health/live", "/health/ready"):
        assert health(rig, path) == (200, {"status": "ok", "problems": []})


def test_what_is_wrong_degrades_and_says_what_it_concerns() -> None:
    rig = HttpRig()
    rig.host.problems["orders"] = "its log is broken"
    for path in ("/health", "/health/live", "/health/ready"):
        assert health(rig, path) == (
            200,
            {
                "status": "degraded",
                "problems": [{"concerns": "orders", "problem": "its log is broken"}],
            },
        )


def test_a_broker_that_drains_lives_and_is_not_ready() -> None:
    rig = HttpRig()
    rig.door.draining = True
    assert health(rig, "/health/live")[0] == 200
    assert health(rig, "/health/ready")[0] == 503
    assert health(rig) == (503, {"status": "draining", "problems": []})
