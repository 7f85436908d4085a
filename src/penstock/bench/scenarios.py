"""What each bench does: fill, load, measure. A function per kind; its keywords are its parameters.

``penstock.bench.catalogue`` gives them names, sizes and targets. A scenario returns its metrics,
units last in their names; it raises when what happened is not what it set out to measure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

from penstock.bench.consume import ConsumeLoad, SlowConsumeLoad
from penstock.bench.dialect import HttpLine
from penstock.bench.fleet import Load
from penstock.bench.ground import Broker, Ground, Metrics, OwnBroker, in_mb
from penstock.bench.idle import IdleLoad, raise_open_files
from penstock.bench.laid import lay_single_messages
from penstock.bench.process import Observed
from penstock.bench.publish import PublishLoad
from penstock.bench.schedule import ScheduledPublishLoad
from penstock.bench.wire import BenchError

_CHANNEL = "bench"
_FILL_PER_COMMAND = 200
_SAMPLE_S = 0.1


def publish(
    ground: Ground,
    *,
    connections: int,
    inflight: int,
    per_command: int,
    body_bytes: int,
    messages: int,
    durability: str,
    fdatasync_us: int,
) -> Metrics:
    """PUB or MPUB as fast as answers come, to one topic."""
    with ground.broker(durability, fdatasync_us=fdatasync_us) as broker:
        load = PublishLoad(
            broker.address,
            (broker.topic,),
            connections,
            inflight,
            per_command,
            body_bytes,
            messages // per_command,
        )
        return _published(broker, load, messages)


def publish_over_http(
    ground: Ground,
    *,
    connections: int,
    per_command: int,
    body_bytes: int,
    messages: int,
    durability: str,
) -> Metrics:
    """/pub or /mpub on connections that are kept, each answer awaited."""
    with ground.own_broker(durability) as broker:
        load = PublishLoad(
            broker.http_address,
            (broker.topic,),
            connections,
            1,
            per_command,
            body_bytes,
            messages // per_command,
            HttpLine,
        )
        return _published(broker, load, messages)


def _published(broker: Broker, load: PublishLoad, messages: int) -> Metrics:
    measured = broker.apply([load], note="publish")
    metrics = measured.rates(messages) | measured.outcomes[0].latency.in_ms("ok")
    return metrics | _memory(broker)


def statistics(ground: Ground, *, topics: int, channels: int, requests: int) -> Metrics:
    """/stats of many topics and channels, one request after the other."""
    with ground.own_broker("written") as broker:
        link = HTTPConnection(*broker.http_address)
        for topic in range(topics):
            _ask(link, "POST", f"/topic/create?topic=bench_{topic}")
            for channel in range(channels):
                _ask(link, "POST", f"/channel/create?topic=bench_{topic}&channel={channel}")
        cpu_ns = broker.process.cpu_ns()
        size = max([_ask(link, "GET", "/stats?format=json") for _ in range(requests)])
        cpu_ns = broker.process.cpu_ns() - cpu_ns
        link.close()
        return {
            "broker_cpu_ms_per_request": round(cpu_ns / requests / 1e6, 2),
            "answer_kb": round(size / 1000, 1),
        }


def _ask(link: HTTPConnection, method: str, path: str) -> int:
    """How many bytes the answer has."""
    link.request(method, path)
    answer = link.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise BenchError(f"{method} {path} was answered {answer.status} {body[:200]!r}")
    return len(body)


def consume_backlog(
    ground: Ground,
    *,
    connections: int,
    credit: int,
    fill_connections: int,
    fill_per_command: int,
    body_bytes: int,
    messages: int,
) -> Metrics:
    """SUB and FIN of what was published before, by MPUBs or by awaited single PUBs."""
    with ground.broker("written") as broker:
        _fill(broker, messages, body_bytes, fill_connections, fill_per_command)
        load = ConsumeLoad(
            broker.address, broker.topic, (_CHANNEL,), connections, credit, body_bytes, messages
        )
        measured = broker.apply([load], note="consume")
        return measured.rates(messages) | _delivered(measured.count) | _memory(broker)


def publish_and_consume(
    ground: Ground,
    *,
    channels: int,
    connections: int,
    credit: int,
    per_command: int,
    body_bytes: int,
    messages: int,
    durability: str,
) -> Metrics:
    """MPUB while every channel consumes; what that takes on the disk, in copies of the bodies."""
    with ground.broker(durability) as broker:
        names = tuple(f"{_CHANNEL}{number}" for number in range(channels))
        loads: list[Load] = [
            ConsumeLoad(
                broker.address, broker.topic, names, connections, credit, body_bytes, messages
            ),
            PublishLoad(
                broker.address,
                (broker.topic,),
                2,
                1,
                per_command,
                body_bytes,
                messages // per_command,
            ),
        ]
        empty_bytes = broker.disk_bytes() if isinstance(broker, OwnBroker) else 0
        measured = broker.apply(loads, note="publish-and-consume")
        metrics = measured.rates(messages) | _delivered(measured.count) | _memory(broker)
        if isinstance(broker, OwnBroker):
            broker.stop()
            grown_bytes = broker.disk_bytes() - empty_bytes  # the reserve was there before
            metrics["disk_copies"] = round(grown_bytes / (messages * body_bytes), 3)
        return metrics


def publish_on_schedule(
    ground: Ground,
    *,
    topics: int,
    connections: int,
    rate_per_s: int,
    body_bytes: int,
    messages: int,
    durability: str,
    fdatasync_us: int,
) -> Metrics:
    """Single PUBs over many topics at a fixed rate; how long an OK takes from when it was due."""
    with ground.broker(durability, fdatasync_us=fdatasync_us) as broker:
        names = [f"{broker.topic}_{number}" for number in range(topics)]
        first = PublishLoad(broker.address, names, 8, 16, 1, body_bytes, topics)
        broker.apply([first])  # makes the topics; creating them is not what is measured
        load = ScheduledPublishLoad(
            broker.address, names, connections, body_bytes, rate_per_s, messages
        )
        with _watched(broker.observed) as seen:
            measured = broker.apply([load], note="schedule")
        metrics = measured.rates(messages) | measured.outcomes[0].latency.in_ms("ok")
        return metrics | measured.outcomes[0].counts | seen.metrics() | _memory(broker)


def latency(
    ground: Ground,
    *,
    connections: int,
    rate_per_s: int,
    body_bytes: int,
    messages: int,
    durability: str,
) -> Metrics:
    """From the instant a message was due to be sent until a handler has it."""
    with ground.broker(durability) as broker:
        loads: list[Load] = [
            ConsumeLoad(
                broker.address,
                broker.topic,
                (_CHANNEL,),
                1,
                2500,
                body_bytes,
                messages,
                timed=True,
            ),
            ScheduledPublishLoad(
                broker.address, (broker.topic,), connections, body_bytes, rate_per_s, messages
            ),
        ]
        measured = broker.apply(loads, note="latency")
        consumed, published = measured.outcomes
        metrics = measured.rates(messages) | consumed.latency.in_ms("handler")
        metrics |= published.latency.in_ms("ok") | published.counts
        return metrics | _delivered(measured.count)


def fairness(
    ground: Ground, *, consumers: int, credit: int, handler_us: int, messages: int
) -> Metrics:
    """Equal consumers with slow handlers: who gets how much."""
    with ground.broker("written") as broker:
        _fill(broker, messages, 200, 1, _FILL_PER_COMMAND)
        load = SlowConsumeLoad(
            broker.address, broker.topic, _CHANNEL, consumers, credit, handler_us, messages
        )
        return broker.apply([load]).outcomes[0].counts


def idle_connections(ground: Ground, *, connections: int) -> Metrics:
    """What connections cost that say nothing: behind IDENTIFY, and then as many behind SUB."""
    raise_open_files(connections + 200)  # the broker inherits the limit
    metrics: Metrics = {}
    for name, topic in (("identified", None), ("subscribed", "bench_idle")):
        with ground.own_broker("written") as broker:
            metrics["rss_before_mb"] = in_mb(broker.process.rss_bytes())
            load = IdleLoad(broker.address, connections, topic)
            with _watched(broker.process) as seen:
                broker.apply([load])
            metrics[f"rss_{name}_mb"] = in_mb(broker.process.rss_peak_bytes())
            metrics[f"open_files_{name}"] = seen.open_files
    metrics["rss_mb"] = max(metrics["rss_identified_mb"], metrics["rss_subscribed_mb"])
    return metrics


def idle_topics(ground: Ground, *, topics: int) -> Metrics:
    """Restart with many known topics, each with a message and nobody who wants it."""
    with ground.own_broker("written") as broker:
        names = [f"bench_idle_{number}" for number in range(topics)]
        load = PublishLoad(broker.address, names, 8, 32, 1, 200, topics)
        measured = broker.apply([load], note="create-topics")
        metrics: Metrics = {
            "create_us_per_topic": round(measured.seconds / topics * 1e6, 1),
            "rss_after_create_mb": in_mb(broker.process.rss_bytes()),
            "open_files_after_create": broker.process.open_files(),
        }
        broker.stop()
        metrics["restart_clean_s"] = round(broker.start(), 3)
        metrics["rss_mb"] = in_mb(broker.process.rss_bytes())
        broker.kill()
        metrics["restart_s"] = round(broker.start(), 3)
        metrics["rss_mb"] = max(metrics["rss_mb"], in_mb(broker.process.rss_bytes()))
        metrics["open_files"] = broker.process.open_files()
        return metrics


def backlog(ground: Ground, *, messages: int, body_bytes: int, consumed: int) -> Metrics:
    """Memory while a backlog grows and while its beginning is consumed; restart after kill -9."""
    with ground.own_broker("written") as broker:
        with _watched(broker.process) as seen:
            _fill(broker, messages, body_bytes, 2, _FILL_PER_COMMAND)
        metrics: Metrics = {
            "rss_peak_fill_mb": in_mb(max(seen.rss_bytes)),
            "rss_growth_mb": in_mb(_growth(seen.rss_bytes)),
        }
        load = ConsumeLoad(broker.address, broker.topic, (_CHANNEL,), 2, 2500, body_bytes, consumed)
        broker.apply([load])
        metrics["rss_peak_mb"] = in_mb(broker.process.rss_peak_bytes())
        metrics["log_gb"] = round(broker.disk_bytes() / 1e9, 3)
        broker.kill()
        metrics["restart_s"] = round(broker.start(), 3)
        metrics["rss_restarted_mb"] = in_mb(broker.process.rss_bytes())
        return metrics


def restart_after_kill(ground: Ground, *, messages: int, body_bytes: int, kills: int) -> Metrics:
    """Restart with a log of single-PUB blocks, killed at several distances from its checkpoint."""
    with ground.own_broker("written") as broker:
        # What is not scanned again is decided by 64 MiB checkpoints; the kills are spread over one.
        between = min(messages // kills, 16 * 1024 * 1024 // (body_bytes + 100))
        _fill(broker, 1, body_bytes, 1, 1)
        broker.kill()
        laid = messages - between * (kills - 1)
        lay_single_messages(str(broker.data_path), broker.topic, laid, body_bytes)
        broker.start()
        took_s = []
        for left in reversed(range(kills)):
            broker.kill()
            took_s.append(broker.start())
            if left:
                _fill(broker, between, body_bytes, 1, 1)
        return {
            "log_gb": round(broker.disk_bytes() / 1e9, 3),
            "restart_s": round(max(took_s), 3),
            "restart_min_s": round(min(took_s), 3),
            "rss_restarted_mb": in_mb(broker.process.rss_peak_bytes()),
        }


def _fill(
    broker: Broker, messages: int, body_bytes: int, connections: int, per_command: int
) -> None:
    commands, over = divmod(messages, per_command)
    if over:
        raise BenchError(f"{messages} messages do not fill commands of {per_command}")
    inflight = 1 if per_command == 1 else 4
    load = PublishLoad(
        broker.address, (broker.topic,), connections, inflight, per_command, body_bytes, commands
    )
    broker.apply([load])


def _delivered(count: Callable[[str], float]) -> Metrics:
    return {"redelivered": count("redelivered"), "surplus": count("surplus")}


def _memory(broker: Broker) -> Metrics:
    if broker.observed is None:
        return {}
    return {"rss_peak_mb": in_mb(broker.observed.rss_peak_bytes())}


class _Seen:
    """Samples of a process while a load runs."""

    def __init__(self) -> None:
        self.rss_bytes: list[int] = []
        self.open_files = 0

    def metrics(self) -> Metrics:
        return {"open_files": self.open_files} if self.rss_bytes else {}


@contextmanager
def _watched(process: Observed | None) -> Iterator[_Seen]:
    seen = _Seen()
    if process is None:
        yield seen
        return
    ended = threading.Event()

    def sample() -> None:
        while True:
            seen.rss_bytes.append(process.rss_bytes())
            seen.open_files = max(seen.open_files, process.open_files())
            if ended.wait(_SAMPLE_S):
                return

    sampler = threading.Thread(target=sample, name="bench-sampler")
    sampler.start()
    try:
        yield seen
    finally:
        ended.set()
        sampler.join()


def _growth(samples: list[int]) -> int:
    """From the first fifth of the samples, when caches are full, to the most that came later."""
    warm = len(samples) // 5
    return max(0, max(samples[warm:]) - max(samples[: warm + 1]))
