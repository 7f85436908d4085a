"""Checks every block, manifest, index, journal batch and state record; changes nothing.

What was synced must be whole and all there: anything else is *damage*, told with its file, its
offset, the seqs it held, what is kept and what to do. What was only written may be torn (the next
start cuts it) or half written (a broker is at it): a *note*, as is what is made anew without loss.
Whether a bad place had been synced the same witnesses say as in ``recovery``, so what is damage
here keeps the broker from opening that log, or from handing out what lies there.

Behind a bad place the next whole block or batch is looked for, so one bad sector is told as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.protocol.journal import DELIVERED, decode_batch
from penstock.storage.file import journal, layout, state
from penstock.storage.file.disk import names_in, read_file
from penstock.storage.file.index import decode_index
from penstock.storage.file.recovery import Whole, hole_witness
from penstock.storage.file.segment import Sealed, decode_synced_end
from penstock.storage.file.survey import Bad, LogView, Placed, SegmentView, Survey

BACKUP = "put the file back from a backup"
REST = "what lies in front of it and behind it; no byte was changed"
IN_FRONT = "what lies in front of it; no byte was changed"


class Finding(NamedTuple):
    """Something to tell: what, where, the seqs it held (if any), what is kept, what to do."""

    what: str
    path: str
    offset: int
    seqs: tuple[int, int] | None
    kept: str
    remedy: str


@dataclass(slots=True)
class Report:
    """What the check of one thing found."""

    bytes: int = 0
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class LogReport(Report):
    """Of a log: seqs, and how many blocks and messages are whole and will be kept."""

    start: int = 0
    end: int = 0
    synced_end: int = 0
    segments: int = 0
    blocks: int = 0
    messages: int = 0


@dataclass(slots=True)
class JournalReport(Report):
    """Of a channel's journal. ``handed_out`` is {a log's first tag: seq behind the highest}."""

    files: int = 0
    batches: int = 0
    handed_out: dict[int, int] = field(default_factory=dict)


def check_log(survey: Survey, log: LogView, on_bytes: Callable[[int], None]) -> LogReport:
    """Every block of a log, with what lies beside them; ``on_bytes`` hears how much more has been
    looked at."""
    check = _LogCheck(survey, log)
    for part in log.parts:
        if isinstance(part, Sealed):
            check.missing(part)
            continue
        try:
            check.segment(part, on_bytes)
        except FileNotFoundError:
            check.vanished(part)
    check.conclude()
    if not names_in(survey.disk, log.directory):
        return LogReport()  # its topic was deleted while we looked
    return check.report


class _Place(NamedTuple):
    """A bad place, whether it is known to have been synced, and what lies in front of it."""

    finding: Finding
    synced: bool
    low: int
    blocks: int
    messages: int


class _LogCheck:
    """Goes over the segments in order and keeps what one block says about the next."""

    def __init__(self, survey: Survey, log: LogView) -> None:
        self.survey = survey
        self.log = log
        self.report = LogReport(log.bytes, segments=len(log.segments), start=log.start)
        self.report.end = log.start
        self.witness = log.synced_end  # everything below was synced
        self.places: list[_Place] = []
        self.open = False  # whether the last of them may go on: nothing whole came behind it yet
        if log.manifest_error is not None:
            remedy = f"{BACKUP}; without one, remove it while no broker runs: the next start "
            remedy += "makes it anew from the segments"
            what = "the manifest, which lists the sealed segments, is not what was written"
            path = f"{log.prefix}.manifest"
            self.report.damage.append(Finding(what, path, 0, None, "every segment", remedy))
        path = f"{log.prefix}.synced"
        stored = read_file(survey.disk, path)
        if log.synced is None and stored is not None and decode_synced_end(stored) is None:
            what = "the note of the synced end is not what was written"
            self._note(what, path, "every message", "nothing: the next sync writes it anew")

    def missing(self, line: Sealed) -> None:
        path = self.log.path_of(line)
        what = "the segment is missing"
        self._damage(what, path, 0, (line.base, line.end), "the other segments")
        self._skip_to(line)

    def segment(self, segment: SegmentView, on_bytes: Callable[[int], None]) -> None:
        self.survey.disk.size_of(segment.path)
        self._check_index(segment)
        whole = True
        told = 0
        appended_at_ns = 0
        for found in self.survey.scan(self.log, segment, 0, self.report.end):
            if isinstance(found, Bad):
                whole = False
                at = found.end
                self._bad(segment, found)
            else:
                at, last = found[-1]
                self._blocks(segment, found)
                appended_at_ns = last.appended_at_ns
            on_bytes(at - told)
            told = at
        on_bytes(segment.bytes - told)
        line = segment.line
        if line is None:
            return
        if segment.bytes < line.bytes:
            what = f"the file has {segment.bytes} bytes of {line.bytes}"
            self._damage(what, segment.path, segment.bytes, (self.report.end, line.end), IN_FRONT)
        elif whole and (self.report.end, appended_at_ns) != (line.end, line.last_ns):
            what = f"it ends at seq {self.report.end}, the manifest says at {line.end}"
            self._damage(what, segment.path, segment.bytes, None, REST)
        self._skip_to(line)

    def vanished(self, segment: SegmentView) -> None:
        """While we looked: dropped, or no more than a torn tail when a broker started."""
        if segment.line is not None:
            if self.survey.lists(self.log, segment.line):
                self.missing(segment.line)
            self._skip_to(segment.line)

    def conclude(self) -> None:
        """Once every witness was heard: which bad places are damage, and whether the end is
        there."""
        report = self.report
        end = report.end
        report.synced_end = self.witness
        self._close(max(self.witness, end))
        torn: _Place | None = None
        for place in self.places:
            if place.synced or place.low < self.witness:
                self._tell(place.finding)
            elif torn is None:
                torn = place
        if end < self.witness and not self.places:
            last = self.log.segments[-1] if self.log.segments else None
            path, offset = (last.path, last.bytes) if last else (self.log.directory, 0)
            what = "the end of what was synced is missing"
            self._damage(what, path, offset, (end, self.witness), IN_FRONT)
        if torn is not None and not report.damage:  # a damaged log is not opened, nothing is cut
            report.end, report.blocks, report.messages = torn.low, torn.blocks, torn.messages
            what, path, offset, *_ = torn.finding
            if not self._whole_by_now(path, offset):
                what = f"{what}; it was never synced: torn, or being written"
                remedy = "nothing: it was never promised, and the next start cuts it"
                self._note(what, path, IN_FRONT, remedy, offset)

    # --- blocks

    def _blocks(self, segment: SegmentView, found: list[Placed]) -> None:
        report = self.report
        offset, first = found[0]
        self._close(first.base)
        if not offset and report.end < first.base:
            whole = Whole(0, first.base, first.synced_end)
            if hole_witness(report.end, first.base, self.log.synced, whole):
                what = "what was synced in front of this segment is missing"
                self._damage(what, segment.path, 0, (report.end, first.base), "the other segments")
        for _, block in found:
            report.messages += block.count
            if block.synced_end > self.witness:
                self.witness = block.synced_end
        report.blocks += len(found)
        report.end = found[-1].block.end

    def _bad(self, segment: SegmentView, bad: Bad) -> None:
        report = self.report
        end = report.end
        what = f"{bad.why}; {bad.end - bad.offset} bytes cannot be read"
        finding = Finding(what, segment.path, bad.offset, (end, end), REST, self._remedy())
        synced = segment.line is not None or bad.offset < segment.synced_bytes
        self.places.append(_Place(finding, synced, end, report.blocks, report.messages))
        self.open = True

    def _close(self, seq: int) -> None:
        """What the last bad place may have held ends here."""
        if self.open:
            last = self.places[-1]
            finding = last.finding._replace(seqs=(last.low, max(last.low, seq)))
            self.places[-1] = last._replace(finding=finding)
            self.open = False
            self.report.end = max(self.report.end, seq)

    def _skip_to(self, line: Sealed) -> None:
        self._close(line.end)
        self.report.end = max(self.report.end, line.end)

    def _whole_by_now(self, path: str, offset: int) -> bool:
        """Whether a broker was only at it."""
        now = self.survey.log(self.log.topic, self.log.partition, self.log.lane)
        segment = next((one for one in now.segments if one.path == path), None)
        if segment is None:
            return True
        return not isinstance(next(self.survey.scan(now, segment, offset), None), Bad)

    def _check_index(self, segment: SegmentView) -> None:
        path = layout.index_name(segment.path)
        stored = read_file(self.survey.disk, path)
        decoded = decode_index(stored, 1) if stored is not None else None
        if stored is not None and (decoded is None or decoded[1].base != segment.base):
            what = "the index of this segment is not what was written"
            remedy = "nothing: a broker reads the segment instead, and starts slower"
            self._note(what, path, "every message", remedy)

    def _note(self, what: str, path: str, kept: str, remedy: str, offset: int = 0) -> None:
        self.report.notes.append(Finding(what, path, offset, None, kept, remedy))

    def _damage(
        self, what: str, path: str, offset: int, seqs: tuple[int, int] | None, kept: str
    ) -> None:
        self._tell(Finding(what, path, offset, seqs, kept, self._remedy()))

    def _tell(self, finding: Finding) -> None:
        """As damage, unless the next start has it in a redo file and puts it in its place."""
        redone = self.survey.redone.get(finding.path, ())
        if any(start <= finding.offset < end for start, end in redone):
            what = f"{finding.what}; a redo file holds it"
            remedy = "nothing: the next start puts it in its place; check again then"
            self.report.notes.append(finding._replace(what=what, remedy=remedy))
        else:
            self.report.damage.append(finding)

    def _remedy(self) -> str:
        return f"{BACKUP}; without one, `penstock dump` prints the messages that can be read"


def check_journal(
    survey: Survey, topic: str, channel: str, on_bytes: Callable[[int], None]
) -> JournalReport:
    """Every batch of a channel's journal, history included."""
    report = JournalReport()
    paths = survey.journal_files(topic, channel)
    for path in paths:
        stored = read_file(survey.disk, path)
        if stored is None:
            continue  # dropped while we looked
        on_bytes(len(stored))
        remedy = f"{BACKUP}; without one, move it away while no broker runs: "
        if path == paths[-1]:
            remedy += "the channel goes on where its older files end, and messages come again"
        else:
            remedy += "only this much of the channel's history is lost"
        found = [(start, stop, synced) for start, stop, _, synced in journal.all_batches(stored)]
        report.files += 1
        report.batches += len(found)
        report.bytes += len(stored)
        _check_batches(survey, report, path, len(stored), found, remedy)
        for start, stop, _ in found:
            for kind, log, _, high, *_ in decode_batch(stored, start, stop).records:
                if kind == DELIVERED and high > report.handed_out.get(log, 0):
                    report.handed_out[log] = high
    return report


