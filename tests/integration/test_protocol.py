"""NSQ's TCP protocol V2 as nsqd 1.3 speaks it: every command, in every state where it is allowed.

Black box: raw sockets against a broker in a process of its own, started by nsqd's command line.
What goes wrong is in `test_protocol_bad_input`, IDENTIFY and the dresses that a connection may wear
are in `test_protocol_identify`, AUTH is in `test_protocol_auth`.

No test waits for a time to pass and hopes. Where something must not come, a command that answers
stands behind it as a barrier; where a delay is tested, it is a lower bound.
"""

from __future__ import annotations

import re
import time

import pytest

from tests.support.broker import Broker
from tests.support.fixtures import Connect, StartBroker
from tests.support.wire import (
    CLS,
    NO_SUCH_ID,
    NOP,
    Delivery,
    Peer,
    Quiet,
    dpub,
    fin,
    line,
    mpub,
    pub,
    rdy,
    req,
    sized,
    sub,
    touch,
)


def barrier(peer: Peer, times: int = 3) -> None:
    """Some round trips on a subscribed connection: what was on its way comes before they end."""
    for _ in range(times):
        peer.send(fin(NO_SUCH_ID))
        peer.expect_error(f"E_FIN_FAILED FIN {NO_SUCH_ID.decode()} failed ID not in flight")


def finish(peer: Peer, *messages: Delivery) -> None:
    """FIN them, and make sure that it was accepted (what was FINed before is not in flight)."""
    for message in messages:
        peer.send(fin(message.id), fin(message.id))
        peer.expect_error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")


# --- publishing and delivery -------------------------------------------------------------------


def test_a_message_goes_through(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    before_ns = time.time_ns()
    peer.send(pub(topic, b"hello"))
    peer.expect_ok()
    after_ns = time.time_ns()
    peer.subscribe(topic, "channel", ready=1)
    message = peer.expect_message(b"hello")
    assert message.attempts == 1
    assert re.fullmatch(rb"[0-9a-f]{16}", message.id)
    assert before_ns <= message.timestamp_ns <= after_ns
    finish(peer, message)


@pytest.mark.parametrize(
    "body", [b"\x00", b"\n", b"\r\n", b"FIN x\n", bytes(range(256)), b"x" * 1024 * 1024], ids=len
)
def test_bodies_are_bytes(shared_broker: Broker, connect: Connect, topic: str, body: bytes) -> None:
    peer = connect(shared_broker.port)
    peer.send(pub(topic, body), mpub(topic, [body, body]), dpub(topic, 0, body))
    peer.expect_ok(3)
    peer.subscribe(topic, "channel", ready=4)
    assert [peer.expect_message().body for _ in range(4)] == [body] * 4


def test_mpub_keeps_order_and_gives_each_message_an_id(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    bodies = [b"%d" % number for number in range(1000)]
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, bodies))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=2500)
    messages = peer.expect_messages(1000)
    assert [message.body for message in messages] == bodies
    assert len({message.id for message in messages}) == 1000


def test_mpub_of_the_largest_body(shared_broker: Broker, connect: Connect, topic: str) -> None:
    room = 5 * 1024 * 1024 - 4
    bodies = [b"x" * (1024 * 1024)] * 4
    room -= sum(4 + len(body) for body in bodies)
    bodies.append(b"y" * (room - 4))
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, bodies))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=5)
    assert [len(message.body) for message in peer.expect_messages(5)] == [*map(len, bodies)]


