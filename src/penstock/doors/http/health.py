"""/health: what is wrong, for people and for what starts and stops processes.

*live*: the event loop turns, or there would be no answer. *ready*: clients may come. *degraded*:
something is wrong, and the rest goes on. A broker with a full disk or a broken log is not taken out
of service: consumers, who make room again, could not reach it then.
"""

from __future__ import annotations

import json

from penstock.doors.http.request import Request
from penstock.http.answers import JSON


def ready(request: Request) -> None:
    _answer(request, 503 if request.door.draining else 200)


def live(request: Request) -> None:
    _answer(request, 200)


def _answer(request: Request, code: int) -> None:
    door = request.door
    problems = [
        {"concerns": name, "problem": problem} for name, problem in door.host.problems.items()
    ]
    if door.draining:
        status = "draining"
    else:
        status = "degraded" if problems else "ok"
    document = {"status": status, "problems": problems}
    request.answer(json.dumps(document).encode(), JSON, code, headers="")