def missing_end(directory: str, end: int, handed_out: int) -> Report:
    """Of a log that syncs every commit, and ends before what was handed out of it: where nothing
    else is left of it, journals say so."""
    what = "the log's end is missing: channels were handed more than it has"
    finding = Finding(what, directory, 0, (end, handed_out), "the rest of the log", BACKUP)
    return Report(damage=[finding])


def check_redo(survey: Survey) -> Report:
    """What was made durable for many logs at once, and is not in all their files yet."""
    report = Report()
    if survey.redo_error is not None:
        remedy = "as it says; `penstock dump` prints the messages that are in their place"
        what = str(survey.redo_error)
        report.damage.append(Finding(what, survey.root, 0, None, "all its bytes", remedy))
    return report


def check_state(survey: Survey) -> Report:
    """Every batch of the state file."""
    path = f"{survey.root}/{layout.STATE}"
    stored = read_file(survey.disk, path)
    report = Report(len(stored or b""))
    remedy = "restore the directory from a backup; `penstock dump` prints its messages meanwhile"
    if stored is None:
        what = "the state, which says what topics and channels there are, is missing"
        report.damage.append(Finding(what, path, 0, None, "the messages", remedy))
    else:
        found = [*state.all_batches(stored)]
        _check_batches(survey, report, path, len(stored), found, remedy)
    return report


def _check_batches(
    survey: Survey,
    report: Report,
    path: str,
    size: int,
    found: list[tuple[int, int, int]],
    remedy: str,
) -> None:
    """``found`` are (start, end, bytes of the file known to be synced) of its whole batches."""
    synced_bytes = max([synced for _, _, synced in found], default=0)
    end = 0
    for start, stop, _ in [*found, (size, size, 0)]:
        if start > end:
            what = f"{start - end} bytes are no whole record"
            if end < synced_bytes:
                report.damage.append(Finding(what, path, end, None, REST, remedy))
            elif not _whole_by_now(survey, path, end):
                what += "; they were never synced: torn, or being written"
                cuts = "nothing: the next start cuts it"
                report.notes.append(Finding(what, path, end, None, IN_FRONT, cuts))
        end = stop


def _whole_by_now(survey: Survey, path: str, offset: int) -> bool:
    """Whether there is a whole batch by now: then a broker was only at it."""
    behind = (read_file(survey.disk, path) or b"")[offset:]
    batches = (*journal.all_batches(behind), *state.all_batches(behind))
    return any(found[0] == 0 for found in batches)
