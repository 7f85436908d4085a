"""The handshake with all that can be negotiated, heartbeats, and brokers that are none."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

import pytest

from penstock import BrokerUnreachable, Client, Refused
from penstock.sdk.options import Compression
from tests.integration.sdk_fake_nsqd import FakeNsqd, frame, in_loop

if TYPE_CHECKING:
    from tests.support.certificates import Certificates


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server_cert, certificates.server_key)
    return context


async def round_trip(broker: FakeNsqd, subject: Client) -> None:
    bodies = [b"body %d " % i * 50 for i in range(300)]
    async with subject.producer() as producer:
        await producer.publish_many("t", bodies)
    assert broker.topics["t"] == bodies
    broker.push(*bodies)
    async with subject.consumer("t", "c") as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == len(bodies):
                message.finish()
                break
    assert seen == bodies
    assert broker.finished == bodies


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
def test_compression(compression: Compression | None) -> None:
    @in_loop
    async def scenario() -> None:
        async with FakeNsqd() as broker:
            await round_trip(broker, Client(broker.address, compression=compression))
            identity = broker.identities[0]
            assert identity["snappy"] is (compression == "snappy")
            assert identity["deflate"] is (compression == "deflate")

    scenario()


@pytest.mark.parametrize("compression", [None, "snappy", "deflate"])
def test_tls(certificates: Certificates, compression: Compression | None) -> None:
    @in_loop
    async def scenario() -> None:
        async with FakeNsqd() as broker:
            broker.tls = server_context(certificates)
            trusting = certificates.context()
            await round_trip(broker, Client(broker.address, tls=trusting, compression=compression))

    scenario()


@in_loop
async def test_a_certificate_that_is_not_trusted(certificates: Certificates) -> None:
    async with FakeNsqd() as broker:
        broker.tls = server_context(certificates)
        with pytest.raises(BrokerUnreachable, match=r"no TLS .* issuer cert.*; to trust"):
            await Client(broker.address, tls=True).producer().start()


@in_loop
async def test_tls_that_the_broker_does_not_offer() -> None:
    async with FakeNsqd() as broker:
        with pytest.raises(Refused, match="does not offer TLS"):
            await Client(broker.address, tls=True).producer().start()


@in_loop
async def test_authorization() -> None:
    async with FakeNsqd(auth_required=True) as broker:
        async with Client(broker.address, auth_secret="open sesame").producer() as producer:
            await producer.publish("t", b"x")
        with pytest.raises(Refused, match="no auth_secret"):
            await Client(broker.address).producer().start()
        with pytest.raises(Refused, match="E_AUTH_FAILED") as caught:
            await Client(broker.address, auth_secret="wrong").producer().start()
        assert caught.value.code == "E_AUTH_FAILED"


@in_loop
async def test_what_identify_says() -> None:
    async with FakeNsqd() as broker:
        subject = Client(broker.address, user_agent="tests", client_id="me", heartbeat_interval=5)
        async with subject.consumer("t", "c", msg_timeout=7.5, sample_rate=10):
            identity = broker.identities[0]
        assert identity["client_id"] == "me"
        assert str(identity["user_agent"]).startswith("tests/")
        assert identity["heartbeat_interval"] == 5000
        assert identity["msg_timeout"] == 7500
        assert identity["sample_rate"] == 10
        assert identity["feature_negotiation"] is True


@in_loop
async def test_heartbeats_are_answered_at_any_time() -> None:
    async with FakeNsqd() as broker:
        beats = 0

        def beat_first(session: object, words: list[bytes], _: bytes) -> bytes | None:
            nonlocal beats
            if words[0] == b"SUB":
                beats += 1
                return frame(0, b"_heartbeat_") + frame(0, b"OK")
            return None

        broker.script = beat_first
        async with Client(broker.address).consumer("t", "c"):
            await broker.until(lambda: broker.commands.count(b"NOP") == 1)
            broker.sessions[0].send(frame(0, b"_heartbeat_"))
            await broker.until(lambda: broker.commands.count(b"NOP") == 2)
        assert beats == 1


@in_loop
async def test_a_silent_broker_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with FakeNsqd() as broker:
        subject = Client(broker.address, heartbeat_interval=1.0, reconnect_delay=0.01)
        async with subject.producer() as producer:
            connection = producer._connection
            assert connection is not None
            # As if nothing had come for so long, instead of waiting for it.
            connection._heard_at -= 10
            connection._check_at -= 10
            connection._check_alive()  # late itself: the loop was held up, nothing is proved
            assert not connection.closed
            connection._check_alive()
            await broker.until(lambda: not broker.sessions)
            await producer.publish("t", b"x")
            assert producer.statistics().connects == 2
    assert "no sign of life for 10 s" in caplog.text


@in_loop
async def test_a_broker_that_never_answers() -> None:
    async with FakeNsqd() as broker:
        broker.script = lambda *_: b""
        with pytest.raises(BrokerUnreachable, match=r"within 0\.05 s"):
            await Client(broker.address, connect_timeout=0.05).producer().start()
        await broker.until(lambda: not broker.sessions)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "4150"),
        (frame(0, b"OK"), "not JSON"),
        (frame(1, b"E_INVALID IDENTIFY failed"), "E_INVALID"),
    ],
)
def test_what_is_no_broker(answer: bytes, complaint: str) -> None:
    @in_loop
    async def scenario() -> None:
        async with FakeNsqd() as broker:
            broker.script = lambda *_: answer
            with pytest.raises((BrokerUnreachable, Refused), match=complaint):
                await Client(broker.address).producer().start()

    scenario()


@in_loop
async def test_a_broker_that_hangs_up_during_the_handshake() -> None:
    async with FakeNsqd() as broker:

        def hang_up(session: object, *_: object) -> bytes:
            broker.sessions[0].drop()
            return b""

        broker.script = hang_up
        with pytest.raises(BrokerUnreachable, match="IDENTIFY"):
            await Client(broker.address).producer().start()


@in_loop
async def test_cancelling_a_start_leaves_no_connection() -> None:
    async with FakeNsqd() as broker:
        broker.script = lambda *_: b""
        starting = asyncio.create_task(Client(broker.address).producer().start())
        await broker.until(lambda: bool(broker.commands))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await broker.until(lambda: not broker.sessions)
