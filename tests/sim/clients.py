"""Simulated NSQ clients: publishers that never wait enough, consumers with bad habits.

They speak bytes over a `Link` and tell a `History` what they did. A client connects again and
again; each connection is a `Session` of its own. They know the protocol the way a client does
(`wire` builds their commands), and nothing of the broker behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Protocol

from tests.sim.history import ChannelHistory, History, Holder, Message, TopicHistory
from tests.sim.network import End, Link
from tests.sim.world import MS, SECOND, World
from tests.support import wire


class Net(Protocol):
    """Where clients find the broker."""

    world: World
    history: History

    def connect(self, end: End) -> Link | None:
        """A connection; None when nobody listens."""


class Client:
    """Somebody who connects whenever there is no connection."""

    def __init__(self, net: Net, name: str, rng: Random) -> None:
        self.net = net
        self.world = net.world
        self.history = net.history
        self.name = name
        self.rng = rng
        self.running = True
        self.connects = 0
        self.current: Session | None = None

    def start(self) -> None:
        self.world.after(self.rng.randrange(300) * MS, self.connect)

    def connect(self) -> None:
        if not self.running or self.current is not None:
            return
        session = self.session()
        link = self.net.connect(session)
        if link is None:
            self.world.after(self.rng.randrange(50, 400) * MS, self.connect)
            return
        self.connects += 1
        self.current = session
        session.link = link
        link.send(wire.MAGIC)
        session.begin()

    def session(self) -> Session:
        raise NotImplementedError

    def left(self, session: Session) -> None:
        if self.current is session:
            self.current = None
            self.world.after(self.rng.randrange(1, 300) * MS, self.connect)


class Session:
    """One connection, from the client's side."""

    link: Link

    def __init__(self, client: Client) -> None:
        self.client = client
        self.world = client.world
        self.history = client.history
        self.rng = client.rng
        self.over = False

    def begin(self) -> None:
        raise NotImplementedError

    def hang_up(self) -> None:
        if self.over:
            return
        if self.rng.random() < 0.5:
            self.link.vanish()
        else:
            self.link.close_gently()
        self.ended()

    def ended(self) -> None:
        self.over = True
        self.client.left(self)

    def heard(self, kind: int, data: bytes) -> None:
        if kind == wire.RESPONSE and data == wire.HEARTBEAT:
            self.link.send(wire.NOP)
        elif kind == wire.MESSAGE:
            self.got(wire.decode_delivery(data))
        elif kind == wire.RESPONSE:
            self.answered(data)

    def answered(self, data: bytes) -> None:
        """A response has arrived."""

    def got(self, delivery: wire.Delivery) -> None:
        """A message has arrived."""

    def gone(self) -> None:
        """For the broker it is over."""

    def said(self, kind: int, data: bytes) -> None:
        """The broker wrote a frame."""

    def missed(self, kind: int, data: bytes) -> None:
        """The broker wrote a frame to a connection that was closing."""


