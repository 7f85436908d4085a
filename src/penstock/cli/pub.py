"""`penstock pub`: lines of stdin or of a file, one text, or generated messages, to a topic.

Published through the SDK in batches, each answered by the broker before the command ends, so exit
code 0 means that all of them are safe. What comes through a pipe is published as it comes.
"""

import argparse
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from penstock.cli import ExitCode
from penstock.cli.connecting import add_connecting_arguments, client_of, name
from penstock.cli.meter import Meter
from penstock.config.units import parse_duration_ms, parse_size
from penstock.errors import ConfigError, OperatingError
from penstock.limits import MSG_SIZE_BYTES_MAX
from penstock.sdk import MessageInvalid, PublishError
from penstock.sdk.sync import SyncProducer

EXAMPLES = """\
examples:
  echo hello | penstock pub greetings                  one message a line
  tail -f access.log | penstock pub access             published as it comes
  penstock pub access --file access.log
  penstock pub greetings --body hello --delay 10s      delivered 10 s later
  penstock pub reports --file report.pdf --whole       one message, the whole file
  penstock pub load --count 1000000 --size 200         generated messages

Exit code 0 means that the broker has them all safe, at the topic's durability.
"""

READ_BYTES = 1 << 20
GENERATED_SIZE_BYTES = 100
GENERATED_BATCH = 8_000


class Portion(NamedTuple):
    """Messages to publish together; `progress` is what they count towards the total."""

    bodies: list[bytes]
    progress: int


class Source(NamedTuple):
    portions: Iterator[Portion]
    total: int | None


class Summary:
    """What this run has done so far."""

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self.empty = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Publish messages: the lines of stdin or of a file, or generated ones."
    parser.epilog = EXAMPLES
    parser.add_argument("topic", type=name, metavar="TOPIC")
    parser.add_argument("--file", type=Path, metavar="FILE", help="read this instead of stdin")
    parser.add_argument(
        "--whole", action="store_true", help="all that is read is one message, not a message a line"
    )
    parser.add_argument("--body", metavar="TEXT", help="publish this text")
    parser.add_argument("--count", type=int, metavar="N", help="publish so many generated messages")
    parser.add_argument(
        "--size",
        metavar="BYTES",
        help=f"size of a generated message (512, 64KiB; default {GENERATED_SIZE_BYTES})",
    )
    parser.add_argument("--delay", metavar="DURATION", help="deliver so much later (10s, 1h30m)")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add_connecting_arguments(parser)


def run(args: argparse.Namespace) -> int:
    delay_ms = _parsed(parse_duration_ms, args.delay, "--delay") if args.delay else 0
    source = source_of(args)
    summary = Summary()
    with (
        client_of(args) as client,
        client.producer() as producer,
        Meter("publishing", source.total, shown=not args.quiet) as meter,
    ):
        try:
            for portion in source.portions:
                _publish(producer, args.topic, portion.bodies, delay_ms, summary)
                meter.add(portion.progress)
        except KeyboardInterrupt:
            print(f"interrupted: {summary.messages} messages are safe", file=sys.stderr)
            raise
    if args.json:
        print(json.dumps(_as_json(args.topic, summary, meter.seconds)))
    elif not args.quiet:
        print(_as_text(args.topic, summary, meter.seconds))
    return ExitCode.OK


def _publish(
    producer: SyncProducer, topic: str, bodies: list[bytes], delay_ms: int, summary: Summary
) -> None:
    full = [body for body in bodies if body]
    summary.empty += len(bodies) - len(full)
    try:
        if delay_ms:
            for body in full:
                producer.publish(topic, body, delay=delay_ms / 1000)
                summary.messages += 1
        elif full:
            producer.publish_many(topic, full)
            summary.messages += len(full)
    except PublishError as error:
        # of this portion; what was published before it is safe whatever became of it
        summary.messages += error.kept
        raise OperatingError(
            f"{_first_reason(error)}\nOf this run, {summary.messages} messages are safe, "
            f"{error.not_kept} were not kept and {error.unknown} may have been.",
            retry=error.retry,
        ) from error
    summary.size_bytes += sum(map(len, full))


def _first_reason(error: PublishError) -> PublishError:
    """Of what became of many, what became of the first that failed."""
    cause = error.__cause__
    return _first_reason(cause) if isinstance(cause, PublishError) else error


def source_of(args: argparse.Namespace) -> Source:
    """What the arguments say to publish; ConfigError where they do not go together."""
    if args.file and (args.body is not None or args.count is not None):
        raise ConfigError("--file goes with neither --body nor --count; nothing was sent.")
    if args.size and args.count is None:
        raise ConfigError("--size is for generated messages and needs --count; nothing was sent.")
    if args.size and args.body is not None:
        raise ConfigError("--size and --body do not go together; nothing was sent.")
    if args.count is not None and args.count < 1:
        raise ConfigError("--count must be 1 or more; nothing was sent.")
    if args.body is not None or args.count is not None:
        count = args.count or 1
        if args.body is not None:
            return Source(_portions(iter([args.body.encode()] * count)), count)
        size = _parsed(parse_size, args.size, "--size") if args.size else GENERATED_SIZE_BYTES
        return Source(_portions(generated(count, size)), count)
    return _input_of(args.file, whole=args.whole)


def generated(count: int, size: int) -> Iterator[bytes]:
    """Messages of one size that begin with their number, counted from 0."""
    if size < 1:
        raise ConfigError("--size must be 1 or more; nothing was sent.")
    filling = b"." * size
    for number in range(count):
        yield (b"%d " % number + filling)[:size]


def _portions(bodies: Iterator[bytes]) -> Iterator[Portion]:
    while portion := list(islice(bodies, GENERATED_BATCH)):
        yield Portion(portion, len(portion))


def _input_of(file: Path | None, *, whole: bool) -> Source:
    try:
        # unbuffered: a read gives what has arrived instead of waiting for more
        source = FileIO(file or sys.stdin.fileno(), closefd=file is not None)
        about = os.fstat(source.fileno())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}. Nothing was sent.") from error
    total = about.st_size if stat.S_ISREG(about.st_mode) else None
    return Source(_whole(source) if whole else _lines(source), total)


def _lines(source: FileIO) -> Iterator[Portion]:
    """The lines that have arrived, again and again, without their line ends."""
    rest = b""
    with source:
        while read := source.read(READ_BYTES):
            *lines, rest = (rest + read).split(b"\n")
            yield Portion([line.removesuffix(b"\r") for line in lines], len(read))
            if len(rest) > MSG_SIZE_BYTES_MAX:
                raise MessageInvalid(
                    f"a line is longer than {MSG_SIZE_BYTES_MAX} bytes, which no broker takes; "
                    "that line and what follows was not sent."
                )
    if rest:
        yield Portion([rest], 0)


def _whole(source: FileIO) -> Iterator[Portion]:
    with source:
        body = source.readall()
    yield Portion([body], len(body))


def _parsed(parse: Callable[[str], int], text: str, flag: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"bad value for {flag}: {error}; nothing was sent.") from error


def _as_json(topic: str, summary: Summary, seconds: float) -> dict[str, object]:
    return {
        "topic": topic,
        "messages": summary.messages,
        "bytes": summary.size_bytes,
        "empty_lines_skipped": summary.empty,
        "seconds": round(seconds, 3),
    }


def _as_text(topic: str, summary: Summary, seconds: float) -> str:
    messages = f"{summary.messages} message{'' if summary.messages == 1 else 's'}"
    text = f"{messages} published to {topic} in {seconds:.1f} s"
    if summary.empty:
        text += f"; {summary.empty} empty ones were left out, since brokers take none"
    return text
