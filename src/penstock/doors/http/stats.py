"""/stats: what there is and how it is going, as JSON or as text, in nsqd's fields and lines.

Pieces of the answer are made in slices, each of a loop turn's small part, so that a broker with
thousands of channels goes on delivering while it tells of them. Topics that are not open are told
of from what is known of them; nothing is opened for it. The latency quantiles are those of an nsqd
that was not asked to keep any.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

from penstock import __version__
from penstock.broker.statistics import (
    NOTHING_WAITS,
    ChannelStatistics,
    Client,
    ClientStatistics,
    Depths,
    TopicStatistics,
    channel_statistics,
    topic_statistics,
)
from penstock.broker.topic import Topic
from penstock.doors.http.request import Request
from penstock.http.answers import JSON, TEXT
from penstock.http.parameters import FLAGS
from penstock.protocol.nsq import NSQD_VERSION
from penstock.runtime.host import Host

SLICE_NS = 2_000_000
_SECOND_NS = 1_000_000_000
_NO_LATENCIES = '"e2e_processing_latency":{"count":0,"percentiles":null}'


class Asked(NamedTuple):
    """What to tell; an empty name is all of them."""

    topic: str
    channel: str
    clients: bool
    memory: bool


def stats(request: Request) -> None:
    parameters = request.parameters()
    asked = Asked(
        parameters.get("topic", ""),
        parameters.get("channel", ""),
        FLAGS.get(parameters.get("include_clients", ""), True),
        FLAGS.get(parameters.get("include_mem", ""), True),
    )
    door = request.door
    about = About(
        door.health(),
        door.started_at_ns,
        door.clock.monotonic_ns() - door.started_monotonic_ns,
        door.clock.now_ns(),
    )
    as_json = parameters.get("format") == "json"
    pieces = (json_pieces if as_json else text_pieces)(door.host, asked, about)
    Slices(door.host.loop, pieces, partial(_answer, request, JSON if as_json else TEXT)).go_on()


def _answer(request: Request, content_type: str, slices: list[bytes]) -> None:
    request.answer(b"".join(slices), content_type)


class Slices:
    """Collects pieces, a few milliseconds of the loop at a time, and hands them on at the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pieces: Iterator[str],
        then: Callable[[list[bytes]], None],
    ) -> None:
        self.loop = loop
        self.pieces = pieces
        self.then = then
        self.made: list[bytes] = []

    def go_on(self) -> None:
        until_ns = time.perf_counter_ns() + SLICE_NS
        slice_: list[str] = []
        for piece in self.pieces:
            slice_.append(piece)
            if time.perf_counter_ns() > until_ns:
                self.made.append("".join(slice_).encode())
                self.loop.call_soon(self.go_on)
                return
        self.made.append("".join(slice_).encode())
        self.then(self.made)


class About(NamedTuple):
    """The broker itself."""

    health: str
    started_at_ns: int
    uptime_ns: int
    now_ns: int


# -- what there is


class Entry(NamedTuple):
    """A topic to tell of. ``unknown``: it is not open, and its depths are not known."""

    statistics: TopicStatistics
    channels: Iterable[tuple[ChannelStatistics, Iterable[Client | None]]]
    unknown: bool


def entries(host: Host, asked: Asked) -> Iterator[Entry | None]:
    """None for a topic without the channel that was asked for: it took its time, too."""
    broker = host.broker
    for name in [asked.topic] if asked.topic else sorted({*broker.topics, *broker.known}):
        topic = broker.topics.get(name)
        if topic is not None:
            yield _open_entry(topic, asked.channel)
        elif name in broker.known:
            yield _closed_entry(host, name, asked.channel)


def _open_entry(topic: Topic, only: str) -> Entry | None:
    if only and only not in topic.channels:
        return None
    channels = (
        (channel_statistics(topic, channel), [one.client for one in channel.subscribers])
        for name in ([only] if only else sorted(topic.channels))
        if (channel := topic.channels.get(name)) is not None  # it may go meanwhile
    )
    return Entry(topic_statistics(topic), channels, unknown=False)


