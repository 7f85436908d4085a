"""IDENTIFY as nsqd 1.3 answers it, and what follows: TLS, snappy, deflate, heartbeats, sampling.

Black box, as in `test_protocol`. The values that IDENTIFY refuses are in `test_protocol_bad_input`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import time
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.snappyframes import SnappyEncoder
from tests.support.wire import (
    MESSAGE,
    NOP,
    RESPONSE,
    Peer,
    Quiet,
    auth,
    dpub,
    fin,
    identify,
    line,
    mpub,
    pub,
    rdy,
    req,
    sub,
    touch,
)

if TYPE_CHECKING:
    from tests.support.certificates import Certificates

ANSWER: dict[str, Any] = {
    "max_rdy_count": 2500,
    "version": "any",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}

# --- the answer --------------------------------------------------------------------------------


def test_without_feature_negotiation_the_answer_is_ok(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(identify({"client_id": "c", "hostname": "h", "snappy": True, "tls_v1": True}))
    peer.expect_ok()
    # and nothing was upgraded
    peer.publish(topic, b"plain")


def test_the_answer_has_nsqds_fields_in_nsqds_order(
    shared_broker: Broker, connect: Connect
) -> None:
    peer = connect(shared_broker.port)
    peer.send(identify({"feature_negotiation": True}))
    frame = peer.next_frame()
    assert frame.kind == RESPONSE
    answer = json.loads(frame.data)
    assert list(answer) == list(ANSWER)
    assert frame.data == json.dumps(answer, separators=(",", ":")).encode()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", answer["version"])
    assert answer | {"version": "any"} == ANSWER
    assert {name: type(value) for name, value in answer.items()} == {
        name: type(value) for name, value in ANSWER.items()
    }


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"msg_timeout": 1000}, {"msg_timeout": 1000}),
        ({"msg_timeout": 900000}, {"msg_timeout": 900000}),
        ({"msg_timeout": 0}, {}),
        ({"output_buffer_size": 64}, {"output_buffer_size": 64}),
        ({"output_buffer_size": 65536}, {"output_buffer_size": 65536}),
        ({"output_buffer_size": 0}, {}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        ({"output_buffer_timeout": 25}, {"output_buffer_timeout": 25}),
        ({"output_buffer_timeout": 30000}, {"output_buffer_timeout": 30000}),
        ({"output_buffer_timeout": -1}, {"output_buffer_timeout": 0}),
        ({"output_buffer_timeout": 0}, {}),
        ({"sample_rate": 99}, {"sample_rate": 99}),
        ({"heartbeat_interval": -1}, {}),
        ({"heartbeat_interval": 0}, {}),
        ({"heartbeat_interval": 1000}, {}),
        ({"heartbeat_interval": 60000}, {}),
        ({"tls_v1": True}, {}),  # there is no certificate
        ({"deflate_level": 3}, {}),  # deflate was not asked for
        ({"Msg_Timeout": 5000, "SAMPLE_RATE": 7}, {"msg_timeout": 5000, "sample_rate": 7}),
        ({"msg_timeout": None, "client_id": None, "snappy": None}, {}),
        ({"unknown": {"a": [1, 2]}, "short_id": "s", "long_id": "l"}, {}),
        ({"client_id": "c", "hostname": "h", "user_agent": "u/1 ☃"}, {}),
    ],
    ids=str,
)
def test_what_was_asked_for_is_answered(
    shared_broker: Broker, connect: Connect, asked: dict[str, Any], answered: dict[str, Any]
) -> None:
    peer = connect(shared_broker.port)
    answer = peer.negotiate(**asked)
    assert answer | {"version": "any"} == ANSWER | answered


def test_a_body_of_null(shared_broker: Broker, connect: Connect) -> None:
    peer = connect(shared_broker.port)
    peer.send(identify(b" null "))
    peer.expect_ok()


def test_the_command_line_shows_in_the_answer(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(
        "--max-rdy-count=5",
        "--msg-timeout=30s",
        "--max-msg-timeout=1m30s",
        "--max-deflate-level=3",
        "--output-buffer-timeout=100ms",
        "--snappy=false",
        "--deflate=false",
    )
    answer = connect(broker.port).negotiate(snappy=True, deflate=True)
    assert answer | {"version": "any"} == ANSWER | {
        "max_rdy_count": 5,
        "msg_timeout": 30000,
        "max_msg_timeout": 90000,
        "deflate_level": 3,
        "max_deflate_level": 3,
        "output_buffer_timeout": 100,
    }


def test_identify_may_be_repeated_and_come_late(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.publish(topic, b"x")
    assert peer.negotiate(msg_timeout=5000)["msg_timeout"] == 5000
    assert peer.negotiate(msg_timeout=6000)["msg_timeout"] == 6000
    assert peer.negotiate(output_buffer_size=-1)["msg_timeout"] == 6000
    peer.subscribe(topic, "channel", ready=1)
    peer.expect_message(b"x")


# --- compression -------------------------------------------------------------------------------

BODIES = [b"x", b"", os.urandom(100), b"a" * 200_000, os.urandom(200_000), b"\n" * 70_000]


def exchange(publisher: Peer, subscriber: Peer, topic: str) -> None:
    """Bodies of all kinds through PUB and MPUB, back as messages, finished."""
    bodies = [body for body in BODIES if body]
    for body in bodies:
        publisher.send(pub(topic, body))
    publisher.send(mpub(topic, bodies), dpub(topic, 0, b"last"))
    publisher.expect_ok(len(bodies) + 2)
    subscriber.subscribe(topic, "channel", ready=2500)
    got = []
    for _ in range(2 * len(bodies) + 1):
        message = subscriber.expect_message()
        got.append(message.body)
        subscriber.send(fin(message.id))
    assert got == [*bodies, *bodies, b"last"]
    subscriber.send(b"END\n")
    subscriber.expect_fatal("E_INVALID invalid command END")


@pytest.mark.parametrize("compress", [True, False])
def test_snappy(shared_broker: Broker, connect: Connect, topic: str, compress: bool) -> None:
    one, two = connect(shared_broker.port), connect(shared_broker.port)
    for peer in (one, two):
        assert peer.negotiate(snappy=True)["snappy"] is True
        peer.start_snappy(compress=compress)
    exchange(one, two, topic)


@pytest.mark.parametrize(("asked", "level"), [(1, 1), (6, 6), (0, 6), (9, 6), (-3, 6)])
def test_deflate(
    shared_broker: Broker, connect: Connect, topic: str, asked: int, level: int
) -> None:
    one, two = connect(shared_broker.port), connect(shared_broker.port)
    for peer in (one, two):
        answer = peer.negotiate(deflate=True, deflate_level=asked)
        assert answer["deflate"] is True
        assert answer["deflate_level"] == level
        peer.start_deflate(level)
    exchange(one, two, topic)


def test_max_deflate_level(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker("--max-deflate-level=9")
    answer = connect(broker.port).negotiate(deflate=True, deflate_level=9)
    assert answer["deflate_level"] == 9
    assert answer["max_deflate_level"] == 9


def test_a_compressed_and_a_plain_connection_meet(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    one, two = connect(shared_broker.port), connect(shared_broker.port)
    two.negotiate(snappy=True)
    two.start_snappy()
    exchange(one, two, topic)


def test_snappy_chunks_cut_into_single_bytes(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.negotiate(snappy=True)
    peer.start_snappy()
    encode = peer._encode
    assert encode is not None
    for byte in encode(pub(topic, b"snap" * 20)):
        peer.send_raw(bytes([byte]))
    peer.expect_ok()


def test_snappy_padding_and_skippable_chunks(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.negotiate(snappy=True)
    peer.start_snappy()
    peer.publish(topic, b"before")
    peer.send_raw(b"\xfe\x05\x00\x00" + b"\x00" * 5 + b"\x80\x03\x00\x00abc")
    peer.send_raw(b"\xff\x06\x00\x00sNaPpY")  # a stream may say again what it is
    peer.publish(topic, b"after")


# --- TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Broker(tmp_path_factory.mktemp("tls") / "data", *certificates.broker_flags) as broker:
        yield broker
        print(broker.log)


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
def test_tls_with_and_without_compression(
    tls_broker: Broker,
    connect: Connect,
    topic: str,
    certificates: Certificates,
    compression: str | None,
) -> None:
    one, two = connect(tls_broker.port), connect(tls_broker.port)
    for peer in (one, two):
        asked = {"tls_v1": True} | ({compression: True} if compression else {})
        answer = peer.negotiate(**asked)
        assert answer["tls_v1"] is True
        # TLS first and its OK inside it, then the compression and its OK inside both.
        peer.start_tls(certificates.context())
        if compression == "snappy":
            peer.start_snappy()
        if compression == "deflate":
            peer.start_deflate()
    exchange(one, two, topic)


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
@pytest.mark.parametrize("by_error", [False, True], ids=["stop", "fatal-error"])
def test_every_layer_ends_in_order(
    start_broker: StartBroker,
    connect: Connect,
    certificates: Certificates,
    compression: str | None,
    by_error: bool,
) -> None:
    broker = start_broker(*certificates.broker_flags)
    peer = connect(broker.port)
    peer.negotiate(tls_v1=True, **({compression: True} if compression else {}))
    tls = certificates.context().wrap_socket(
        peer.socket, server_hostname="localhost", suppress_ragged_eofs=False
    )
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    with contextlib.closing(tls):
        said = tls.recv(4096)
        if by_error:
            tls.sendall(WRAPPED[compression](line("FIN", "x")))
        else:
            broker.stop()
        # without TLS's own end this would be an SSLEOFError
        while chunk := tls.recv(4096):
            said += chunk
    if compression == "deflate":
        inflate.decompress(said[len(OK_FRAME) :])
        assert inflate.eof


def deflated(data: bytes) -> bytes:
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)


OK_FRAME = b"\0\0\0\x06\0\0\0\0OK"
WRAPPED: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "snappy": lambda data: SnappyEncoder().encode(data),
    "deflate": deflated,
}


def test_a_broken_tls_stream_keeps_no_messages_from_others(
    start_broker: StartBroker, connect: Connect, certificates: Certificates
) -> None:
    broker = start_broker(*certificates.broker_flags, "--durability=memory")
    publisher = connect(broker.port)
    other = connect(broker.port)
    other.subscribe("t", "other", ready=100)
    for number in range(10):
        broken = connect(broker.port)
        broken.negotiate(tls_v1=True)
        broken.start_tls(certificates.context())
        broken.subscribe("t", "broken", ready=100)
        # a message for it is on its way when its stream breaks
        broker.freeze()
        publisher.send(pub("t", b"%d" % number))
        with socket.socket(fileno=os.dup(broken.socket.fileno())) as below:
            below.sendall(b"this is no record of TLS")
        broker.thaw()
        publisher.expect_ok()
        other.send(fin(other.expect_message(b"%d" % number).id))
    assert "Traceback" not in broker.log


def test_tls_is_not_forced_on_anyone(tls_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(tls_broker.port)
    assert peer.negotiate()["tls_v1"] is False
    peer.publish(topic, b"plain")


def test_a_failed_handshake_ends_its_connection_only(
    tls_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(tls_broker.port)
    assert peer.negotiate(tls_v1=True)["tls_v1"] is True
    peer.send(b"this is no handshake, and it is longer than a record's header")
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := peer.socket.recv(4096):
            data += chunk
    # A TLS alert may come first; no frame but this one may.
    assert b"E_IDENTIFY_FAILED IDENTIFY failed" in data or data[:1] in {b"", b"\x15"}
    connect(tls_broker.port).publish(topic, b"unharmed")


@pytest.mark.slow
def test_a_handshake_that_never_comes_is_given_up(tls_broker: Broker, connect: Connect) -> None:
    peer = connect(tls_broker.port)
    peer.negotiate(tls_v1=True)
    began_at = time.monotonic()
    while peer.socket.recv(4096):
        pass
    assert time.monotonic() - began_at >= 4.5


@pytest.mark.parametrize("required", ["--tls-required", "--tls-required=tcp-https"])
def test_tls_required(
    start_broker: StartBroker,
    connect: Connect,
    certificates: Certificates,
    required: str,
) -> None:
    broker = start_broker(*certificates.broker_flags, required)
    for word, command in (
        ("PUB", pub("t", b"x")),
        ("MPUB", mpub("t", [b"x"])),
        ("DPUB", dpub("t", 1, b"x")),
        ("SUB", sub("t", "c")),
        ("RDY", rdy(1)),
        ("FIN", fin(b"0" * 16)),
        ("REQ", req(b"0" * 16)),
        ("TOUCH", touch(b"0" * 16)),
        ("CLS", b"CLS\n"),
        ("NOP", NOP),
        ("AUTH", auth("secret")),
        ("WHAT", b"WHAT\n"),
    ):
        peer = connect(broker.port)
        peer.send(command)
        peer.expect_fatal(f"E_INVALID cannot {word} in current state (TLS required)")
    unsecured = connect(broker.port)
    assert unsecured.negotiate()["tls_v1"] is False
    unsecured.send(NOP)
    unsecured.expect_fatal("E_INVALID cannot NOP in current state (TLS required)")
    secured = connect(broker.port)
    secured.negotiate(tls_v1=True)
    secured.start_tls(certificates.context())
    secured.publish("t", b"x")


def refused_in_handshake(peer: Peer, context: ssl.SSLContext) -> bool:
    """True if the broker did not let it in. TLS 1.3 clients learn that at their first read."""
    try:
        peer.start_tls(context)
    except (ssl.SSLError, AssertionError, ConnectionError):
        return True
    return False


@pytest.mark.parametrize(
    ("policy", "nobody", "stranger", "client"),
    [("require", True, False, False), ("require-verify", True, True, False)],
)
def test_client_certificates(
    start_broker: StartBroker,
    connect: Connect,
    certificates: Certificates,
    policy: str,
    nobody: bool,
    stranger: bool,
    client: bool,
) -> None:
    broker = start_broker(
        *certificates.broker_flags,
        "--tls-client-auth-policy",
        policy,
        "--tls-root-ca-file",
        str(certificates.authority),
    )
    for context, refused in (
        (certificates.context(), nobody),
        (certificates.stranger_context, stranger),
        (certificates.client_context, client),
    ):
        peer = connect(broker.port)
        peer.negotiate(tls_v1=True)
        assert refused_in_handshake(peer, context) is refused


@pytest.mark.parametrize(("least", "refused"), [("tls1.2", False), ("tls1.3", True)])
def test_tls_min_version(
    start_broker: StartBroker,
    connect: Connect,
    certificates: Certificates,
    least: str,
    refused: bool,
) -> None:
    broker = start_broker(*certificates.broker_flags, f"--tls-min-version={least}")
    context = certificates.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    peer = connect(broker.port)
    peer.negotiate(tls_v1=True)
    assert refused_in_handshake(peer, context) is refused


# --- heartbeats --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("subscribed", [False, True])
def test_heartbeats_come_and_an_answer_keeps_the_connection(
    shared_broker: Broker, connect: Connect, topic: str, subscribed: bool
) -> None:
    peer = connect(shared_broker.port, answer_heartbeats=False)
    peer.negotiate(heartbeat_interval=1000)
    if subscribed:
        peer.subscribe(topic, "channel", ready=1)
    began_at = time.monotonic()
    for _ in range(3):
        peer.expect_response(b"_heartbeat_")
        peer.send(NOP)
    assert time.monotonic() - began_at >= 2.5
    peer.send(pub(topic, b"alive"))
    peer.expect_ok()


@pytest.mark.slow
def test_a_peer_that_answers_no_heartbeat_is_dropped_after_two(
    shared_broker: Broker, connect: Connect
) -> None:
    peer = connect(shared_broker.port, answer_heartbeats=False)
    peer.negotiate(heartbeat_interval=1000)
    began_at = time.monotonic()
    heartbeats = 0
    while (frame := peer.read_frame()) is not None:
        assert frame == (RESPONSE, b"_heartbeat_")
        heartbeats += 1
    assert 1 <= heartbeats <= 2
    assert time.monotonic() - began_at >= 1.9


@pytest.mark.slow
def test_any_command_is_a_sign_of_life(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port, answer_heartbeats=False)
    peer.negotiate(heartbeat_interval=1000)
    peer.subscribe(topic, "channel")
    until = time.monotonic() + 3.5
    with peer.patience(0.3):
        while time.monotonic() < until:
            peer.send(rdy(0))
            try:
                peer.expect_response(b"_heartbeat_")
            except Quiet:
                continue
    peer.half_close()
    while (frame := peer.read_frame()) is not None:
        assert frame == (RESPONSE, b"_heartbeat_")


@pytest.mark.slow
def test_heartbeats_can_be_switched_off_for_publishers_only(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port, answer_heartbeats=False)
    peer.negotiate(heartbeat_interval=-1)
    peer.expect_nothing(2.5)
    peer.publish(topic, b"x")
    peer.send(sub(topic, "channel"))
    peer.expect_fatal("E_INVALID cannot SUB with heartbeats disabled")


# --- sampling ----------------------------------------------------------------------------------


def test_sample_rate_delivers_a_part_and_drops_the_rest(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    whole, sampled = connect(shared_broker.port), connect(shared_broker.port)
    whole.subscribe(topic, "whole", ready=2500)
    sampled.negotiate(sample_rate=40)
    sampled.subscribe(topic, "sampled", ready=2500)
    publisher = connect(shared_broker.port)
    publisher.send(mpub(topic, [b"x"] * 2000))
    publisher.expect_ok()
    assert len(whole.expect_messages(2000)) == 2000
    count = 0
    with sampled.patience(1.0):
        try:
            while True:
                message = sampled.expect_message()
                sampled.send(fin(message.id))
                count += 1
        except Quiet:
            pass
    # 40 % of 2,000 with a standard deviation of 22; this is 9 of them to either side.
    assert 600 <= count <= 1000
    # The others are not waiting for anyone.
    sampled.close()
    after = connect(shared_broker.port)
    after.subscribe(topic, "sampled", ready=2500)
    after.expect_nothing()


# --- output buffering --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"output_buffer_size": -1, "output_buffer_timeout": -1},
        {"output_buffer_size": 64, "output_buffer_timeout": 25},
        {"output_buffer_size": 65536, "output_buffer_timeout": 500},
        {"output_buffer_timeout": -1},
    ],
    ids=str,
)
def test_messages_arrive_whatever_buffering_was_asked_for(
    shared_broker: Broker, connect: Connect, topic: str, asked: dict[str, int]
) -> None:
    peer = connect(shared_broker.port)
    peer.negotiate(**asked)
    peer.subscribe(topic, "channel", ready=10)
    for number in range(5):
        peer.send(pub(topic, b"%d" % number))
        frames = [peer.next_frame(), peer.next_frame()]
        [message] = [frame for frame in frames if frame != (RESPONSE, b"OK")]
        assert message.kind == MESSAGE
        assert message.data[26:] == b"%d" % number