def test_pipelined_publishes_arrive_in_order(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    bodies = [b"%d" % number for number in range(500)]
    peer.send(*(pub(topic, body) for body in bodies))
    peer.expect_ok(500)
    peer.subscribe(topic, "channel", ready=500)
    assert [message.body for message in peer.expect_messages(500)] == bodies


def test_answers_come_in_the_order_of_the_commands(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.subscribe(topic, "channel")
    unknown = NO_SUCH_ID.decode()
    for _ in range(20):
        peer.send(
            pub(topic, b"a"),
            fin(NO_SUCH_ID),
            mpub(topic, [b"b", b"c"]),
            touch(NO_SUCH_ID),
            NOP,
            dpub(topic, 60000, b"d"),
            req(NO_SUCH_ID, 5),
        )
        peer.expect_ok()
        peer.expect_error(f"E_FIN_FAILED FIN {unknown} failed ID not in flight")
        peer.expect_ok()
        peer.expect_error(f"E_TOUCH_FAILED TOUCH {unknown} failed ID not in flight")
        peer.expect_ok()
        peer.expect_error(f"E_REQ_FAILED REQ {unknown} failed ID not in flight")
    peer.send(pub(topic, b"last"), CLS, pub(topic, b"after CLS"), b"END\n")
    peer.expect_ok()
    peer.expect_response(b"CLOSE_WAIT")
    peer.expect_ok()
    peer.expect_fatal("E_INVALID invalid command END")


def test_publishing_is_allowed_in_every_state(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    everything = pub(topic, b"x") + mpub(topic, [b"x"]) + dpub(topic, 0, b"x") + NOP
    peer.send(everything)
    peer.expect_ok(3)
    peer.negotiate()
    peer.send(everything)
    peer.expect_ok(3)
    peer.subscribe(topic, "channel")
    peer.send(everything)
    peer.expect_ok(3)
    peer.send(CLS)
    peer.expect_response(b"CLOSE_WAIT")
    peer.send(everything)
    peer.expect_ok(3)


def test_commands_may_end_in_crlf(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(b"NOP\r\n", b"PUB " + topic.encode() + b"\r\n" + sized(b"x"))
    peer.expect_ok()
    peer.send(b"SUB " + topic.encode() + b" channel\r\nRDY 1\r\n")
    peer.expect_ok()
    message = peer.expect_message(b"x")
    peer.send(b"FIN " + message.id + b"\r\nCLS\r\n")
    peer.expect_response(b"CLOSE_WAIT")


# --- topics and channels -----------------------------------------------------------------------


def test_the_first_channel_gets_what_was_published_before_it_and_later_ones_do_not(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    publisher = connect(shared_broker.port)
    publisher.publish(topic, b"before")
    first, second = connect(shared_broker.port), connect(shared_broker.port)
    first.subscribe(topic, "first", ready=10)
    finish(first, first.expect_message(b"before"))
    second.subscribe(topic, "second", ready=10)
    publisher.publish(topic, b"after")
    first.expect_message(b"after")
    second.expect_message(b"after")


def test_each_channel_gets_every_message(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    channels = [connect(shared_broker.port) for _ in range(3)]
    for number, peer in enumerate(channels):
        peer.subscribe(topic, f"channel{number}", ready=100)
    bodies = [b"%d" % number for number in range(50)]
    channels[0].send(mpub(topic, bodies))
    ids = []
    # The publisher's own OK may come before or after its first messages.
    frames = [channels[0].next_frame() for _ in range(51)]
    assert sum(frame.data == b"OK" for frame in frames) == 1
    for peer in channels[1:]:
        messages = peer.expect_messages(50)
        assert [message.body for message in messages] == bodies
        assert {message.attempts for message in messages} == {1}
        ids.append([message.id for message in messages])
    assert ids[0] == ids[1], "a message has the same id in each channel"


def test_subscribers_of_one_channel_share_its_messages(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peers = [connect(shared_broker.port) for _ in range(4)]
    for peer in peers:
        peer.subscribe(topic, "channel", ready=25)
    bodies = {b"%d" % number for number in range(100)}
    publisher = connect(shared_broker.port)
    publisher.send(mpub(topic, sorted(bodies)))
    publisher.expect_ok()
    # 4 × RDY 25 take exactly 100, so each gets 25, and nobody the same as another.
    seen = [message.body for peer in peers for message in peer.expect_messages(25)]
    assert set(seen) == bodies
    assert len(seen) == 100


def test_a_channel_goes_on_where_its_last_subscriber_left(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"1", b"2", b"3"]))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=1)
    finish(peer, peer.expect_message(b"1"))
    second = peer.expect_message(b"2")
    peer.send(rdy(0), fin(second.id))
    barrier(peer)
    peer.close()
    again = connect(shared_broker.port)
    again.subscribe(topic, "channel", ready=10)
    again.expect_message(b"3")
    barrier(again)


def test_an_ephemeral_channel_goes_with_its_last_subscriber(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    publisher, one, two = (connect(shared_broker.port) for _ in range(3))
    one.subscribe(topic, "e#ephemeral")
    two.subscribe(topic, "e#ephemeral")
    publisher.publish(topic, b"first")
    one.half_close()
    one.expect_closed()
    two.send(rdy(1))
    two.expect_message(b"first")
    publisher.publish(topic, b"second")
    two.half_close()
    two.expect_closed()
    publisher.publish(topic, b"while nobody listens")
    # The topic lives on and keeps that for the first channel that is none of the ephemeral kind or
    # comes next; the channel of that name is a new one.
    three = connect(shared_broker.port)
    three.subscribe(topic, "e#ephemeral", ready=10)
    three.expect_message(b"while nobody listens")
    barrier(three)


def test_an_ephemeral_topic_goes_with_its_last_channel(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    name = f"{topic}#ephemeral"
    publisher, one = connect(shared_broker.port), connect(shared_broker.port)
    one.subscribe(name, "c#ephemeral")
    publisher.publish(name, b"lost with it")
    one.half_close()
    one.expect_closed()
    publisher.publish(name, b"new life")
    two = connect(shared_broker.port)
    two.subscribe(name, "c#ephemeral", ready=10)
    two.expect_message(b"new life")
    barrier(two)


def test_max_channel_consumers(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker("--max-channel-consumers=2")
    peers = [connect(broker.port) for _ in range(2)]
    for peer in peers:
        peer.subscribe("few", "channel")
    third = connect(broker.port)
    third.send(sub("few", "channel"))
    third.expect_fatal("E_SUB_FAILED SUB failed consumers for few:channel exceeds limit of 2")
    connect(broker.port).subscribe("few", "another")
    peers[0].half_close()
    peers[0].expect_closed()
    connect(broker.port).subscribe("few", "channel")


# --- RDY ---------------------------------------------------------------------------------------


def test_nothing_is_sent_before_rdy(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.publish(topic, b"x")
    peer.subscribe(topic, "channel")
    barrier(peer)
    peer.send(rdy(1))
    peer.expect_message(b"x")


def test_in_flight_never_passes_rdy(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"%d" % number for number in range(20)]))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=3)
    held = peer.expect_messages(3)
    barrier(peer)
    peer.expect_nothing()
    peer.send(fin(held[1].id))
    held[1] = peer.expect_message(b"3")
    barrier(peer)
    # RDY is a level, not an amount: saying it again gives nothing.
    peer.send(rdy(3), rdy(3))
    barrier(peer)
    peer.send(rdy(5))
    held += peer.expect_messages(2)
    barrier(peer)
    # Lowering it recalls nothing, and answers free credit only below it.
    peer.send(rdy(2))
    finish(peer, *held[:3])
    barrier(peer)
    peer.send(fin(held[3].id))
    peer.expect_message(b"6")
    barrier(peer)
    peer.send(rdy(0))
    finish(peer, held[4])
    peer.expect_nothing()


@pytest.mark.parametrize(
    ("command", "count"), [(b"RDY\n", 1), (b"RDY \n", 0), (b"RDY 2\n", 2), (b"RDY 007\n", 7)]
)
def test_rdy_is_read_as_nsqd_reads_it(
    shared_broker: Broker, connect: Connect, topic: str, command: bytes, count: int
) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"x"] * 10))
    peer.expect_ok()
    peer.subscribe(topic, "channel")
    peer.send(command)
    peer.expect_messages(count)
    barrier(peer)


def test_rdy_2500(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"x"] * 2600))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=2500)
    peer.expect_messages(2500)
    barrier(peer)


