"""Runs every workload on every system in turn, several times, and prints the table of medians.

The order within a run is ours, theirs, ours, theirs …: what the machine does beside us falls on all
alike, and the ratios are what counts. One JSON line per workload and system goes to --record.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.vs.jetstream import NatsAtomicBatch, NatsJetStream
from bench.vs.ours import Penstock
from bench.vs.peer import Consuming, Peer, Publishing, Running
from bench.vs.redis_streams import RedisStreams
from penstock.bench.fleet import Fleet, Load, Outcome
from penstock.bench.ground import Metrics, in_mb
from penstock.bench.process import disk_bytes
from penstock.bench.record import machine
from penstock.errors import PenstockError

DEADLINE_S = 600.0
TOPIC = "vs"
OURS = "penstock"
PEERS: Sequence[Peer] = (Penstock(), RedisStreams(), NatsJetStream(), NatsAtomicBatch())


@dataclass(frozen=True)
class Workload:
    """Publish, consume, or both at once; with both None in turn, the first fills for the second."""

    name: str
    durability: str
    publishing: Publishing
    consuming: Consuming | None = None
    at_once: bool = False

    def scaled(self, divisor: int) -> Workload:
        """The same with fewer messages."""
        consuming = self.consuming
        if consuming is not None:
            consuming = replace(consuming, messages=consuming.messages // divisor)
        publishing = replace(self.publishing, messages=self.publishing.messages // divisor)
        return replace(self, publishing=publishing, consuming=consuming)


WORKLOADS = (
    Workload(
        "batch200x200B_2conn_inflight1_written", "written", Publishing(2, 1, 200, 200, 800_000)
    ),
    Workload("batch200x200B_2conn_inflight1_synced", "synced", Publishing(2, 1, 200, 200, 400_000)),
    Workload("batch200x200B_2conn_inflight4_synced", "synced", Publishing(2, 4, 200, 200, 400_000)),
    Workload("single200B_8conn_inflight50_written", "written", Publishing(8, 50, 1, 200, 400_000)),
    Workload("single200B_8conn_inflight50_synced", "synced", Publishing(8, 50, 1, 200, 100_000)),
    Workload("single200B_32conn_awaited_synced", "synced", Publishing(32, 1, 1, 200, 50_000)),
    Workload(
        "consume200B_2conn_credit2500_backlog_of_batches",
        "written",
        Publishing(2, 1, 200, 200, 1_000_000),
        Consuming(("a",), 2, 2500, 200, 1_000_000),
    ),
    Workload(
        "pubsub_3channels_batch200x200B_written",
        "written",
        Publishing(2, 1, 200, 200, 400_000),
        Consuming(("a", "b", "c"), 2, 2500, 200, 400_000),
        at_once=True,
    ),
    Workload(
        "latency_single200B_4conn_5000ps_written",
        "written",
        Publishing(4, 1, 1, 200, 25_000, rate_per_s=5000),
        Consuming(("a",), 1, 2500, 200, 25_000, timed=True),
        at_once=True,
    ),
)  # fmt: skip


def run_once(peer: Peer, workload: Workload, directory: Path) -> Metrics:
    """One workload on a new server of one system."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-vs-", dir=directory))
    try:
        with peer.server(folder, workload.durability) as running:
            consuming = workload.consuming
            channels = consuming.channels if consuming else ()
            peer.prepare(running.address, TOPIC, channels)
            publish = peer.publish(running.address, TOPIC, workload.publishing)
            if consuming is None:
                metrics = _measure(running, publish, workload.publishing.messages)
            else:
                consume = peer.consume(running.address, TOPIC, consuming)
                if workload.at_once:
                    metrics = _measure(running, [*consume, *publish], consuming.messages)
                else:
                    _measure(running, publish, workload.publishing.messages)
                    metrics = _measure(running, consume, consuming.messages)
            metrics["rss_peak_mb"] = in_mb(running.observed.rss_peak_bytes())
            metrics["disk_mb"] = in_mb(disk_bytes(folder))
            return metrics
    finally:
        shutil.rmtree(folder)


