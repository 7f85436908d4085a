"""Run the fuzzers: each a while, with coverage to guide it (needs the extra ``fuzz``).

    python fuzz/run.py --seconds 300                    all of them, so long each
    python fuzz/run.py --seconds 60 --only block scan   some of them
    python fuzz/run.py --replay fuzz/crashes/block-…    one input again, without atheris

What the search found interesting stays in ``fuzz/corpus``, so the next run goes on from there. An
input that breaks an invariant is kept in ``fuzz/crashes``, with the command that shows it printed.
Exits with 1 when there was one. ``tests/property/test_fuzzers.py`` runs the same fuzzers for a
moment in each test run.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

CORPUS = HERE / "corpus"
CRASHES = HERE / "crashes"
TARGETS = ("scan", "block", "journal", "attributes", "recovery", "layers", "identify", "http")
INPUT_BYTES_MAX = 8192
MEMORY_MB_MAX = 1024
TIMEOUT_S = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", maxsplit=1)[0])
    parser.add_argument("--seconds", type=int, default=300, help="for each fuzzer (300)")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=TARGETS, metavar="NAME")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="check one input and stop")
    parser.add_argument("--search", choices=TARGETS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable()  # recovery reports each torn tail
    if options.replay:
        replay(options.replay)
        return 0
    if options.search:
        search(options.search, options.seconds)
    return max([watch(name, options.seconds) for name in options.only])


def replay(path: Path) -> None:
    """The file's name begins with the fuzzer's."""
    name = path.name.split("-")[0]
    if name not in TARGETS:
        sys.exit(f"{path.name}: an input's name begins with its fuzzer: {', '.join(TARGETS)}")
    import_module(f"fuzz.targets.{name}").check(path.read_bytes())
    print(f"{name}: the invariant holds for {path}")


def watch(name: str, seconds: int) -> int:
    """A search ends its process, so each has one of its own. 0 when nothing was found."""
    before = {*CRASHES.glob("*")}
    print(f"{name}: {seconds} s", flush=True)
    command = [sys.executable, __file__, "--search", name, "--seconds", str(seconds)]
    failed = subprocess.run(command, check=False).returncode != 0
    for path in {*CRASHES.glob("*")} - before:
        shown = path.relative_to(HERE.parent)
        print(f"{name}: broken. Again: {sys.executable} fuzz/run.py --replay {shown}", flush=True)
    return int(failed)


def search(name: str, seconds: int) -> None:
    """Until an input breaks the invariant, or time is up; does not return."""
    import atheris  # noqa: PLC0415  replaying an input needs no atheris

    with atheris.instrument_imports(include=["penstock"]):
        target = import_module(f"fuzz.targets.{name}")
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    CRASHES.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-artifact_prefix={CRASHES}/{name}-",
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-rss_limit_mb={MEMORY_MB_MAX}",
            f"-timeout={TIMEOUT_S}",
            "-verbosity=0",
        ],
        target.check,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
