"""`penstock dump`: what a data directory holds, read from its files alone.

From the overview (topics with their logs and channels) down to single messages and journal records.
What a channel has outstanding is found by replaying its journal, as a broker does when it starts.
Bad places are told on stderr and gone around; nothing is changed, so a broker may be running.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from penstock.broker.broker import Broker, BrokerOptions
from penstock.broker.channel import Channel
from penstock.broker.restore import replay, resume
from penstock.cli import ExitCode
from penstock.cli.dump_text import (
    Row,
    block_text,
    channel_text,
    journal_text,
    log_text,
    message_text,
    outstanding_text,
    segment_text,
    state_text,
    topic_text,
)
from penstock.cli.meter import Meter
from penstock.cli.surveying import surveyed, topics_of
from penstock.cli.wording import body_fields
from penstock.errors import ConfigError, CorruptionError
from penstock.protocol.block import Block
from penstock.protocol.journal import DELIVERED, FINISHED, KIND_NAMES, MOVED, SLEPT
from penstock.storage.file.segment import Sealed
from penstock.storage.file.survey import LogView, SegmentView, Survey

EXAMPLES = """\
examples:
  penstock dump ./data                                     topics, their logs and channels
  penstock dump ./data messages --topic orders             the oldest 20 messages
  penstock dump ./data messages --topic orders --from 500 -n 3
  penstock dump ./data messages --id 0000010000000007      where is this message?
  penstock dump ./data messages -n 0 --json > all.jsonl    every message that can be read
  penstock dump ./data journal --topic orders --channel billing
  penstock dump ./data blocks --topic orders --partition 0 --lane delay

what can be printed:
  topics        each topic with its logs and channels      logs, channels     one a line
  outstanding   what each channel was handed and has not finished, message by message
  segments, blocks, messages                               what the logs hold
  journal       what happened in the channels              state              the broker's notes