def _measure(running: Running, loads: Sequence[Load], messages: int) -> Metrics:
    with Fleet(loads, deadline_s=DEADLINE_S) as fleet:
        fleet.wait_ready()
        cpu_ns = running.observed.cpu_ns()
        fleet.go()
        outcomes = fleet.outcomes()
        cpu_ns = running.observed.cpu_ns() - cpu_ns
    seconds = _seconds(outcomes)
    return {
        "server_cpu_us_per_message": round(cpu_ns / messages / 1e3, 4),
        "messages_per_s": round(messages / seconds),
        # Of publishes, or, where the consumer has a clock, until the handler: it stands first.
        "p50_ms": outcomes[0].latency.in_ms("")["_p50_ms"],
        "p99_ms": outcomes[0].latency.in_ms("")["_p99_ms"],
    }


def _seconds(outcomes: Sequence[Outcome]) -> float:
    started_at_ns = min(outcome.started_at_ns for outcome in outcomes)
    return (max(outcome.ended_at_ns for outcome in outcomes) - started_at_ns) / 1e9


@dataclass
class Row:
    """One workload's runs on each system."""

    workload: Workload
    runs: dict[str, list[Metrics]]

    def median(self, peer: str) -> Metrics:
        """Each metric's median."""
        runs = self.runs[peer]
        return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def table_of(rows: Sequence[Row], versions: dict[str, str]) -> Table:
    """Server CPU, rate, memory and disk per workload and system, with ratios to ours."""
    columns = ("workload", "system", "server CPU µs/msg", "msg/s", "p50 ms", "p99 ms")
    table = Table(*columns, "RSS MB", "disk MB")
    for row in rows:
        ours = row.median(OURS) if row.runs.get(OURS) else None
        for peer, runs in row.runs.items():
            if not runs:
                table.add_row(row.workload.name, peer, "failed")
                continue
            figures = ours if ours and peer == OURS else row.median(peer)
            table.add_row(
                row.workload.name,
                f"{peer} {versions[peer]}",
                f"{figures['server_cpu_us_per_message']:.2f}"
                + _ratio(figures, ours, "server_cpu_us_per_message"),
                f"{figures['messages_per_s']:,.0f}" + _ratio(figures, ours, "messages_per_s"),
                f"{figures['p50_ms']:.2f}" if figures["p50_ms"] else "",
                f"{figures['p99_ms']:.2f}" if figures["p99_ms"] else "",
                f"{figures['rss_peak_mb']:.0f}",
                f"{figures['disk_mb']:.0f}",
            )
        table.add_section()
    return table


def _ratio(figures: Metrics, ours: Metrics | None, name: str) -> str:
    if ours is None or figures is ours or not ours[name]:
        return ""
    return f" (×{figures[name] / ours[name]:.2f})"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.vs", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, one run")
    parser.add_argument("--only", help="workloads whose name contains this")
    parser.add_argument("--systems", help="comma-separated; all by default")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add JSON lines to this file")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    wanted = args.systems.split(",") if args.systems else [peer.name for peer in PEERS]
    peers = [peer for peer in PEERS if peer.name in wanted]
    versions = {peer.name: peer.version() for peer in peers}
    rows = [
        Row(
            workload.scaled(10 if args.quick else 1),
            {
                peer.name: []
                for peer in peers
                if peer.single_publishes or workload.publishing.per_command > 1
            },
        )
        for workload in WORKLOADS
        if args.only is None or args.only in workload.name
    ]
    console = Console(stderr=True)
    failed = False
    for number in range(1 if args.quick else args.runs):
        for row in rows:
            for peer in (peer for peer in peers if peer.name in row.runs):
                console.print(f"[dim]run {number + 1}: {row.workload.name} on {peer.name}[/]")
                try:
                    row.runs[peer.name].append(run_once(peer, row.workload, args.dir))
                except PenstockError as error:
                    failed = True
                    console.print(f"[red]failed[/]: {error}")
    Console(width=None if sys.stdout.isatty() else 150).print(table_of(rows, versions))
    if args.record is not None:
        _record(args.record, rows, versions)
    return int(failed)


def _record(file: Path, rows: Sequence[Row], versions: dict[str, str]) -> None:
    with file.open("a") as lines:
        for row in rows:
            for peer, runs in row.runs.items():
                if runs:
                    line = {
                        "bench": f"vs_{row.workload.name}",
                        "system": peer,
                        "version": versions[peer],
                        **machine(),
                        "median": row.median(peer),
                        "runs": runs,
                    }
                    lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PenstockError as error:
        sys.exit(f"bench.vs: {error}")
