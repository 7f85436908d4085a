"""`penstock check`: is every byte that a data directory promised still there and whole?

Reads all of it and changes nothing, so it may run beside a broker. What was synced and is not whole
any more is damage (exit code 3); what never was synced is a note.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.cli import ExitCode
from penstock.cli.meter import Meter
from penstock.cli.surveying import surveyed, topics_of
from penstock.cli.wording import counted, seqs
from penstock.storage.file.survey import Survey
from penstock.storage.file.verify import (
    Finding,
    LogReport,
    Report,
    check_journal,
    check_log,
    check_redo,
    check_state,
    missing_end,
)

EXAMPLES = """\
examples:
  penstock check ./data                      everything; also while a broker runs on it
  penstock check ./data --topic orders       one topic
  penstock check ./data --json               a JSON object for each finding, the summary last

Nothing is changed. Damage (exit code 3) is what was synced and is not whole any more; each place is
told with its file, its offset, what is kept and what to do. A torn tail that was never synced is a
note: the next start cuts it.
"""


class Summary:
    """What has been checked so far."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.topics = self.logs = self.journals = 0
        self.bytes = self.segments = self.blocks = self.messages = 0
        self.damage = self.notes = 0

    def add(self, report: Report) -> None:
        self.bytes += report.bytes
        self.damage += len(report.damage)
        self.notes += len(report.notes)
        if isinstance(report, LogReport):
            self.segments += report.segments
            self.blocks += report.blocks
            self.messages += report.messages

    def __str__(self) -> str:
        found = "no damage"
        if self.damage:
            found = f"DAMAGED in {counted(self.damage, 'place')}; all bytes were kept"
        if self.notes:
            found += f", {counted(self.notes, 'note')}"
        looked_at = [
            counted(self.topics, "topic"),
            counted(self.logs, "log"),
            counted(self.segments, "segment"),
            counted(self.messages, "message"),
            counted(self.journals, "journal"),
            counted(self.bytes, "byte"),
        ]
        return f"{self.directory}: {', '.join(looked_at)} checked: {found}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check a data directory for damage, without changing it."
    parser.epilog = EXAMPLES
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--topic", metavar="NAME", help="check this topic alone")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    with surveyed(args.directory) as survey:
        summary = Summary(survey.root)
        known, _ = survey.state()
        topics = topics_of(survey, known, args.topic)
        with Meter("checking", survey.total_bytes(topics), in_bytes=True) as meter:
            for where, report in reports(survey, known, topics, meter, summary):
                summary.add(report)
                for kind, findings in (("damage", report.damage), ("note", report.notes)):
                    for finding in findings:
                        found = as_json(kind, where, finding)
                        print(json.dumps(found) if args.json else as_text(found), flush=True)
        print(json.dumps({"kind": "summary"} | vars(summary)) if args.json else summary)
    return ExitCode.DAMAGE if summary.damage else ExitCode.OK


def reports(
    survey: Survey, known: Mapping[str, bytes], topics: list[str], meter: Meter, summary: Summary
) -> Iterator[tuple[dict[str, str], Report]]:
    """What was found, each with the names of what was looked at: the state, redo files, then all
    topics."""
    yield {}, check_state(survey)
    yield {"redo": "files"}, check_redo(survey)
    for topic in topics:
        summary.topics += 1
        if f"topic/{topic}" not in known:
            yield {"topic": topic}, _unknown(survey, topic)
        handed_out: dict[int, int] = {}  # read before the logs, which a broker may go on with
        for name in survey.journals(topic):
            summary.journals += 1
            found = check_journal(survey, topic, name, meter.add)
            yield {"topic": topic, "journal": name}, found
            for tag, end in found.handed_out.items():
                handed_out[tag] = max(end, handed_out.get(tag, 0))
        ends: dict[str, int] = {}
        for log in survey.logs(topic):
            summary.logs += 1
            checked = check_log(survey, log, meter.add)
            yield {"topic": topic, "log": log.key}, checked
            ends[log.key] = checked.end
        document = _document(known, topic)
        for key, (tag, *_) in document.get("tags", {}).items():
            if document["durability"] == "synced" and ends.get(key, 0) < handed_out.get(tag, 0):
                if _document(survey.state()[0], topic).get("tags") != document["tags"]:
                    break  # it was deleted while we looked
                place = survey.directory_of(topic)
                where = {"topic": topic, "log": key}
                yield where, missing_end(place, ends.get(key, 0), handed_out[tag])


def _document(state: Mapping[str, bytes], topic: str) -> dict[str, Any]:
    return dict(json.loads(state.get(f"topic/{topic}", b"{}")))


def _unknown(survey: Survey, topic: str) -> Report:
    what = "files of a topic that the state does not know: no broker reads them"
    remedy = "nothing if it was being deleted; else compare the state with a backup"
    found = Finding(what, survey.directory_of(topic), 0, None, "its files", remedy)
    return Report(notes=[found])


def as_json(kind: str, where: dict[str, str], finding: Finding) -> dict[str, object]:
    """A finding for scripts; ``seqs`` are the first and the last that the place held."""
    low, high = finding.seqs or (0, 0)
    return {
        "kind": kind,
        **where,
        "file": finding.path,
        "offset": finding.offset,
        "found": finding.what,
        "seqs": [low, high - 1] if high > low else None,
        "kept": finding.kept,
        "to_do": finding.remedy,
    }


def as_text(found: dict[str, object]) -> str:
    """The same for people."""
    names = ("redo", "topic", "log", "journal")
    where = ", ".join([f"{name} {found[name]}" for name in names if name in found])
    title = "DAMAGE" if found["kind"] == "damage" else "note"
    lines = [f"{title}: {where or 'state'}: {found['found']}"]
    lines.append(f"  file   {found['file']} at offset {found['offset']}")
    if isinstance(found["seqs"], list):
        low, last = found["seqs"]
        lines.append(f"  held   {seqs(low, last + 1)}")
    return "\n".join([*lines, f"  kept   {found['kept']}", f"  to do  {found['to_do']}"])
