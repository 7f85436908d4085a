"""What /metrics tells, and how: each metric with its name, type and help, in Prometheus's text
format. Pure.

The format wants all samples of a metric in one place, while topics are told of one by one: a
``Page`` keeps the lines apart until the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from penstock.runtime.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECOND_NS = 1_000_000_000


class Metric(NamedTuple):
    """One line of the table in docs/operations.md."""

    name: str
    kind: str  # counter, gauge or histogram
    help: str


def _gauge(name: str, text: str) -> Metric:
    return Metric(name, "gauge", text)


def _counter(name: str, text: str) -> Metric:
    return Metric(name, "counter", text)


def _histogram(name: str, text: str) -> Metric:
    return Metric(name, "histogram", text)


# -- the broker

INFO = _gauge("penstock_info", "Always 1; the label says which version runs.")
STARTED = _gauge("process_start_time_seconds", "When it was started, as a Unix time.")
CPU = _counter("process_cpu_seconds_total", "Processor time that it took.")
RESIDENT = _gauge("process_resident_memory_bytes", "Memory that it holds.")
PROBLEMS = _gauge("penstock_problems", "Things that are wrong now; /health says which.")
ACCEPTS = _gauge("penstock_accepts_publishes", "0 while the disk is full, else 1.")
CONNECTIONS = _gauge("penstock_connections", "Clients that are connected, by door.")
TOPICS = _gauge("penstock_topics", "Topics, by whether they are open or closed for being idle.")
SUMMED = _gauge("penstock_label_sets_summed", "Topics and channels beyond the cap, told of as one.")
UNCOMMITTED = _gauge("penstock_uncommitted_bytes", "Published bytes that wait for the disk.")
COMMIT = _histogram("penstock_commit_seconds", "From forming a batch to its durability.")
COMMITS_FAILED = _counter("penstock_commits_failed_total", "Batches that could not be kept.")
SYNCS = _counter("penstock_syncs_total", "Syncs of published messages; one for many logs is one.")
CACHE_BYTES = _gauge("penstock_cache_bytes", "Blocks that are in memory.")
CACHE_HITS = _counter("penstock_cache_hits_total", "Blocks that were wanted and in memory.")
CACHE_MISSES = _counter("penstock_cache_misses_total", "Blocks that had to be read from the disk.")
LAG = _histogram("penstock_event_loop_lag_seconds", "How late a timer rang, four times a second.")

BROKER = (
    *(INFO, STARTED, CPU, RESIDENT, PROBLEMS, ACCEPTS, CONNECTIONS, TOPICS, SUMMED, UNCOMMITTED),
    *(COMMIT, COMMITS_FAILED, SYNCS, CACHE_BYTES, CACHE_HITS, CACHE_MISSES, LAG),
)

# -- by topic, and by topic and channel: in the order of the values that are told

TOPIC_GAUGES = (
    _gauge("penstock_topic_depth", "Messages that no channel can see yet."),
    _gauge("penstock_topic_delayed", "Messages that sleep until they are due."),
    _gauge("penstock_topic_disk_bytes", "What its logs hold, history too."),
    _gauge("penstock_topic_paused", "1 while it is paused."),
)
TOPIC_COUNTERS = (
    _counter("penstock_topic_messages_total", "Messages published."),
    _counter("penstock_topic_message_bytes_total", "Bytes of their bodies."),
    _counter("penstock_topic_dropped_total", "Messages that an ephemeral topic let go."),
)
CHANNEL_GAUGES = (
    _gauge("penstock_channel_depth", "Messages that are ready."),
    _gauge("penstock_channel_in_flight", "Messages that consumers have."),
    _gauge("penstock_channel_sleeping", "Messages that are delayed, its requeued ones too."),
    _gauge("penstock_channel_consumers", "Clients that are subscribed."),
    _gauge("penstock_channel_paused", "1 while it is paused."),
)
CHANNEL_COUNTERS = (
    _counter("penstock_channel_messages_total", "Messages handed to consumers."),
    _counter("penstock_channel_finished_total", "Messages that consumers finished."),
    _counter("penstock_channel_requeued_total", "Messages that consumers gave back."),
    _counter("penstock_channel_timed_out_total", "Messages whose time to be finished ran out."),
    _counter("penstock_channel_dropped_total", "Messages that an ephemeral channel let go."),
)

METRICS = (*BROKER, *TOPIC_GAUGES, *TOPIC_COUNTERS, *CHANNEL_GAUGES, *CHANNEL_COUNTERS)


class Page:
    """What is told so far, by metric."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {metric.name: [] for metric in METRICS}

    def tell(self, metric: Metric, value: float, labels: str = "") -> None:
        """``labels`` in braces. Names of topics and channels have nothing in them to escape."""
        self.lines[metric.name].append(f"{metric.name}{labels} {value}\n")

    def tell_all(self, metrics: Sequence[Metric], values: Sequence[int], labels: str) -> None:
        lines = self.lines
        for (name, _, _), value in zip(metrics, values, strict=True):
            lines[name].append(f"{name}{labels} {value}\n")

    def tell_histogram(self, metric: Metric, histogram: Histogram) -> None:
        name, lines = metric.name, self.lines[metric.name]
        *below, count = accumulate(histogram.counts)
        for bound_ns, total in zip(histogram.bounds_ns, below, strict=True):
            lines.append(f'{name}_bucket{{le="{bound_ns / _SECOND_NS}"}} {total}\n')
        lines.append(f'{name}_bucket{{le="+Inf"}} {count}\n')
        lines.append(f"{name}_sum {histogram.sum_ns / _SECOND_NS}\n{name}_count {count}\n")

    def texts(self) -> Iterator[str]:
        """The whole page, metric by metric; one that has nothing to tell is not there."""
        for name, kind, text in METRICS:
            lines = self.lines[name]
            if lines:
                yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
                yield "".join(lines)
