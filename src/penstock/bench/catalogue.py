"""The benches by name: which scenario, with which parameters, and what it is to reach.

A name contains its parameters, so two lines of a results file with one name are comparable.
`--quick` runs the same with smaller numbers (a smoke test, not a figure to quote), and any
parameter can be set by hand; the name changes with it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.bench import scenarios
from penstock.bench.ground import Ground, Metrics
from penstock.errors import ConfigError

Param = int | str
Params = Mapping[str, Param]


@dataclass(frozen=True)
class Target:
    """A bound that a metric is to keep."""

    metric: str
    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether the value keeps the bound."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:,g}"


@dataclass(frozen=True)
class Bench:
    """A scenario with its parameters. ``pattern`` makes the name from them."""

    pattern: str
    does: str
    scenario: Callable[..., Metrics]
    params: Params
    targets: Sequence[Target]
    quick: Params = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pattern with the parameters filled in; counts as 50M, 100k."""
        shown = {key: _short(value) for key, value in self.params.items()}
        return self.pattern.format_map(shown)

    def run(self, ground: Ground) -> Metrics:
        """Run it once."""
        return self.scenario(ground, **self.params)

    def at_quick(self) -> Bench:
        """The same with smaller numbers."""
        return replace(self, params={**self.params, **self.quick})

    def with_params(self, given: Mapping[str, str]) -> Bench:
        """The same with parameters set by hand; those it does not have are an error."""
        params = dict(self.params)
        for key, text in given.items():
            if key not in params:
                known = ", ".join(params)
                raise ConfigError(f"{self.name} has no parameter '{key}'; it has {known}")
            params[key] = _parse_like(params[key], key, text)
        return replace(self, params=params)


def at_most(metric: str, bound: float) -> Target:
    """The metric is to stay at or below the bound."""
    return Target(metric, bound)


def at_least(metric: str, bound: float) -> Target:
    """The metric is to reach the bound."""
    return Target(metric, bound, at_least=True)


_CPU = "broker_cpu_us_per_message"
_MPUB = {"connections": 2, "inflight": 1, "per_command": 200, "body_bytes": 200}
_MPUB_NAME = "mpub{per_command}x{body_bytes}B_{connections}conn_inflight{inflight}_{durability}"
_PUB_NAME = "pub{body_bytes}B_{connections}conn_inflight{inflight}_{durability}"
_SYNC_NAME = "_sync{fdatasync_us}us"
_SUB_NAME = "subfin{body_bytes}B_{connections}conn_rdy{credit}_backlog_of_"