# --- FIN, REQ, TOUCH, CLS ----------------------------------------------------------------------


def test_fin_in_any_order(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"%d" % number for number in range(100)]))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=100)
    messages = peer.expect_messages(100)
    shuffled = messages[1::2] + messages[-2::-2]
    peer.send(*(fin(message.id) for message in shuffled))
    barrier(peer)
    peer.send(*(fin(message.id) for message in messages))
    for message in messages:
        peer.expect_error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")


def test_req_brings_it_back_with_one_more_attempt(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.publish(topic, b"again")
    peer.subscribe(topic, "channel", ready=1)
    first = peer.expect_message(b"again")
    for attempts in range(2, 12):
        peer.send(req(first.id, 0))
        assert peer.expect_message(b"again") == first._replace(attempts=attempts)
    finish(peer, first)
    barrier(peer)


def test_req_hands_it_to_any_subscriber(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    one, two = connect(shared_broker.port), connect(shared_broker.port)
    one.subscribe(topic, "channel", ready=1)
    two.subscribe(topic, "channel")
    two.publish(topic, b"x")
    message = one.expect_message(b"x")
    one.send(rdy(0), req(message.id, 0))
    barrier(one)
    two.send(rdy(1))
    assert two.expect_message(b"x").attempts == 2
    one.send(fin(message.id))
    one.expect_error(f"E_FIN_FAILED FIN {message.id.decode()} failed client does not own message")


def test_a_message_that_is_requeued_for_ever_does_not_keep_the_others_waiting(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"a", b"b", b"c"]))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=1)
    seen: set[bytes] = set()
    for _ in range(30):
        message = peer.expect_message()
        seen.add(message.body)
        peer.send(req(message.id, 0))
    assert seen == {b"a", b"b", b"c"}