def _closed_entry(host: Host, name: str, only: str) -> Entry | None:
    document = json.loads(host.broker.known[name])
    started: dict[str, Any] = document["channels"]
    if only and only not in started:
        return None
    depths = host.topics.depths.get(name)
    waiting = depths or NOTHING_WAITS
    channels = (
        (_closed_channel(channel, waiting, paused=started[channel]["paused"]), ())
        for channel in ([only] if only else sorted(started))
    )
    paused, stored = document["paused"] is not None, document["durability"] != "memory"
    statistics = TopicStatistics(name, waiting.topic, 0, 0, paused, stored)
    return Entry(statistics, channels, unknown=depths is None)


def _closed_channel(name: str, waiting: Depths, *, paused: bool) -> ChannelStatistics:
    depth, deferred = waiting.channels.get(name, (0, 0))
    return ChannelStatistics(name, depth, 0, deferred, 0, 0, 0, 0, paused)


def producers(host: Host, topic: str) -> Iterator[ClientStatistics]:
    """Clients that have published; with a topic, those that did so to it."""
    for clients in host.clients:
        for client in clients():
            published = {**client.published}
            if not published:
                continue
            if topic:
                published = {topic: published[topic]} if topic in published else {}
            yield client.statistics()._replace(published=published)


def memory() -> dict[str, int]:
    """nsqd's names for what Python knows: blocks allocated, resident bytes, collections run."""
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": _resident_bytes(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(one["collections"] for one in gc.get_stats()),
    }


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# -- as JSON


def json_pieces(host: Host, asked: Asked, about: About) -> Iterator[str]:
    yield (
        f'{{"version":"{NSQD_VERSION}","health":{json.dumps(about.health)},'
        f'"start_time":{about.started_at_ns // _SECOND_NS},"topics":'
    )
    if (
        asked.topic
        and asked.topic not in host.broker.topics
        and asked.topic not in host.broker.known
    ):
        yield "null"
    else:
        yield from _json_list(_json_topics(host, asked))
    if asked.memory:
        yield f',"memory":{json.dumps(memory(), separators=(",", ":"))}'
    yield ',"producers":'
    if asked.clients:
        yield from _json_list((json_client(one),) for one in producers(host, asked.topic))
    else:
        yield "null"
    yield "}"


def _json_list(items: Iterable[Iterable[str] | None]) -> Iterator[str]:
    comma = "["
    for item in items:
        if item is None:
            yield ""
            continue
        yield comma
        yield from item
        comma = ","
    yield "]" if comma == "," else "[]"


def _json_topics(host: Host, asked: Asked) -> Iterator[Iterator[str] | None]:
    for entry in entries(host, asked):
        yield _json_topic(entry, clients=asked.clients) if entry is not None else None


def _json_topic(entry: Entry, *, clients: bool) -> Iterator[str]:
    topic = entry.statistics
    yield f'{{"topic_name":"{topic.name}","channels":'
    yield from _json_list(
        _json_channel(channel, topic, behind if clients else None)
        for channel, behind in entry.channels
    )
    unknown = ',"depths_known":false' if entry.unknown else ""
    yield (
        f',"depth":{topic.depth},"backend_depth":{topic.depth if topic.stored else 0},'
        f'"message_count":{topic.message_count},"message_bytes":{topic.message_bytes},'
        f'"paused":{_flag(topic.paused)},{_NO_LATENCIES}{unknown}}}'
    )


