"""`penstock bench`: what this machine's broker can do, measured as its makers measure it.

`list` shows the benches with their targets, `run` runs them (interleaved, several times, the median
counts) against a broker of its own or one that runs already. What a bench is and does is the
business of ``penstock.bench``; this module reads arguments and prints.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.bench.catalogue import Bench, choose
from penstock.bench.ground import Ground
from penstock.bench.record import Record, append
from penstock.cli import ExitCode
from penstock.errors import ConfigError, PenstockError

EXAMPLES = """\
examples:
  penstock bench list                                the benches, what each does and is to reach
  penstock bench run --quick                         all of them, small: does everything work?
  penstock bench run 'mpub*' 'subfin*' --runs 3      by name, three interleaved runs, the median
  penstock bench run 'backlog*' --set messages=5000000
  penstock bench run 'mpub*' --against 127.0.0.1:4150 --pid 4711
  penstock bench run 'pub*' --json | jq .median

Figures are the broker's CPU time per message and rates; a machine that does other work at the same
time changes the rates a lot and the CPU time a little. exit codes: 0 all ran · 1 a run failed, or
with --check a target was missed · 2 wrong argument.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure a broker: its CPU time per message, rates, latency and memory."
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|run")
    shown = actions.add_parser("list", help="the benches and their targets")
    shown.add_argument("--quick", action="store_true", help="as --quick would run them")
    shown.add_argument("--json", action="store_true", help="a JSON line per bench")
    run_it = actions.add_parser(
        "run",
        help="run benches",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_it.add_argument("name", nargs="*", help="a bench, or a pattern with *; none is all")
    run_it.add_argument("--quick", action="store_true", help="smaller numbers: a smoke test")
    run_it.add_argument("--runs", type=_count, default=1, metavar="N", help="interleaved runs")
    run_it.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PARAM=VALUE",
        help="a parameter of the chosen benches (may be given again)",
    )
    run_it.add_argument(
        "--against", metavar="HOST:PORT", help="a broker that runs already, instead of one's own"
    )
    run_it.add_argument("--pid", type=_count, help="its process, to read its CPU time and memory")
    run_it.add_argument(
        "--dir",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="where data directories are made and removed: the disk that is measured (%(default)s)",
    )
    run_it.add_argument("--record", type=Path, metavar="FILE", help="add JSON lines to this file")
    run_it.add_argument("--json", action="store_true", help="print JSON lines, no tables")
    run_it.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    run_it.add_argument(
        "--deadline",
        type=_count,
        default=900,
        metavar="S",
        help="seconds after which a load is given up (%(default)s)",
    )
    run_it.add_argument(
        "--profile", type=Path, metavar="DIR", help="py-spy's samples of the broker, per load"
    )


def run(args: argparse.Namespace) -> int:
    return _list(args) if args.action == "list" else _run(args)


def _list(args: argparse.Namespace) -> int:
    for bench in choose((), quick=args.quick):
        if args.json:
            print(json.dumps(_as_json(bench)))
        else:
            targets = ", ".join(f"{target.metric} {target}" for target in bench.targets)
            print(f"{bench.name}\n    {bench.does}\n    to reach: {targets}")
    return ExitCode.OK


def _as_json(bench: Bench) -> dict[str, object]:
    targets = [
        {"metric": target.metric, "at_least" if target.at_least else "at_most": target.bound}
        for target in bench.targets
    ]
    return {
        "bench": bench.name,
        "does": bench.does,
        "params": dict(bench.params),
        "targets": targets,
    }


def _run(args: argparse.Namespace) -> int:
    benches = choose(args.name, quick=args.quick, params=_parse_params(args.set))
    ground = Ground(
        _existing(args.dir),
        _parse_address(args.against),
        args.pid,
        args.deadline,
        None if args.profile is None else _made(args.profile),
    )
    records = [Record(bench) for bench in benches]
    console = Console(stderr=True)
    failed: list[str] = []
    for number in range(1, args.runs + 1):
        for record in records:
            console.print(f"[dim]run {number} of {args.runs}: {record.bench.name}[/]")
            try:
                record.runs.append(record.bench.run(ground))
            except PenstockError as error:
                failed.append(f"{record.bench.name}: {error}")
                console.print(f"[red]failed[/]: {error}", markup=True)
            else:
                if not args.json and number == args.runs:
                    _print(record)
    done = [record for record in records if record.runs]
    if args.json:
        for record in done:
            print(record.to_json())
    if args.record is not None:
        append(args.record, done)
    for line in failed:
        print(f"penstock bench: {line}", file=sys.stderr)
    missed = args.check and any(record.missed() for record in done)
    return ExitCode.ERROR if failed or missed else ExitCode.OK


def _print(record: Record) -> None:
    judged = {target.metric: target for target, _ in record.judged()}
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
    for metric, value in record.median().items():
        target = judged.get(metric)
        verdict = ""
        if target is not None:
            verdict = f"{'met' if target.met(value) else '[bold red]MISSED[/]'}, {target}"
        table.add_row(metric, f"{value:,.10g}", verdict)
    console = Console()
    console.print(f"[bold]{record.bench.name}[/]")
    console.print(table)


def _parse_params(given: Sequence[str]) -> dict[str, str]:
    params = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set takes PARAM=VALUE, as in messages=1000; '{text}' has no '='")
        params[name] = value
    return params


def _parse_address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--against takes HOST:PORT, as in 127.0.0.1:4150, not '{text}'")
    return host, int(port)


def _existing(directory: Path) -> Path:
    if not directory.is_dir():
        raise ConfigError(f"--dir {directory} is not a directory; make it, or name another")
    return directory


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
