"""gnsq behind the dialogue of `tests/compat/driver.py`; runs alone, on gevent."""

from __future__ import annotations

import base64
import json
import ssl
import sys
from collections.abc import Callable
from typing import Any

import gevent
import gnsq
from gevent.fileobject import FileObjectThread
from gevent.lock import RLock
from gnsq.stream.defalte import DefalteSocket

OUT = RLock()

_close = DefalteSocket.close


def _close_whatever_is_left(self: Any) -> None:
    """gnsq 1.0.2 writes the end of its deflate stream into a socket that the broker may have left
    already, and dies of what comes back (`BrokenPipeError` in the greenlet that would reconnect),
    whatever the broker."""
    try:
        _close(self)
    except OSError:
        self._socket.close()


DefalteSocket.close = _close_whatever_is_left


def say(event: str, **more: Any) -> None:
    with OUT:
        sys.stdout.write(json.dumps({"event": event} | more) + "\n")
        sys.stdout.flush()


def options(job: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {
        "snappy": job["snappy"],
        "deflate": job["deflate"],
        "max_backoff_duration": 1,
    }
    if job["tls"]:
        given["tls_v1"] = True
        given["tls_options"] = {"ca_certs": job["ca"], "cert_reqs": ssl.CERT_REQUIRED}
    if job["secret"]:
        given["auth_secret"] = job["secret"].encode()
    return given


def orders() -> Any:
    for line in FileObjectThread(sys.stdin.buffer, "rb"):
        order = json.loads(line)
        order["bodies"] = [base64.b64decode(body) for body in order["bodies"]]
        yield order


class Connection:
    """A producer on gnsq's own connection class, for the dresses that its Producer cannot wear.

    gnsq 1.0.2's Producer takes the OK that follows an upgrade for the answer to a publish and falls
    over it (`KeyError` in `handle_response`), whatever the broker.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._client: Any = None

    def start(self) -> None:
        given = {name: value for name, value in options(self._job).items() if name in DRESS_OPTIONS}
        self._client = gnsq.NsqdTCPClient(self._job["host"], self._job["port"], timeout=30, **given)
        self._client.connect()
        self._client.identify()

    def publish(
        self, topic: str, body: bytes, defer: int | None = None, timeout: float = 0
    ) -> None:
        self._answered(lambda client: client.publish(topic, body, defer=defer))

    def multipublish(self, topic: str, bodies: list[bytes], timeout: float = 0) -> None:
        self._answered(lambda client: client.multipublish(topic, bodies))

    def _answered(self, send: Callable[[Any], None]) -> None:
        try:
            if not self._client.is_connected:
                self.start()
            send(self._client)
            while self._client.read_response()[1] == b"_heartbeat_":
                pass
        except gnsq.errors.NSQException:
            self._client.close_stream()
            raise

    def close(self) -> None:
        self._client.close_stream()

    def join(self, timeout: float) -> None:
        pass


DRESS_OPTIONS = {"snappy", "deflate", "tls_v1", "tls_options", "auth_secret"}


def produce(job: dict[str, Any]) -> None:
    dressed = job["tls"] or job["snappy"] or job["deflate"]
    producer = (
        Connection(job)
        if dressed
        else gnsq.Producer(f"{job['host']}:{job['port']}", **options(job))
    )
    producer.start()
    say("ready")
    for order in orders():
        try:
            if order["do"] == "stop":
                break
            if order["do"] == "mpublish":
                producer.multipublish(job["topic"], order["bodies"], timeout=30)
            for body in order["bodies"] if order["do"] != "mpublish" else ():
                defer = order["delay_ms"] if order["do"] == "dpublish" else None
                producer.publish(job["topic"], body, defer=defer, timeout=30)
            say("published")
        except Exception as error:  # noqa: BLE001  the test decides what a failure means
            say("failed", why=repr(error))
    producer.close()
    producer.join(timeout=5)


def consume(job: dict[str, Any]) -> None:
    consumer = gnsq.Consumer(
        job["topic"],
        job["channel"],
        [] if job["lookup"] else f"{job['host']}:{job['port']}",
        lookupd_http_addresses=[job["lookup"]] if job["lookup"] else [],
        lookupd_poll_interval=1,
        max_in_flight=job["max_in_flight"],
        max_tries=0,
        backoff_on_requeue=False,
        **options(job),
    )

    def hold(message: Any, body: str) -> None:
        gevent.sleep(1.2)
        message.touch()
        gevent.sleep(1.2)
        message.finish()
        say("finished", body=body)

    def on_message(_: Any, message: Any) -> None:
        body = base64.b64encode(message.body).decode()
        say("message", body=body, attempts=message.attempts)
        if message.body.startswith(b"requeue") and message.attempts == 1:
            message.requeue(100, backoff=False)
        elif message.body.startswith(b"touch"):
            message.enable_async()
            gevent.spawn(hold, message, body)
        else:
            message.finish()
            say("finished", body=body)

    def on_error(_: Any, error: Any) -> None:
        say("failed", why=repr(error))

    consumer.on_message.connect(on_message, weak=False)
    consumer.on_error.connect(on_error, weak=False)
    consumer.start(block=False)
    say("ready")
    for order in orders():
        if order["do"] == "stop":
            break
    consumer.close()
    consumer.join(timeout=5)


if __name__ == "__main__":
    JOB = json.loads(sys.argv[1])
    (produce if JOB["role"] == "producer" else consume)(JOB)