def _json_channel(
    channel: ChannelStatistics, topic: TopicStatistics, clients: Iterable[Client | None] | None
) -> Iterator[str]:
    yield (
        f'{{"channel_name":"{channel.name}","depth":{channel.depth},'
        f'"backend_depth":{channel.depth if topic.stored else 0},'
        f'"in_flight_count":{channel.in_flight_count},"deferred_count":{channel.deferred_count},'
        f'"message_count":{channel.message_count},"requeue_count":{channel.requeue_count},'
        f'"timeout_count":{channel.timeout_count},"client_count":{channel.client_count},"clients":'
    )
    if clients is None:
        yield "null"
    else:
        yield from _json_list((json_client(one.statistics()),) for one in clients if one)
    yield f',"paused":{_flag(channel.paused)},{_NO_LATENCIES}}}'


def json_client(client: ClientStatistics) -> str:
    fields: dict[str, object] = {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": "V2",
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": client.connected_at_ns // _SECOND_NS,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
    }
    if client.identity is not None:
        fields["authed"] = True
        if client.identity:
            fields["auth_identity"] = client.identity
        if client.identity_url:
            fields["auth_identity_url"] = client.identity_url
    if client.published:
        fields["pub_counts"] = [
            {"topic": topic, "count": count} for topic, count in client.published.items()
        ]
    fields |= {
        "tls": bool(client.tls_version),
        "tls_cipher_suite": client.tls_cipher,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }
    return json.dumps(fields, separators=(",", ":"))


def _flag(value: bool) -> str:
    return "true" if value else "false"


# -- as text


def text_pieces(host: Host, asked: Asked, about: About) -> Iterator[str]:
    started = time.gmtime(about.started_at_ns // _SECOND_NS)
    yield (
        f"nsqd v{NSQD_VERSION} (built w/Penstock {__version__}, Python {python_version()})\n"
        f"start_time {time.strftime('%Y-%m-%dT%H:%M:%SZ', started)}\n"
        f"uptime {go_duration(about.uptime_ns)}\n\nHealth: {about.health}\n"
    )
    if asked.memory:
        yield "\nMemory:\n"
        for name, value in memory().items():
            yield f"   {name:<25}\t{value}\n"
    none = True
    for entry in entries(host, asked):
        if entry is None:
            yield ""
            continue
        yield ("\nTopics:" if none else "") + _text_topic(entry.statistics)
        none = False
        for channel, clients in entry.channels:
            yield _text_channel(channel, entry.statistics)
            for client in clients if asked.clients else ():
                if client is not None:
                    yield f"        {text_client(client.statistics(), about.now_ns)}\n"
    if none:
        yield "\nTopics: None\n"
    none = True
    for one in producers(host, asked.topic) if asked.clients else ():
        yield "\nProducers:\n" if none else ""
        yield f"   {text_client(one, about.now_ns)}\n"
        none = False
    if none:
        yield "\nProducers: None\n"


def _text_topic(topic: TopicStatistics) -> str:
    return (
        f"\n{'*P ' if topic.paused else '   '}[{topic.name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.depth if topic.stored else 0:<5} msgs: {topic.message_count:<8} e2e%: \n"
    )


def _text_channel(channel: ChannelStatistics, topic: TopicStatistics) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.depth if topic.stored else 0:<5} inflt: {channel.in_flight_count:<4} "
        f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
        f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} e2e%: \n"
    )


def text_client(client: ClientStatistics, now_ns: int) -> str:
    seconds = max(now_ns - client.connected_at_ns, 0) // _SECOND_NS
    connected = go_duration(seconds * _SECOND_NS)
    port = client.remote_address.rpartition(":")[2]
    name = f"{client.hostname}:{port} {client.user_agent}"
    if client.published:
        topics = ",".join(f"{topic}={count}" for topic, count in client.published.items())
        return (
            f"[V2 {name:<21}] msgs: {sum(client.published.values()):<8} "
            f"topics: {topics} connected: {connected}"
        )
    return (
        f"[V2 {name:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} "
        f"re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} connected: {connected}"
    )


def go_duration(ns: int) -> str:
    """As Go prints one: 1h2m3.5s, 0s."""
    minutes, ns = divmod(ns, 60 * _SECOND_NS)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{ns / _SECOND_NS:.9f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