def test_req_with_a_delay_is_never_early(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.publish(topic, b"later")
    peer.subscribe(topic, "channel", ready=2)
    message = peer.expect_message(b"later")
    asked_at = time.monotonic()
    peer.send(req(message.id, 300))
    peer.send(pub(topic, b"meanwhile"))
    peer.expect_ok()
    finish(peer, peer.expect_message(b"meanwhile"))
    again = peer.expect_message(b"later")
    assert time.monotonic() - asked_at >= 0.3
    assert again == message._replace(attempts=2)


def test_a_deferred_message_is_not_in_flight(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.publish(topic, b"x")
    peer.subscribe(topic, "channel", ready=1)
    message = peer.expect_message(b"x")
    name = message.id.decode()
    peer.send(req(message.id, 60000), fin(message.id), touch(message.id), req(message.id, 0))
    peer.expect_error(f"E_FIN_FAILED FIN {name} failed ID not in flight")
    peer.expect_error(f"E_TOUCH_FAILED TOUCH {name} failed ID not in flight")
    peer.expect_error(f"E_REQ_FAILED REQ {name} failed ID not in flight")
    # and its credit is free
    peer.publish(topic, b"y")
    peer.expect_message(b"y")


def test_a_requeue_delay_beyond_the_limit_is_cut_to_it(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--max-req-timeout=400ms")
    peer = connect(broker.port)
    peer.publish("cut", b"x")
    peer.subscribe("cut", "channel", ready=1)
    message = peer.expect_message(b"x")
    asked_at = time.monotonic()
    peer.send(req(message.id, 86_400_000))
    assert peer.expect_message(b"x").attempts == 2
    assert time.monotonic() - asked_at >= 0.4


def test_cls_stops_messages_and_leaves_time_to_finish(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.send(mpub(topic, [b"1", b"2", b"3", b"4"]))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=3)
    one, two, three = peer.expect_messages(3)
    peer.send(CLS)
    peer.expect_response(b"CLOSE_WAIT")
    peer.send(rdy(10), touch(one.id), fin(one.id), req(two.id, 0))
    barrier(peer)
    peer.expect_nothing()
    after = connect(shared_broker.port)
    after.subscribe(topic, "channel", ready=10)
    came = {message.body: message for message in after.expect_messages(2)}
    assert came[b"2"].attempts == 2
    assert came[b"4"].attempts == 1
    finish(peer, three)
    barrier(after)


# --- timeouts ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_message_not_answered_in_time_comes_again(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--msg-timeout=500ms")
    peer = connect(broker.port)
    peer.publish("late", b"x")
    peer.subscribe("late", "channel", ready=1)
    began_at = time.monotonic()
    came = peer.expect_messages(3)
    assert [message.attempts for message in came] == [1, 2, 3]
    assert {message.id for message in came} == {came[0].id}
    assert time.monotonic() - began_at >= 1.0
    finish(peer, came[2])


@pytest.mark.slow
def test_a_late_answer_fails(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker("--msg-timeout=300ms")
    slow, quick = connect(broker.port), connect(broker.port)
    slow.publish("late", b"x")
    slow.subscribe("late", "channel", ready=1)
    message = slow.expect_message(b"x")
    slow.send(rdy(0))
    quick.negotiate(msg_timeout=60000)
    quick.subscribe("late", "channel", ready=1)
    again = quick.expect_message(b"x")
    assert again == message._replace(attempts=2)
    name = message.id.decode()
    slow.send(fin(message.id), req(message.id, 0), touch(message.id))
    slow.expect_error(f"E_FIN_FAILED FIN {name} failed client does not own message")
    slow.expect_error(f"E_REQ_FAILED REQ {name} failed client does not own message")
    slow.expect_error(f"E_TOUCH_FAILED TOUCH {name} failed client does not own message")
    quick.send(fin(again.id))
    barrier(quick)
    slow.send(fin(message.id))
    slow.expect_error(f"E_FIN_FAILED FIN {name} failed ID not in flight")


@pytest.mark.slow
def test_the_client_chooses_its_msg_timeout(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    assert peer.negotiate(msg_timeout=1000)["msg_timeout"] == 1000
    peer.publish(topic, b"x")
    peer.subscribe(topic, "channel", ready=1)
    began_at = time.monotonic()
    peer.expect_message(b"x")
    assert peer.expect_message(b"x").attempts == 2
    assert time.monotonic() - began_at >= 0.9


@pytest.mark.slow
def test_touch_gives_one_message_more_time(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    holder, other = connect(shared_broker.port), connect(shared_broker.port)
    holder.negotiate(msg_timeout=3000)
    holder.send(mpub(topic, [b"touched", b"left"]))
    holder.expect_ok()
    holder.subscribe(topic, "channel", ready=2)
    touched, left = holder.expect_messages(2)
    other.subscribe(topic, "channel", ready=2)
    time.sleep(1.5)
    holder.send(rdy(0), touch(touched.id))
    again = other.expect_message(b"left")
    assert again == left._replace(attempts=2)
    # Touched 1.5 s later, it has 1.5 s more than the other one, which has just timed out.
    finish(holder, touched)
    barrier(other)


@pytest.mark.slow
def test_touch_ends_at_max_msg_timeout(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker("--msg-timeout=1s", "--max-msg-timeout=2s")
    peer = connect(broker.port)
    peer.publish("touched", b"x")
    peer.subscribe("touched", "channel", ready=1)
    message = peer.expect_message(b"x")
    received_at = time.monotonic()
    peer.send(rdy(0))
    gone = f"E_TOUCH_FAILED TOUCH {message.id.decode()} failed ID not in flight"
    with peer.patience(0.2):
        while True:
            peer.send(touch(message.id))
            try:
                peer.expect_error(gone)
            except Quiet:
                assert time.monotonic() < received_at + 60, "still in flight after a minute"
            else:
                break
    assert time.monotonic() - received_at >= 1.9
    other = connect(broker.port)
    other.subscribe("touched", "channel", ready=1)
    assert other.expect_message(b"x").attempts == 2


# --- delays ------------------------------------------------------------------------------------


def test_a_deferred_publish_is_never_early_and_keeps_nobody_waiting(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    peer = connect(shared_broker.port)
    peer.subscribe(topic, "channel", ready=10)
    sent_at = time.monotonic()
    peer.send(dpub(topic, 600, b"second"), dpub(topic, 300, b"first"))
    peer.expect_ok(2)
    peer.send(pub(topic, b"now"))
    frames = [peer.next_frame(), peer.next_frame()]
    assert {frame.data[-3:] for frame in frames} == {b"OK", b"now"}
    first = peer.expect_message(b"first")
    assert time.monotonic() - sent_at >= 0.3
    assert first.attempts == 1
    second = peer.expect_message(b"second")
    assert time.monotonic() - sent_at >= 0.6
    finish(peer, first, second)


def test_a_deferred_publish_reaches_every_channel(
    shared_broker: Broker, connect: Connect, topic: str
) -> None:
    one, two = connect(shared_broker.port), connect(shared_broker.port)
    one.subscribe(topic, "one", ready=1)
    two.subscribe(topic, "two", ready=1)
    publisher = connect(shared_broker.port)
    publisher.send(dpub(topic, 200, b"x"))
    publisher.expect_ok()
    assert one.expect_message(b"x").id == two.expect_message(b"x").id


def test_the_longest_delay_is_an_hour(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(dpub(topic, 3_600_000, b"x"))
    peer.expect_ok()


def test_serve_takes_delays_of_a_hundred_years_and_none_that_time_cannot_hold(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(verb="serve")
    longest_ms = 100 * 365 * 86_400_000
    peer = connect(broker.port)
    peer.send(dpub("t", longest_ms, b"in a hundred years"))
    peer.expect_ok()
    for delay_ms in (longest_ms + 1, 2**63 - 1):
        hasty = connect(broker.port)
        hasty.send(dpub("t", delay_ms, b"x"))
        hasty.expect_fatal(f"E_INVALID DPUB timeout {delay_ms} out of range 0-{longest_ms}")
    peer.publish("t", b"now")
    peer.subscribe("t", "c", ready=2)
    # REQ is cut to the limit, as nsqd does
    peer.send(req(peer.expect_message(b"now").id, 2**63 - 1))
    peer.publish("t", b"later")
    peer.expect_message(b"later")
    assert broker.stop() == 0
    assert "Traceback" not in broker.log
    broker.start()
    again = connect(broker.port)
    again.subscribe("t", "c", ready=10)
    again.expect_message(b"later")
    again.publish("t", b"last")
    again.expect_message(b"last")


def test_a_delay_of_no_digits_is_none(shared_broker: Broker, connect: Connect, topic: str) -> None:
    peer = connect(shared_broker.port)
    peer.send(line("DPUB", topic, "") + sized(b"x"))
    peer.expect_ok()
    peer.subscribe(topic, "channel", ready=1)
    message = peer.expect_message(b"x")
    peer.send(line("REQ", message.id, ""))
    assert peer.expect_message(b"x").attempts == 2


# --- what an OK is worth -----------------------------------------------------------------------


@pytest.mark.slow
def test_what_was_answered_survives_kill_9(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    peer = connect(broker.port)
    for channel in ("one", "two"):
        connect(broker.port).subscribe("kept", channel)
    peer.send(pub("kept", b"a"), mpub("kept", [b"b", b"c"]), dpub("kept", 1500, b"d"))
    peer.expect_ok(3)
    broker.restart(kill=True)
    for channel in ("one", "two"):
        reader = connect(broker.port)
        reader.subscribe("kept", channel, ready=10)
        assert [message.body for message in reader.expect_messages(4)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.slow
def test_a_requeue_with_a_delay_survives_kill_9(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker("--msg-timeout=60s")
    peer = connect(broker.port)
    peer.publish("kept", b"x")
    peer.subscribe("kept", "channel", ready=1)
    message = peer.expect_message(b"x")
    asked_at = time.monotonic()
    peer.send(req(message.id, 3000))
    # The journal takes what was settled within 100 ms.
    peer.expect_nothing(0.5)
    broker.restart(kill=True)
    reader = connect(broker.port)
    reader.subscribe("kept", "channel", ready=1)
    again = reader.expect_message(b"x")
    assert time.monotonic() - asked_at >= 3.0
    assert again == message._replace(attempts=2)


@pytest.mark.slow
def test_a_clean_stop_keeps_everything(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker("--shutdown-timeout=500ms")  # the consumer does not settle what it has
    peer = connect(broker.port)
    peer.send(mpub("kept", [b"finished", b"in flight", b"waiting"]), dpub("kept", 500, b"deferred"))
    peer.expect_ok(2)
    peer.subscribe("kept", "channel", ready=2)
    finished, in_flight = peer.expect_messages(2)
    peer.send(rdy(0))
    finish(peer, finished)
    broker.restart()
    reader = connect(broker.port)
    reader.subscribe("kept", "channel", ready=10)
    came = {message.body: message for message in reader.expect_messages(3)}
    assert came.keys() == {b"in flight", b"waiting", b"deferred"}
    assert came[b"in flight"].id == in_flight.id


def test_a_stop_closes_connections_and_exits_with_0(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker()
    peer = connect(broker.port)
    peer.subscribe("stop", "channel", ready=1)
    assert broker.stop() == 0
    peer.expect_closed()
