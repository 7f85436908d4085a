"""One client: who is cut off and who is not, what waits, and what is refused."""

from __future__ import annotations

import pytest

from penstock.http.connection import LINGER_TICKS_MAX, TICKS_MAX, Connection
from penstock.http.server import BODIES_BYTES_MAX
from tests.unit.doors.http.rig import HttpRig, Line, get, post


@pytest.fixture
def rig() -> HttpRig:
    return HttpRig()


def tick(connection: Connection, times: int) -> None:
    for _ in range(times):
        connection.tick()


def is_cut(line: Line) -> bool:
    """Asked of a function, so that a type checker does not take the first answer for good."""
    return line.cut


def is_read(line: Line) -> bool:
    return line.reading


def test_who_says_nothing_may_stay(rig: HttpRig) -> None:
    connection, line = rig.connect()
    tick(connection, 10 * TICKS_MAX)
    connection.data_received(get("/ping"))
    tick(connection, 10 * TICKS_MAX)
    assert line.said.endswith(b"\r\n\r\nOK")
    assert not is_cut(line)


def test_a_head_has_its_time_however_it_trickles(rig: HttpRig) -> None:
    connection, line = rig.connect()
    for byte in get("/ping")[:TICKS_MAX]:
        connection.data_received(bytes([byte]))
        tick(connection, 1)
    assert not is_cut(line)
    tick(connection, 1)
    assert is_cut(line)


def test_a_body_that_moves_may_take_long(rig: HttpRig) -> None:
    connection, line = rig.connect()
    data = post("/pub?topic=t", b"x" * 100)
    connection.data_received(data[:-100])
    for _ in range(99):
        connection.data_received(b"x")
        tick(connection, 2)
    tick(connection, TICKS_MAX - 1)
    assert not is_cut(line)
    tick(connection, 1)
    assert is_cut(line)
    assert rig.door.bodies_bytes == 0


def test_an_answer_must_be_taken(rig: HttpRig) -> None:
    connection, line = rig.connect()
    connection.data_received(get("/ping"))
    connection.pause_writing()
    connection.data_received(get("/ping") * 2)
    assert line.said.count(b"HTTP/1.1 200") == 1
    assert not is_read(line)
    tick(connection, TICKS_MAX)
    connection.resume_writing()
    assert line.said.count(b"HTTP/1.1 200") == 3
    assert is_read(line)
    connection.pause_writing()
    tick(connection, 2 + TICKS_MAX)
    assert is_cut(line)


def test_our_own_time_is_not_the_clients_fault(rig: HttpRig) -> None:
    connection, line = rig.connect()
    connection.data_received(post("/pub?topic=t", b"x") + get("/ping")[:-2])
    tick(connection, 10 * TICKS_MAX)
    assert not is_cut(line)
    rig.settle()
    assert line.said.endswith(b"OK")


def test_behind_an_answer_that_ends_it_a_connection_stays_a_moment(rig: HttpRig) -> None:
    connection, line = rig.connect()
    connection.data_received(b"nonsense\r\n\r\n")
    assert line.said.startswith(b"HTTP/1.1 400")
    assert line.half_closed
    tick(connection, LINGER_TICKS_MAX)
    assert not is_cut(line)
    tick(connection, 1)
    assert is_cut(line)


def test_what_is_ahead_waits_without_being_read_on(rig: HttpRig) -> None:
    connection, line = rig.connect()
    connection.data_received(post("/pub?topic=t", b"x") * 2)
    assert not line.said
    assert not is_read(line)
    rig.settle()
    assert line.said.count(b"HTTP/1.1 200") == 2
    assert is_read(line)


def test_the_next_request_is_not_carried_out_inside_the_end_of_a_turn(rig: HttpRig) -> None:
    """Whoever ends a turn goes on with its lane, which that request may delete."""
    connection, line = rig.connect()
    connection.data_received(post("/pub?topic=t", b"x") + post("/topic/delete?topic=t"))
    turn = rig.host.broker.topics["t"].lanes()[0].turn
    inside: list[bool] = []

    class Last:
        def turn_over(self) -> None:
            inside.append("t" not in rig.host.broker.topics)

    turn.waiters.append(Last())
    rig.settle()
    assert inside == [False]
    assert line.said.count(b"HTTP/1.1 200") == 2
    assert "t" not in rig.host.broker.topics


def test_a_thousand_requests_are_carried_out_a_turn_at_a_time(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.http.connection.TURN_NS", 0)
    connection, line = rig.connect()
    connection.data_received(get("/ping") * 3)
    seen = [line.said.count(b"HTTP/1.1 200")]
    for _ in range(2):
        rig.loop.turn()
        seen.append(line.said.count(b"HTTP/1.1 200"))
    assert seen == [1, 2, 3]
    assert is_read(line)


def test_a_publish_waits_while_the_disk_is_behind(rig: HttpRig) -> None:
    rig.topic("t")
    rig.settle()
    rig.host.broker.uncommitted_bytes += 1 << 30
    connection, line = rig.connect()
    connection.data_received(post("/pub?topic=t", b"x"))
    rig.settle()
    assert not line.said
    rig.host.broker.uncommitted_bytes -= 1 << 30
    other = rig.ask(post("/pub?topic=t", b"y"))
    assert other.endswith(b"OK") and line.said.endswith(b"OK")


def test_a_publish_to_a_topic_that_is_deleted_meanwhile(rig: HttpRig) -> None:
    connection, line = rig.connect()
    connection.data_received(post("/pub?topic=t", b"x"))
    rig.host.delete_topic("t")
    rig.settle()
    assert line.said.startswith(b"HTTP/1.1 503 ")
    assert line.said.endswith(b'{"message":"EXITING"}')
    assert is_read(line)


def test_bodies_that_come_in_have_a_bound_in_all(rig: HttpRig) -> None:
    rig.door.bodies_bytes = BODIES_BYTES_MAX
    assert b"503 Service Unavailable" in rig.ask(post("/pub?topic=t", b"x"))
    rig.door.bodies_bytes -= 1
    assert rig.ask(post("/pub?topic=t", b"x")).endswith(b"OK")
    assert rig.door.bodies_bytes == BODIES_BYTES_MAX - 1


def test_an_answer_to_nobody(rig: HttpRig) -> None:
    connection, line = rig.connect()
    connection.data_received(post("/pub?topic=t", b"x"))
    connection.connection_lost(None)
    rig.settle()
    assert not line.said
    assert not rig.door.connections


def test_health_is_what_there_is_to_complain_about(rig: HttpRig) -> None:
    assert rig.ask(get("/ping")).endswith(b"OK")
    rig.host.problems["t"] = "it is broken"
    answer = rig.ask(get("/ping"))
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert answer.endswith(b"NOK - it is broken")
