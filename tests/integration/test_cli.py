"""The command line against a real broker: serve, pub, tail, and nsqd's start-up and stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import Peer, pub

PENSTOCK = [sys.executable, "-m", "penstock"]


def penstock(
    *arguments: str, stdin: str = "", code: int = 0, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its exit code must be the expected one."""
    done = subprocess.run(
        [*PENSTOCK, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def at(broker: Broker) -> tuple[str, str]:
    return ("--broker", f"127.0.0.1:{broker.port}")


def test_what_is_published_is_tailed(shared_broker: Broker, topic: str) -> None:
    said = penstock("pub", topic, *at(shared_broker), stdin="one\n\ntwo\nthree")
    assert re.fullmatch(
        rf"3 messages published to {topic} in \d+\.\d s;"
        r" 1 empty ones were left out, since brokers take none\n",
        said.stdout,
    )
    tailed = penstock("tail", topic, "--channel", "c", "-n", "3", *at(shared_broker))
    assert sorted(tailed.stdout.splitlines()) == ["one", "three", "two"]


def test_json_for_scripts(shared_broker: Broker, topic: str) -> None:
    said = penstock("pub", topic, "--count", "5", "--size", "20", "--json", *at(shared_broker))
    summary = json.loads(said.stdout)
    assert summary.pop("seconds") >= 0
    assert summary == {"topic": topic, "messages": 5, "bytes": 100, "empty_lines_skipped": 0}
    tailed = penstock("tail", topic, "--channel", "c", "-n", "5", "--json", *at(shared_broker))
    messages = [json.loads(line) for line in tailed.stdout.splitlines()]
    assert sorted(message["body"] for message in messages) == [
        f"{number} ".ljust(20, ".") for number in range(5)
    ]
    assert {message["attempts"] for message in messages} == {1}
    assert all(re.fullmatch("[0-9a-f]{16}", message["id"]) for message in messages)


def test_tail_takes_no_more_than_it_prints(shared_broker: Broker, topic: str) -> None:
    penstock("pub", topic, "--count", "10", *at(shared_broker))
    first = penstock("tail", topic, "--channel", "c", "-n", "4", *at(shared_broker))
    rest = penstock("tail", topic, "--channel", "c", "-n", "6", *at(shared_broker))
    printed = first.stdout.splitlines() + rest.stdout.splitlines()
    assert sorted(line.split()[0] for line in printed) == [str(number) for number in range(10)]


def test_a_file_of_bytes_that_are_no_text(
    shared_broker: Broker, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(b"\xff\x00\n")
    penstock("pub", topic, "--file", str(file), "--whole", *at(shared_broker))
    tailed = penstock("tail", topic, "--channel", "c", "-n", "1", "--json", *at(shared_broker))
    assert json.loads(tailed.stdout)["body_base64"] == "/wAK"


def test_no_broker_is_one_sentence() -> None:
    said = penstock("pub", "t", "--body", "x", "--broker", "127.0.0.1:1", code=1)
    assert said.stdout == ""
    assert re.fullmatch(r"penstock pub: .*127\.0\.0\.1:1.*\n", said.stderr)


def test_serve_says_where_it_listens_and_what_to_try(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [
                *PENSTOCK,
                "serve",
                "--tcp-address=127.0.0.1:0",
                "--http-address=127.0.0.1:0",
                "--data-path",
                str(tmp_path / "data"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            listening = re.search(r"listens for NSQ clients on (127\.0\.0\.1:(\d+))\.", first)
            assert listening, first
            rest = [process.stdout.readline() for _ in range(7)]
            http = re.search(r"^HTTP is spoken on (127\.0\.0\.1:\d+)\.$", rest[0])
            assert http, rest
            assert f"  curl -d hello 'http://{http[1]}/pub?topic=greetings'\n" in rest
            assert f"Messages are kept in file://{tmp_path}/data, durability synced.\n" in rest
            assert f"  penstock tail greetings --broker {listening[1]}\n" in rest
            penstock("pub", "greetings", "--body", "hello", "--broker", listening[1])
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
        log.seek(0)
        assert f"INFO TCP: listening on {listening[1]}\n" in log.read()


def test_serve_refuses_a_bad_setting_before_it_starts(tmp_path: Path) -> None:
    said = penstock("serve", "--durability", "fsync", "--data-path", str(tmp_path / "d"), code=2)
    assert said.stderr == (
        "penstock serve: bad value for durability in flag --durability:"
        " 'fsync' is none of synced, written, memory.\n"
    )
    assert not (tmp_path / "d").exists()


def test_an_address_that_is_taken_is_one_sentence(shared_broker: Broker, tmp_path: Path) -> None:
    address = f"127.0.0.1:{shared_broker.port}"
    said = penstock(
        *("serve", "--tcp-address", address, "--http-address=127.0.0.1:0"),
        *("--data-path", str(tmp_path / "data")),
        code=1,
    )
    assert re.search(rf"^penstock serve: .*{re.escape(address)}.*$", said.stderr, re.MULTILINE)
    assert "Traceback" not in said.stderr


def test_a_directory_in_use_is_one_sentence(shared_broker: Broker) -> None:
    path = str(shared_broker.data_path)
    said = penstock(
        "serve", "--tcp-address=127.0.0.1:0", "--http-address=", "--data-path", path, code=1
    )
    assert re.search(rf"^penstock serve: .*{re.escape(path)}.*$", said.stderr, re.MULTILINE)
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_signal_stops_it_cleanly(
    start_broker: StartBroker, sig: signal.Signals, loop: str
) -> None:
    broker = start_broker("--event-loop", loop)
    assert broker.stop(sig) == 0
    assert "NSQ: bye" in broker.log
    assert "Traceback" not in broker.log


def fill(broker: Broker, connect: Connect, topic: str) -> Peer:
    """A consumer that has more on its way than any socket buffers, and reads nothing."""
    producer = connect(broker.port)
    for _ in range(20):
        producer.publish(topic, *[b"x" * 100_000] * 40)
    consumer = connect(broker.port)
    consumer.subscribe(topic, "c", ready=2500)
    consumer.expect_message()
    return consumer


def test_a_client_that_does_not_read_is_cut_off_when_the_broker_stops(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--shutdown-timeout=200ms")
    fill(broker, connect, "t")
    assert broker.stop() == 0
    assert "NSQ: bye" in broker.log


def test_a_second_signal_ends_it_at_once_and_loses_nothing(
    start_broker: StartBroker, connect: Connect
) -> None:
    # the disk hangs under the second publish, whose answer the first signal's stop waits for
    stalled = {"PENSTOCK_FAILPOINT": "log.sync:2=stall:600"}
    broker = start_broker("--shutdown-timeout=1h", env=stalled)
    producer = connect(broker.port)
    producer.publish("t", b"answered")
    producer.send(pub("t", b"not answered"))
    os.kill(broker.pid, signal.SIGTERM)
    broker.wait_for_log("stopping; a second signal")
    assert broker.stop() == -signal.SIGTERM
    broker.env.clear()
    broker.start()
    consumer = connect(broker.port)
    consumer.subscribe("t", "c", ready=1)
    consumer.expect_message(b"answered")


def test_nsqd_lives_beside_files_of_others(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(start=False)
    broker.data_path.mkdir()
    for name in ("nsqd.dat", "t.diskqueue.meta.dat", "notes"):
        (broker.data_path / name).write_text("not ours")
    broker.start()
    producer = connect(broker.port)
    producer.publish("t", b"x")
    broker.restart(kill=True)
    consumer = connect(broker.port)
    consumer.subscribe("t", "c", ready=1)
    consumer.expect_message(b"x")
    assert "has data of nsqd (nsqd.dat and 1 more files): not read, not changed" in broker.log
    assert f"data is kept in {broker.data_path}/penstock, since" in broker.log
    names = {path.name for path in broker.data_path.iterdir()}
    assert names == {"nsqd.dat", "t.diskqueue.meta.dat", "notes", "penstock"}
    assert all((broker.data_path / name).read_text() == "not ours" for name in names - {"penstock"})


def test_nsqds_start_up_lines(start_broker: StartBroker) -> None:
    broker = start_broker("-statsd-address=127.0.0.1:8125", "--worker-id", "--durability=written")
    stamp = r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "
    shapes = [
        r"nsqd v1\.3\.0 \(built w/.*\)",
        r"ID: \d+",
        r"flag --statsd-address has no effect: .*",
        r"flag --worker-id has no effect: .*",
        rf"TCP: listening on 127\.0\.0\.1:{broker.port}",
        rf"HTTP: listening on 127\.0\.0\.1:{broker.http_port}",
    ]
    lines = broker.log.splitlines()
    found = [
        next((n for n, line in enumerate(lines) if re.fullmatch(stamp + s, line)), -1)
        for s in shapes
    ]
    assert -1 not in found
    assert found == sorted(found)


def test_a_broker_that_wants_a_secret(start_broker: StartBroker, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.touch(mode=0o600)
    tokens.write_text(
        '[[token]]\nsecret = "shop"\n'
        '[[token.authorizations]]\ntopic = "^orders$"\npermissions = ["publish"]\n'
    )
    broker = start_broker("--auth-token-file", str(tokens), verb="serve")
    for verb in ("pub", "tail"):
        said = penstock(verb, "orders", *at(broker), stdin="one", code=1)
        assert said.stderr.endswith("has no auth_secret: put it into PENSTOCK_AUTH_SECRET\n")
    penstock("pub", "orders", *at(broker), "--auth-secret", "shop", stdin="one")
    said = penstock("pub", "other", *at(broker), "--auth-secret", "shop", stdin="one", code=1)
    refused, counts = said.stderr.splitlines()[-2:]
    assert refused.startswith("penstock pub: the broker refused a message to 'other': E_UNAUTH")
    assert counts == "Of this run, 0 messages are safe, 1 were not kept and 0 may have been."
