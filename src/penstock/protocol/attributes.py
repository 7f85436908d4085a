"""What a message carries beside its body, and how that looks as bytes in a block's attributes
column.

A message without any has an empty entry. The fields come from publish (key, tags, headers,
priority, due, expiry, dedupe id) and are never changed afterwards::

    entry   = field *
    field   = u8 kind | u32 length | value
    value   = utf-8 text   (key, dedupe id, and each tag: one field a tag)
            | i64 ns       (due, expiry)      | i32 (priority)
            | u16 length of name, name, text  (header: one field a header)

An unknown kind is kept by whoever copies the entry and skipped by whoever reads it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from penstock.errors import CorruptionError

KEY, TAG, HEADER, PRIORITY, DUE, EXPIRY, DEDUPE = range(1, 8)
FIELD = struct.Struct("<BI")
INT64 = struct.Struct("<q")
INT32 = struct.Struct("<i")
NAME_LENGTH = struct.Struct("<H")


@dataclass(frozen=True, slots=True)
class Attributes:
    """Everything optional about a message; the default is a message that has none of it."""

    key: str | None = None
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    priority: int = 0
    due_at_ns: int | None = None
    expires_at_ns: int | None = None
    dedupe_id: str | None = None


def encode_attributes(attributes: Attributes) -> bytes:
    fields: list[tuple[int, bytes]] = []
    if attributes.key is not None:
        fields.append((KEY, attributes.key.encode()))
    fields += [(TAG, tag.encode()) for tag in attributes.tags]
    for name, text in attributes.headers.items():
        encoded = name.encode()
        fields.append((HEADER, NAME_LENGTH.pack(len(encoded)) + encoded + text.encode()))
    if attributes.priority:
        fields.append((PRIORITY, INT32.pack(attributes.priority)))
    if attributes.due_at_ns is not None:
        fields.append((DUE, INT64.pack(attributes.due_at_ns)))
    if attributes.expires_at_ns is not None:
        fields.append((EXPIRY, INT64.pack(attributes.expires_at_ns)))
    if attributes.dedupe_id is not None:
        fields.append((DEDUPE, attributes.dedupe_id.encode()))
    return b"".join([FIELD.pack(kind, len(value)) + value for kind, value in fields])


def decode_attributes(entry: bytes) -> Attributes:
    """What the entry says; CorruptionError on anything that ``encode_attributes`` never wrote."""
    try:
        return _decoded(entry)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(f"an attribute is cut short or damaged ({error})") from error


def _decoded(entry: bytes) -> Attributes:
    key: str | None = None
    tags: list[str] = []
    headers: dict[str, str] = {}
    priority = 0
    due: int | None = None
    expiry: int | None = None
    dedupe: str | None = None
    at = 0
    while at < len(entry):
        kind, length = FIELD.unpack_from(entry, at)
        at += FIELD.size
        value = entry[at : at + length]
        if len(value) != length:
            raise CorruptionError("an attribute is cut short")
        at += length
        if kind == KEY:
            key = value.decode()
        elif kind == TAG:
            tags.append(value.decode())
        elif kind == HEADER:
            (name_length,) = NAME_LENGTH.unpack_from(value)
            name_end = NAME_LENGTH.size + name_length
            headers[value[NAME_LENGTH.size : name_end].decode()] = value[name_end:].decode()
        elif kind == PRIORITY:
            (priority,) = INT32.unpack(value)
        elif kind == DUE:
            (due,) = INT64.unpack(value)
        elif kind == EXPIRY:
            (expiry,) = INT64.unpack(value)
        elif kind == DEDUPE:
            dedupe = value.decode()
    return Attributes(key, tuple(tags), headers, priority, due, expiry, dedupe)
