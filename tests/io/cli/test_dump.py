"""`penstock dump`: each thing it prints, in text and JSON, narrowed and bounded."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import ExitCode, main
from tests.io.cli import directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return directory.make(tmp_path / "data")


@pytest.fixture
def dump(data: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str, code: int = ExitCode.OK) -> list[Any]:
        assert main(["dump", str(data), *arguments]) == code
        out = capsys.readouterr().out
        return [json.loads(line) for line in out.splitlines()] if "--json" in arguments else [out]

    return run


def test_the_overview(dump: Any) -> None:
    (text,) = dump()
    assert text == (
        "orders: 1 partition, synced, made 1970-01-01T00:00:01.000000Z\n"
        "  log 0/delay: seq 0, synced below 1, 1 segment, 147 bytes\n"
        "  log 0/0: seqs 0 to 3, synced below 4, 1 segment, 858 bytes\n"
        "  channel billing: log 0/0 at 3 of 4, all below 1 finished, 1 outstanding, 1 asleep\n"
        "  channel paused (paused): log 0/0 at 0 of 4, all below 0 finished, 0 outstanding,"
        " 0 asleep\n"
        "written: 1 partition, written, made 1970-01-01T00:00:01.000000Z\n"
        "  log 0/0: seq 0, synced below 1, 1 segment, 135 bytes\n"
    )
    orders, written = dump("--json")
    assert [log["log"] for log in orders["logs"]] == ["0/delay", "0/0"]
    assert [channel["channel"] for channel in orders["channels"]] == ["billing", "paused"]
    assert written["durability"] == "written" and written["channels"] == []


def test_messages(dump: Any) -> None:
    (text,) = dump("messages", "--topic", "orders", "--lane", "0")
    assert text.splitlines()[:3] == [
        "orders 0/0 0 0000070000000000 1970-01-01T00:00:02.000000Z  one",
        "orders 0/0 1 0000070000000001 1970-01-01T00:00:02.000000Z  two\\nlines",
        "orders 0/0 2 0000070000000002 1970-01-01T00:00:03.000000Z  /wA=",
    ]
    assert text.endswith("x… (500 characters)\n")
    rows = dump("messages", "--topic", "orders", "--json")
    assert rows[0] == {
        "topic": "orders",
        "log": "0/delay",
        "seq": 0,
        "id": "0000080000000000",
        "timestamp_ns": 2_000_000_000,
        "wake_at_ns": 9_000_000_000,
        "body": "later",
    }
    assert rows[3]["body_base64"] == "/wA=" and rows[4]["body"] == "x" * 500
    (text,) = dump("messages", "--lane", "delay")
    assert "asleep until 1970-01-01T00:00:09.000000Z  later" in text


def test_narrowed(dump: Any) -> None:
    assert [row["seq"] for row in dump("messages", "--lane", "0", "--from", "1", "--json")] == [
        1,
        2,
        3,
    ]
    assert [row["seq"] for row in dump("messages", "--id", "0000070000000002", "--json")] == [2]
    assert dump("messages", "--partition", "3", "--json") == []
    assert [row["channel"] for row in dump("channels", "--channel", "billing", "--json")] == [
        "billing"
    ]


def test_outstanding(dump: Any) -> None:
    assert dump("outstanding") == [
        (
            "orders channel billing 0/0 seq 1 attempts 1\n"
            "orders channel billing 0/0 seq 2 attempts 1 asleep until 1970-01-01T00:01:00.000000Z\n"
        )
    ]


def test_journal(dump: Any) -> None:
    (text,) = dump("journal")
    assert text.splitlines() == [
        (
            "orders billing 1970-01-01T00:00:04.000000Z delivered 0/0 seqs 0 to 2 attempts 1"
            " by shop:1234"
        ),
        "orders billing 1970-01-01T00:00:05.000000Z finished 0/0 seq 0 attempts 0 by shop:1234",
        (
            "orders billing 1970-01-01T00:00:05.000000Z slept 0/0 seq 2 attempts 1"
            " until 1970-01-01T00:01:00.000000Z"
        ),
    ]
    assert dump("journal", "--channel", "none") == [""]


def test_segments_blocks_logs_and_state(dump: Any) -> None:
    (text,) = dump("segments", "--topic", "written")
    assert text.startswith("written 0/0 open, from seq 0 on, 135 of 135 bytes synced  ")
    (text,) = dump("blocks", "--topic", "orders")
    assert text.splitlines()[0].endswith(
        "1 message, seq 0, 39 bytes, 1970-01-01T00:00:02.000000Z +wakes"
    )
    assert [row["columns"] for row in dump("blocks", "--json")] == [["wakes"], [], [], []]
    assert len(dump("logs", "--json")) == 3
    assert [row["key"] for row in dump("state", "--json")] == ["topic/orders", "topic/written"]


def test_the_first_few_unless_all_are_asked_for(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(data), "messages", "-n", "2"]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == "these were the first 2; -n 0 prints all\n"
    assert main(["dump", str(data), "messages", "-n", "6"]) == ExitCode.OK
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-n", "-1"], "-n must be 0 or more"),
        (["messages", "--id", "xyz"], "'xyz' is no message id: it has 16 hex characters"),
        (["--topic", "orders2"], "did you mean 'orders'?"),
    ],
)
def test_wrong_arguments(
    data: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(data), *arguments]) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_bad_places_are_told_and_gone_around(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "topics/orders/0/ready_0_00000000000000000000.seg"
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    assert main(["dump", str(data), "messages", "--lane", "0", "--json"]) == ExitCode.DAMAGE
    out, err = capsys.readouterr()
    seqs = [json.loads(line)["seq"] for line in out.splitlines()]
    assert seqs == [2, 3, 0]
    assert f"penstock dump: {path} at offset 0: checksum of block at seq 0 does not match" in err
    journal = data / "topics/orders/channels/billing/journal_1"
    content = bytearray(journal.read_bytes())
    content[50] ^= 1
    journal.write_bytes(content)
    assert main(["dump", str(data), "channels"]) == ExitCode.DAMAGE
    assert f"{journal} is damaged at offset 0" in capsys.readouterr().err
