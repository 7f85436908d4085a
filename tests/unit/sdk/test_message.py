"""A message is settled once, and says what it is."""

from datetime import timedelta

import pytest

from penstock.sdk.errors import AlreadySettled, MessageInvalid
from penstock.sdk.message import Message

ID = b"0123456789abcdef"


class Wire:
    """Takes the commands."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.touched = 0
        self.lost = False

    def holds(self, message: Message) -> bool:
        return not self.lost

    def settle(self, message: Message, command: bytes) -> bool:
        assert message.raw_id in command
        self.commands.append(command)
        return True

    def extend(self, message: Message) -> bool:
        assert message.raw_id == ID
        self.touched += 1
        return True

    def retry_delay_ms(self, attempts: int) -> int:
        return attempts * 100


def message(wire: Wire, attempts: int = 1) -> Message:
    return Message(wire, 1_700_000_000_000_000_000, attempts, ID, b"body")


def test_finish_once() -> None:
    wire = Wire()
    subject = message(wire)
    assert subject.finish()
    assert subject.settled
    assert wire.commands == [b"FIN 0123456789abcdef\n"]
    for again in (subject.finish, subject.requeue, subject.touch):
        with pytest.raises(AlreadySettled, match="0123456789abcdef"):
            again()


def test_requeue_with_its_delays() -> None:
    wire = Wire()
    message(wire, attempts=3).requeue()
    message(wire).requeue(0)
    message(wire).requeue(1.5)
    message(wire).requeue(timedelta(minutes=1))
    assert [int(command.split()[2]) for command in wire.commands] == [300, 0, 1500, 60000]


def test_a_wrong_delay_settles_nothing() -> None:
    wire = Wire()
    subject = message(wire)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(MessageInvalid, match="delay"):
            subject.requeue(wrong)
    assert subject.touch()
    assert subject.finish()
    assert wire.touched == 1


def test_it_shows_itself_shortly() -> None:
    subject = message(Wire())
    assert subject.id == "0123456789abcdef"
    assert repr(subject) == "<Message 0123456789abcdef attempts=1 body=b'body'>"
    subject.body = b"x" * 100
    assert len(repr(subject)) < 100