BENCHES: Sequence[Bench] = (
    Bench(
        _MPUB_NAME,
        "MPUB, each answer awaited",
        scenarios.publish,
        {**_MPUB, "messages": 2_000_000, "durability": "written", "fdatasync_us": 0},
        (at_most(_CPU, 1.2),),
        {"messages": 200_000},
    ),
    Bench(
        _MPUB_NAME + _SYNC_NAME,
        "MPUB, each answer awaited, on a disk that syncs in 1 ms",
        scenarios.publish,
        {**_MPUB, "messages": 1_000_000, "durability": "synced", "fdatasync_us": 1000},
        (at_least("messages_per_s", 150_000),),
        {"messages": 200_000},
    ),
    Bench(
        _MPUB_NAME + _SYNC_NAME,
        "MPUB, four in flight per connection, on a disk that syncs in 1 ms",
        scenarios.publish,
        {
            **_MPUB,
            "inflight": 4,
            "messages": 2_000_000,
            "durability": "synced",
            "fdatasync_us": 1000,
        },
        (at_least("messages_per_s", 300_000),),
        {"messages": 200_000},
    ),
    Bench(
        _SUB_NAME + "mpub{fill_per_command}",
        "SUB and FIN of a backlog that MPUBs made",
        scenarios.consume_backlog,
        {
            "connections": 2,
            "credit": 2500,
            "fill_connections": 2,
            "fill_per_command": 200,
            "body_bytes": 200,
            "messages": 2_000_000,
        },
        (at_most(_CPU, 1.0),),
        {"messages": 200_000},
    ),
    Bench(
        _SUB_NAME + "awaited_pub_{fill_connections}conn",
        "SUB and FIN of a backlog that awaited single PUBs made",
        scenarios.consume_backlog,
        {
            "connections": 2,
            "credit": 2500,
            "fill_connections": 32,
            "fill_per_command": 1,
            "body_bytes": 200,
            "messages": 1_000_000,
        },
        (at_most(_CPU, 2.5),),
        {"messages": 50_000},
    ),
    Bench(
        "pubsub_1topic_{channels}channels_mpub{per_command}x{body_bytes}B_{durability}",
        "MPUB while every channel consumes; copies on the disk",
        scenarios.publish_and_consume,
        {
            "channels": 3,
            "connections": 2,
            "credit": 2500,
            "per_command": 200,
            "body_bytes": 200,
            "messages": 1_000_000,
            "durability": "written",
        },
        (at_most(_CPU, 4.2), at_most("disk_copies", 1.5)),
        {"messages": 100_000},
    ),
    Bench(
        _PUB_NAME,
        "single PUBs, many in flight",
        scenarios.publish,
        {
            "connections": 8,
            "inflight": 50,
            "per_command": 1,
            "body_bytes": 200,
            "messages": 500_000,
            "durability": "written",
            "fdatasync_us": 0,
        },
        (at_most(_CPU, 5.0),),
        {"messages": 50_000},
    ),
    Bench(
        _PUB_NAME,
        "single PUBs, many in flight, synced",
        scenarios.publish,
        {
            "connections": 8,
            "inflight": 50,
            "per_command": 1,
            "body_bytes": 200,
            "messages": 500_000,
            "durability": "synced",
            "fdatasync_us": 0,
        },
        (at_most(_CPU, 5.0),),
        {"messages": 50_000},
    ),
    Bench(
        _PUB_NAME + _SYNC_NAME,
        "single PUBs, each answer awaited, on a disk that syncs in 1 ms",
        scenarios.publish,
        {
            "connections": 32,
            "inflight": 1,
            "per_command": 1,
            "body_bytes": 200,
            "messages": 200_000,
            "durability": "synced",
            "fdatasync_us": 1000,
        },
        (at_least("messages_per_s", 10_000),),
        {"messages": 20_000},
    ),
    Bench(
        "http_pub{body_bytes}B_{connections}conn_{durability}",
        "/pub on connections that are kept, each answer awaited",
        scenarios.publish_over_http,
        {
            "connections": 32,
            "per_command": 1,
            "body_bytes": 200,
            "messages": 100_000,
            "durability": "synced",
        },
        (at_most(_CPU, 80),),
        {"messages": 10_000},
    ),
    Bench(
        "http_mpub{per_command}x{body_bytes}B_{connections}conn_{durability}",
        "/mpub, a message a line, each answer awaited",
        scenarios.publish_over_http,
        {
            "connections": 2,
            "per_command": 200,
            "body_bytes": 200,
            "messages": 1_000_000,
            "durability": "written",
        },
        (at_most(_CPU, 1.6),),
        {"messages": 100_000},
    ),
    Bench(
        "http_stats_{topics}topics_{channels}channels",
        "/stats as JSON, of topics and channels that are open",
        scenarios.statistics,
        {"topics": 1000, "channels": 3, "requests": 50},
        (at_most("broker_cpu_ms_per_request", 50),),
        {"topics": 100, "requests": 10},
    ),
    Bench(
        "topics{topics}_pub{body_bytes}B_{connections}conn_{rate_per_s}ps_{durability}",
        "single PUBs over many topics, on a schedule",
        scenarios.publish_on_schedule,
        {
            "topics": 1000,
            "connections": 50,
            "rate_per_s": 5000,
            "body_bytes": 200,
            "messages": 50_000,
            "durability": "synced",
            "fdatasync_us": 0,
        },
        # 512 segment files may be open (segment_files_open_max), and as many again that wait for
        # their sync; 50 are the connections.
        (at_most("ok_p99_ms", 50), at_most("open_files", 1_150)),
        {"messages": 10_000},
    ),
    Bench(
        "idle_topics{topics}_restart",
        "restart with many known topics, after a clean stop and after kill -9",
        scenarios.idle_topics,
        {"topics": 100_000},
        (
            at_most("restart_s", 2.0),
            at_most("restart_clean_s", 2.0),
            at_most("rss_mb", 150),
            at_most("open_files", 640),
        ),
        {"topics": 2000},
    ),
    Bench(
        "backlog{messages}_mpub200x{body_bytes}B_restart",
        "memory under a growing backlog, and restart after kill -9",
        scenarios.backlog,
        {"messages": 50_000_000, "body_bytes": 200, "consumed": 2_000_000},
        (at_most("rss_peak_mb", 150), at_most("rss_growth_mb", 15), at_most("restart_s", 2.0)),
        {"messages": 1_000_000, "consumed": 200_000},
    ),
    Bench(
        "restart_after_kill_of_{messages}_pub{body_bytes}B",
        "restart after kill -9 with a log of single-PUB blocks",
        scenarios.restart_after_kill,
        {"messages": 30_000_000, "body_bytes": 200, "kills": 4},
        (at_most("restart_s", 2.0),),
        {"messages": 200_000},
    ),
    Bench(
        "idle{connections}conn",
        "memory of connections that say nothing",
        scenarios.idle_connections,
        {"connections": 5000},
        (at_most("rss_mb", 100),),
        {"connections": 500},
    ),
    Bench(
        "fairness_{consumers}consumers_rdy{credit}_handler{handler_us}us_{messages}msgs",
        "shares of equal consumers with slow handlers",
        scenarios.fairness,
        {"consumers": 4, "credit": 2500, "handler_us": 2000, "messages": 1000},
        (at_least("share_min_percent", 15), at_most("share_max_percent", 35)),
    ),
    Bench(
        "latency_pub{body_bytes}B_{connections}conn_{rate_per_s}ps_{durability}",
        "from when a publish was due until the handler has the message",
        scenarios.latency,
        {
            "connections": 4,
            "rate_per_s": 10_000,
            "body_bytes": 200,
            "messages": 100_000,
            "durability": "written",
        },
        (at_most("handler_p50_ms", 1.0), at_most("handler_p99_ms", 5.0)),
        {"messages": 20_000},
    ),
)


def choose(
    patterns: Sequence[str], *, quick: bool = False, params: Mapping[str, str] | None = None
) -> list[Bench]:
    """The benches that any pattern names (`*` and `?` as in file names); all without a pattern."""
    benches = [bench.at_quick() if quick else bench for bench in BENCHES]
    for pattern in patterns:
        if not any(_matches(bench, pattern) for bench in benches):
            raise ConfigError(f"no bench is called '{pattern}'; `penstock bench list` shows all")
    return [
        bench.with_params(params or {})
        for bench in benches
        if not patterns or any(_matches(bench, pattern) for pattern in patterns)
    ]


def _matches(bench: Bench, pattern: str) -> bool:
    return fnmatch.fnmatchcase(bench.name, pattern)


def _parse_like(was: Param, key: str, text: str) -> Param:
    if isinstance(was, str):
        return text
    try:
        return int(text.replace("_", ""))
    except ValueError as error:
        raise ConfigError(f"{key} is a number; '{text}' is none") from error


def _short(value: Param) -> str:
    if isinstance(value, int):
        for unit, size in (("M", 1_000_000), ("k", 1000)):
            if value >= 10_000 and value % size == 0:
                return f"{value // size}{unit}"
    return str(value)
