"""What `penstock dump` prints for people: the rows that JSON has, each as a line or a few."""

from __future__ import annotations

from typing import Any

from penstock.cli.wording import counted, seqs, shown_time

BODY_CHARS = 120

Row = dict[str, Any]
"""One thing that a directory holds, as JSON has it."""


def topic_text(row: Row) -> str:
    about = "not in the state"
    if row["partitions"] is not None:
        about = f"{counted(row['partitions'], 'partition')}, {row['durability']}"
        about += f", made {shown_time(row['created_at_ns'])}"
    lines = [f"{row['topic']}: {about}{', paused' if row['paused'] else ''}"]
    lines += [f"  {log_text(log).removeprefix(row['topic']).strip()}" for log in row["logs"]]
    lines += [
        f"  {line.removeprefix(row['topic']).strip()}"
        for channel in row["channels"]
        for line in channel_text(channel).split("\n")
    ]
    return "\n".join(lines)


def log_text(row: Row) -> str:
    text = f"{row['topic']} log {row['log']}: {seqs(row['start'], row['end'])}"
    text += f", synced below {row['synced_end']}, {counted(row['segments'], 'segment')}"
    if row["missing_segments"]:
        text += f" ({row['missing_segments']} more missing)"
    return f"{text}, {counted(row['bytes'], 'byte')}"


def channel_text(row: Row) -> str:
    paused = " (paused)" if row["paused"] else ""
    return "\n".join(
        [
            f"{row['topic']} channel {row['channel']}{paused}: log {log['log']} at {log['cursor']}"
            f" of {log['end']}, all below {log['floor']} finished,"
            f" {log['outstanding']} outstanding, {log['sleeping']} asleep"
            for log in row["logs"]
        ]
    )


def outstanding_text(row: Row) -> str:
    text = f"{row['topic']} channel {row['channel']} {row['log']} seq {row['seq']}"
    text += f" attempts {row['attempts']}"
    return f"{text} asleep until {shown_time(row['wake_at_ns'])}" if row["wake_at_ns"] else text


def segment_text(row: Row) -> str:
    kind = "MISSING" if row["missing"] else "sealed" if row["sealed"] else "open"
    held = f"from seq {row['base']} on"
    if row["end"] is not None:
        held = seqs(row["base"], row["end"])
    return (
        f"{row['topic']} {row['log']} {kind}, {held},"
        f" {row['synced_bytes']:,} of {counted(row['bytes'], 'byte')} synced  {row['file']}"
    )


def block_text(row: Row) -> str:
    columns = "".join([f" +{name}" for name in row["columns"]])
    return (
        f"{row['topic']} {row['log']} offset {row['offset']}: {counted(row['count'], 'message')},"
        f" {seqs(row['base'], row['end'])}, {counted(row['frames_bytes'], 'byte')},"
        f" {shown_time(row['appended_at_ns'])}{columns}"
    )


def message_text(row: Row) -> str:
    body = row.get("body_base64") or repr(row["body"])[1:-1]
    if len(body) > BODY_CHARS:
        body = f"{body[:BODY_CHARS]}… ({counted(len(body), 'character')})"
    wake = f" asleep until {shown_time(row['wake_at_ns'])}" if row["wake_at_ns"] else ""
    where = f"{row['topic']} {row['log']} {row['seq']} {row['id']}"
    return f"{where} {shown_time(row['timestamp_ns'])}{wake}  {body}"


def journal_text(row: Row) -> str:
    text = f"{row['topic']} {row['journal']} {shown_time(row['at_ns'])} {row['kind']}"
    text += f" {row['log']} {seqs(row['low'], row['high'])} attempts {row['attempts']}"
    if row["client"]:
        text += f" by {row['client']}"
    if row["wake_at_ns"]:
        text += f" until {shown_time(row['wake_at_ns'])}"
    return f"{text} (snapshot)" if row["snapshot"] else text


def state_text(row: Row) -> str:
    return f"{row['key']} = {row['value']}"