class Publisher(Client):
    """PUB, MPUB and DPUB, several under way at a time."""

    def __init__(
        self, net: Net, name: str, rng: Random, topics: Sequence[TopicHistory], pause_ns: int
    ) -> None:
        super().__init__(net, name, rng)
        self.topics = topics
        self.pause_ns = pause_ns
        self.under_way_max = rng.choice((1, 4, 20))
        self.delayed_share = rng.choice((0.0, 0.1, 0.4))
        self.count = 0

    def session(self) -> Session:
        return Publishing(self)

    def stop(self) -> None:
        self.running = False
        if self.current is not None:
            self.current.hang_up()

    def body(self) -> bytes:
        self.count += 1
        size = self.rng.choice((0, 10, 100, 700))
        if self.rng.random() < 0.02:
            size = 6000
        return f"{self.name}.{self.count} ".encode() + self.rng.randbytes(size // 4).hex().encode()


class Publishing(Session):
    """A publisher's connection."""

    def __init__(self, client: Publisher) -> None:
        super().__init__(client)
        self.publisher = client
        self.owed: deque[list[Message]] = deque()

    def begin(self) -> None:
        self.act()

    def act(self) -> None:
        if self.over:
            return
        publisher = self.publisher
        if len(self.owed) < publisher.under_way_max:
            for _ in range(self.rng.choice((1, 1, 1, 3))):
                self.publish(self.rng.choice(publisher.topics))
        if self.rng.random() < 0.005:
            self.hang_up()
            return
        self.world.after(int(self.rng.expovariate(1.0) * publisher.pause_ns), self.act)

    def publish(self, topic: TopicHistory) -> None:
        history, publisher = self.history, self.publisher
        drawn = self.rng.random()
        if drawn < publisher.delayed_share:
            delay_ms = self.rng.choice((0, 1, 50, 300, 1000, 3000, 8000))
            body = publisher.body()
            message = history.published(topic, body, delay_ms * MS)
            self.owed.append([message])
            given = partial(history.given, message, delay_ms * MS) if delay_ms else None
            self.link.send(wire.dpub(topic.name, delay_ms, body), given)
        elif drawn < 0.6:
            body = publisher.body()
            self.owed.append([history.published(topic, body, None)])
            self.link.send(wire.pub(topic.name, body))
        else:
            bodies = [publisher.body() for _ in range(self.rng.choice((1, 2, 5, 20)))]
            self.owed.append([history.published(topic, body, None) for body in bodies])
            self.link.send(wire.mpub(topic.name, bodies))

    def said(self, kind: int, data: bytes) -> None:
        if kind == wire.RESPONSE and data == b"OK":
            for message in self.owed.popleft():
                self.history.acked(message)
        elif kind == wire.ERROR:
            for message in self.owed.popleft():
                self.history.refused(message, data.decode())


class Consumer(Client):
    """SUB and RDY; finishes, requeues, touches, forgets, leaves."""

    def __init__(
        self,
        net: Net,
        name: str,
        rng: Random,
        topic: TopicHistory,
        channel: ChannelHistory,
        after: ChannelHistory | None,
    ) -> None:
        super().__init__(net, name, rng)
        self.topic = topic
        self.channel = channel
        self.after = after  # the channel that must be there first
        self.habits = rng.choice((0.0, 0.1, 0.4))  # how often it does anything but finish
        self.think_ns = rng.choice((0, 1, 20, 200)) * MS
        self.ready = rng.choice((1, 3, 20, 200))
        self.timeout_ms = rng.choice((1000, 2000, 5000))
        self.draining = False

    def connect(self) -> None:
        if self.after is not None and not self.after.since_ns:
            self.world.after(200 * MS, self.connect)
            return
        super().connect()

    def session(self) -> Session:
        return Consuming(self)

    def drain(self) -> None:
        """From now on: take everything, finish at once."""
        self.draining = True
        self.ready = max(self.ready, 50)
        if self.current is not None:
            self.current.link.start_reading()
            self.current.hang_up()  # what it had forgotten is given back


class Consuming(Session):
    """A consumer's connection."""

    def __init__(self, client: Consumer) -> None:
        super().__init__(client)
        self.consumer = client
        self.topic = client.topic
        self.channel = client.channel
        self.holder = Holder(f"{client.name}#{client.connects}", client.timeout_ms * MS)
        self.owed: deque[str] = deque(["IDENTIFY", "SUB"])
        self.failed: set[bytes] = set()

    def begin(self) -> None:
        consumer = self.consumer
        self.link.send(
            wire.identify({"client_id": consumer.name, "msg_timeout": consumer.timeout_ms})
            + wire.sub(self.topic.name, self.channel.name)
        )
        self.world.after(int(self.rng.expovariate(0.2) * SECOND), self.whim)

    def said(self, kind: int, data: bytes) -> None:
        if kind == wire.MESSAGE:
            _, attempts, message_id, body = wire.decode_delivery(data)
            self.history.delivered(
                self.topic, self.channel, self.holder, message_id, attempts, body
            )
        elif kind == wire.ERROR:
            verb, _, rest = data.decode().partition(" ")
            if verb in {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"}:
                message_id = rest.split()[1].encode()
                self.failed.add(message_id)
                self.history.settle_failed(self.holder, message_id, data.decode())
        elif data == b"OK" and self.owed.popleft() == "SUB":
            self.history.subscribed(self.topic, self.channel.name)

    def missed(self, kind: int, data: bytes) -> None:
        if kind == wire.MESSAGE:
            _, attempts, _, body = wire.decode_delivery(data)
            self.history.missed(self.topic, self.channel, attempts, body)

    def answered(self, data: bytes) -> None:
        if data == b"OK" and not self.owed and not self.over:
            self.send_ready(self.consumer.ready)

    def send_ready(self, count: int) -> None:
        if not self.over:
            self.link.send(wire.rdy(count), partial(self.ready_given, count))

    def ready_given(self, count: int) -> None:
        self.holder.ready = count

    def got(self, delivery: wire.Delivery) -> None:
        consumer = self.consumer
        if consumer.draining or not consumer.think_ns:
            self.settle(delivery.id)
        else:
            think = int(self.rng.expovariate(1.0) * consumer.think_ns)
            self.world.after(think, self.settle, delivery.id)

    def settle(self, message_id: bytes) -> None:
        if self.over:
            return
        consumer = self.consumer
        if consumer.draining or self.rng.random() >= consumer.habits:
            self.link.send(wire.fin(message_id), partial(self.fin_given, message_id), message_id)
            return
        habit = self.rng.choice(("at once", "later", "touch", "forget"))
        if habit in {"at once", "later"}:
            delay_ms = self.rng.choice((1, 100, 700, 2500)) if habit == "later" else 0
            given = partial(self.req_given, message_id, delay_ms * MS)
            self.link.send(wire.req(message_id, delay_ms), given, message_id)
        elif habit == "touch":
            given = partial(self.touch_given, message_id)
            self.link.send(wire.touch(message_id), given, message_id)
            self.world.after(self.rng.randrange(consumer.timeout_ms * MS), self.settle, message_id)

    def fin_given(self, message_id: bytes) -> None:
        if not self.was_refused(message_id):
            self.history.finished(self.holder, message_id)

    def req_given(self, message_id: bytes, delay_ns: int) -> None:
        if not self.was_refused(message_id):
            self.history.requeued(self.holder, message_id, delay_ns)

    def touch_given(self, message_id: bytes) -> None:
        if not self.was_refused(message_id):
            self.history.touched(self.holder, message_id)

    def was_refused(self, message_id: bytes) -> bool:
        if message_id in self.failed:
            self.failed.discard(message_id)
            return True
        return False

    def whim(self) -> None:
        """Now and then it changes its RDY, stops reading for a while, or leaves."""
        consumer = self.consumer
        if self.over or consumer.draining:
            return
        whim = self.rng.choice(("ready", "ready", "deaf", "leave", "say goodbye"))
        if whim == "ready":
            self.send_ready(self.rng.choice((0, 1, consumer.ready, consumer.ready * 2)))
            self.world.after(500 * MS, self.send_ready_again)
        elif whim == "deaf":
            self.link.stop_reading()
            self.world.after(self.rng.randrange(1, 3000) * MS, self.link.start_reading)
        elif whim == "leave":
            self.hang_up()
            return
        else:
            self.link.send(wire.CLS)
            self.world.after(self.rng.randrange(1, 500) * MS, self.hang_up)
            return
        self.world.after(int(self.rng.expovariate(0.2) * SECOND), self.whim)

    def send_ready_again(self) -> None:
        self.send_ready(self.consumer.ready)

    def gone(self) -> None:
        self.history.left(self.holder)