Bad places are told on stderr and gone around (exit code 3 if they had been synced).
"""

ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print what a data directory holds, without changing it."
    parser.epilog = EXAMPLES
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument(
        "what", nargs="?", choices=[*VIEWS], default="topics", help="what to print (topics)"
    )
    parser.add_argument("--topic", metavar="NAME", help="of this topic alone")
    parser.add_argument("--channel", metavar="NAME", help="of this channel alone")
    parser.add_argument("--partition", type=int, metavar="N", help="of this partition alone")
    parser.add_argument("--lane", metavar="LANE", help="of this lane alone: 0, or delay")
    parser.add_argument(
        "--from", type=int, default=0, dest="seq", metavar="SEQ", help="from this seq on"
    )
    parser.add_argument("--id", metavar="ID", help="the message with this id (16 hex characters)")
    parser.add_argument(
        "-n", "--count", type=int, metavar="N", help=f"print so many; 0 for all (default {ROWS})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, bodies whole")


def run(args: argparse.Namespace) -> int:
    view = VIEWS[args.what]
    count = ROWS if args.count is None else args.count
    if count < 0:
        raise ConfigError("-n must be 0 or more.")
    with surveyed(args.directory) as survey:
        asked = Asked(args, survey)
        # a bar would run through what is printed on the same terminal
        shown = not sys.stdout.isatty()
        total = survey.total_bytes(asked.topics)
        with Meter("dumping", total, in_bytes=True, shown=shown) as asked.meter:
            rows = view.rows(asked)
            for row in islice(rows, count or None):
                text = json.dumps(row, ensure_ascii=False) if args.json else view.text(row)
                sys.stdout.buffer.write(f"{text}\n".encode(errors="surrogateescape"))
            sys.stdout.buffer.flush()
            if count and next(rows, None) is not None:
                print(f"these were the first {count}; -n 0 prints all", file=sys.stderr)
    return ExitCode.DAMAGE if asked.damaged else ExitCode.OK


class Asked:
    """The directory, narrowed to what the arguments ask for."""

    def __init__(self, args: argparse.Namespace, survey: Survey) -> None:
        self.survey = survey
        self.channel: str | None = args.channel
        self.partition: int | None = args.partition
        self.lane: str | None = args.lane
        self.seq: int = args.seq
        self.id = _parsed_id(args.id)
        self.meter = Meter("dumping", None, shown=False)
        self.damaged = False
        self.state, error = survey.state()
        if error is not None:
            self.bad(str(error), True)
        self.topics = topics_of(survey, self.state, args.topic)

    def bad(self, what: str, synced: bool) -> None:
        """A bad place, told at once and in its place among what is printed."""
        self.damaged |= synced
        sys.stdout.buffer.flush()
        why = "" if synced else " (never synced: torn, or being written)"
        print(f"penstock dump: {what}{why}", file=sys.stderr)

    def document(self, topic: str) -> Row:
        """What the state knows of a topic."""
        return dict(json.loads(self.state.get(f"topic/{topic}", b"{}")))

    def logs(self, topics: list[str] | None = None) -> Iterator[LogView]:
        for topic in topics or self.topics:
            for log in self.survey.logs(topic):
                lane = log.key.partition("/")[2]
                if self.partition in (None, log.partition) and self.lane in (None, lane):
                    yield log

    def blocks(self) -> Iterator[tuple[LogView, SegmentView, int, Block]]:
        for log in self.logs():
            found = self.survey.blocks(log, self.seq, self.bad, self.meter.add)
            for segment, (offset, block) in found:
                yield log, segment, offset, block

    def channels(self, name: str) -> Iterator[Channel]:
        """A topic's channels as a broker that starts now would find them; what was in flight is
        ready again."""
        if f"topic/{name}" not in self.state:
            return
        broker = Broker(BrokerOptions())
        broker.restore({f"topic/{name}": self.state[f"topic/{name}"]})
        topic = broker.topic_from(name)
        for lane in topic.lanes():
            log = self.survey.log(name, lane.partition, lane.lane)
            lane.restore(log.start, self.survey.end_of(log), log.synced_end, 0, 0)
            for low, high in log.holes:
                lane.note_hole(low, high)
        for channel_name in sorted(topic.started):
            if self.channel not in (None, channel_name):
                continue
            channel = topic.open_channel(channel_name)
            try:
                replay(channel, self.survey.recovered(name, channel_name))
            except CorruptionError as error:
                self.bad(str(error), True)
                continue
            resume(channel)
            yield channel


# --- rows: what is printed, as JSON has it


def topic_rows(asked: Asked) -> Iterator[Row]:
    for name in asked.topics:
        document = asked.document(name)
        yield {
            "topic": name,
            "partitions": document.get("partitions"),
            "durability": document.get("durability"),
            "created_at_ns": document.get("created_ns"),
            "paused": document.get("paused") is not None,
            "logs": [log_row(asked.survey, log) for log in asked.logs([name])],
            "channels": [channel_row(channel) for channel in asked.channels(name)],
        }


def log_rows(asked: Asked) -> Iterator[Row]:
    return (log_row(asked.survey, log) for log in asked.logs())


def log_row(survey: Survey, log: LogView) -> Row:
    return {
        "topic": log.topic,
        "log": log.key,
        "start": log.start,
        "end": survey.end_of(log),
        "synced_end": log.synced_end,
        "segments": len(log.segments),
        "missing_segments": len(log.missing),
        "bytes": log.bytes,
        "holes": log.holes,
    }


def channel_rows(asked: Asked) -> Iterator[Row]:
    return (channel_row(channel) for name in asked.topics for channel in asked.channels(name))


def channel_row(channel: Channel) -> Row:
    return {
        "topic": channel.topic,
        "channel": channel.name,
        "paused": channel.paused,
        "logs": [
            {
                "log": progress.lane.key,
                "cursor": progress.cursor,
                "floor": progress.floor,
                "end": progress.lane.durable_end,
                "outstanding": len(progress.retry),
                "sleeping": len(progress.sleeping),
            }
            for progress in channel.progress
        ],
    }


def outstanding_rows(asked: Asked) -> Iterator[Row]:
    for name in asked.topics:
        for channel in asked.channels(name):
            for progress in channel.progress:
                where = {"topic": name, "channel": channel.name, "log": progress.lane.key}
                for seq, attempts in sorted(progress.retry.items()):
                    yield {**where, "seq": seq, "attempts": attempts, "wake_at_ns": None}
                for seq, (wake_ns, attempts) in sorted(progress.sleeping.items()):
                    yield {**where, "seq": seq, "attempts": attempts, "wake_at_ns": wake_ns}


def segment_rows(asked: Asked) -> Iterator[Row]:
    for log in asked.logs():
        for part in log.parts:
            line = part if isinstance(part, Sealed) else part.line
            yield {
                "topic": log.topic,
                "log": log.key,
                "file": log.path_of(part) if isinstance(part, Sealed) else part.path,
                "missing": isinstance(part, Sealed),
                "sealed": line is not None,
                "base": part.base,
                "end": line.end if line is not None else None,
                "bytes": part.bytes,
                "synced_bytes": part.bytes if isinstance(part, Sealed) else part.synced_bytes,
                "appended_first_ns": line.first_ns if line is not None else None,
                "appended_last_ns": line.last_ns if line is not None else None,
            }


def block_rows(asked: Asked) -> Iterator[Row]:
    for log, segment, offset, block in asked.blocks():
        columns = ("seqs", "ids", "wakes", "mark", "attributes")
        yield {
            "topic": log.topic,
            "log": log.key,
            "file": segment.path,
            "offset": offset,
            "base": block.base,
            "end": block.end,
            "count": block.count,
            "frames_bytes": len(block.frames),
            "tag": block.tag,
            "commit": block.commit,
            "synced_end": block.synced_end,
            "appended_at_ns": block.appended_at_ns,
            "published_first_ns": block.published_first_ns,
            "published_last_ns": block.published_last_ns,
            "columns": [name for name in columns if getattr(block, name) is not None],
            "mark": block.mark,
        }


def message_rows(asked: Asked) -> Iterator[Row]:
    for log, _, _, block in asked.blocks():
        for index in range(block.index_of(asked.seq), block.count):
            number = block.id_at(index)
            if asked.id in (None, number):
                frame = block.frame_at(index)
                yield {
                    "topic": log.topic,
                    "log": log.key,
                    "seq": block.seq_at(index),
                    "id": f"{number:016x}",
                    "timestamp_ns": int.from_bytes(frame[8:16], "big"),
                    "wake_at_ns": block.wakes[index] if block.wakes is not None else None,
                    **body_fields(block.body_at(index)),
                }


def journal_rows(asked: Asked) -> Iterator[Row]:
    for topic in asked.topics:
        tags = asked.document(topic).get("tags", {})
        logs = {numbers[0]: key for key, numbers in tags.items()}
        for name in asked.survey.journals(topic):
            if asked.channel in (None, name):
                yield from _journal_rows(asked.survey, topic, name, logs)


def _journal_rows(survey: Survey, topic: str, name: str, logs: dict[int, str]) -> Iterator[Row]:
    clients: dict[int, str] = {}
    for path in survey.journal_files(topic, name):
        for offset, batch in survey.batches(path):
            clients |= batch.names
            for kind, log, low, high, attempts, at_ns, value in batch.records:
                yield {
                    "topic": topic,
                    "journal": name,
                    "file": path,
                    "offset": offset,
                    "snapshot": batch.snapshot,
                    "kind": KIND_NAMES.get(kind, str(kind)),
                    "log": logs.get(log, f"tag {log}"),
                    "low": low,
                    "high": high,
                    "attempts": attempts,
                    "at_ns": at_ns,
                    "client": clients.get(value) if kind in {DELIVERED, FINISHED} else None,
                    "wake_at_ns": value if kind in {SLEPT, MOVED} else None,
                }


def state_rows(asked: Asked) -> Iterator[Row]:
    for key, value in sorted(asked.state.items()):
        yield {"key": key, "value": value.decode(errors="replace")}


def _parsed_id(text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch("[0-9a-fA-F]{16}", text) is None:
        raise ConfigError(f"'{text}' is no message id: it has 16 hex characters. Nothing was read")
    return int(text, 16)


class View(NamedTuple):
    """One thing that can be printed: its rows, and a row as text."""

    rows: Callable[[Asked], Iterator[Row]]
    text: Callable[[Row], str]


VIEWS = {
    "topics": View(topic_rows, topic_text),
    "logs": View(log_rows, log_text),
    "channels": View(channel_rows, channel_text),
    "outstanding": View(outstanding_rows, outstanding_text),
    "segments": View(segment_rows, segment_text),
    "blocks": View(block_rows, block_text),
    "messages": View(message_rows, message_text),
    "journal": View(journal_rows, journal_text),
    "state": View(state_rows, state_text),
}
