"""JSON by Go's rules: what is read, what is refused, and what is written byte by byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.doors.nsq.gojson import Kind, NotJson, decode, encode, fields

KINDS = {
    "name": Kind.TEXT,
    "on": Kind.FLAG,
    "small": Kind.INT32,
    "big": Kind.INT64,
    "texts": Kind.TEXTS,
    "lines": Kind.OBJECTS,
    "ks": Kind.TEXT,
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"{}", {}),
        (b" null\r\n", {}),
        (
            b'{"name":"n","on":true,"small":1,"big":2}',
            {"name": "n", "on": True, "small": 1, "big": 2},
        ),
        (b'{"NAME":"n","On":false}', {"name": "n", "on": False}),
        # Go folds the long s and the Kelvin sign, and nothing else outside ASCII
        ('{"\u212a\u017f":"folded"}'.encode(), {"ks": "folded"}),
        ('{"\uff4f\uff4e":true}'.encode(), {}),
        (b'{"name":"first","Name":"last"}', {"name": "last"}),
        (b'{"name":"kept","name":null}', {"name": "kept"}),
        (b'{"name":null}', {}),
        (b'{"other":{"name":1,"a":[1.5,{}]},"x":1e400,"y":' + b"9" * 5000 + b"}", {}),
        (b'{"big":-9223372036854775808}', {"big": -(2**63)}),
        (b'{"big":9223372036854775807,"small":-2147483648}', {"big": 2**63 - 1, "small": -(2**31)}),
        (b'{"big":-0}', {"big": 0}),
        (b'{"texts":["a","b"],"name":""}', {"texts": ["a", "b"], "name": ""}),
        (b'{"name":"\xff\xc3\xa9"}', {"name": "\ufffd\xe9"}),
        (rb'{"name":"\ud800x\ud83d\ude00"}', {"name": "\ufffdx\U0001f600"}),
    ],
)
def test_what_is_read(data: bytes, expected: dict[str, object]) -> None:
    assert decode(data, KINDS) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b'"text"',
        b"1",
        b"true",
        b"{} {}",
        b"{}x",
        b"{'name':'n'}",
        b'{"name":"n",}',
        b'{"name":"line\nbreak"}',
        b"\xef\xbb\xbf{}",
        b"\xff{}",
        b"\xff\xfe{\x00}\x00",
        b'{"other":NaN}',
        b'{"other":-Infinity}',
        b'{"big":01}',
        b'{"name":1}',
        b'{"on":1}',
        b'{"on":"true"}',
        b'{"big":"1"}',
        b'{"big":true}',
        b'{"big":1.0}',
        b'{"big":1e3}',
        b'{"big":9223372036854775808}',
        b'{"big":-9223372036854775809}',
        b'{"big":' + b"9" * 5000 + b"}",
        b'{"small":2147483648}',
        b'{"small":-2147483649}',
        b'{"texts":"a"}',
        b'{"texts":["a",1]}',
        b'{"texts":[null]}',
        b'{"lines":{}}',
        b'{"name":1,"name":"right"}',
        b'{"name":{}}',
        b"[" * 100_000,
        b'{"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda data: repr(data[:40]),
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(NotJson):
        decode(data, KINDS)


def test_objects_inside_lists() -> None:
    lines = decode(b'{"lines":[{"NAME":"a"},{"name":"b","z":0},1]}', KINDS)["lines"]
    assert isinstance(lines, list)
    assert [fields(line, KINDS) for line in lines[:2]] == [{"name": "a"}, {"name": "b"}]
    with pytest.raises(NotJson):
        fields(lines[2], KINDS)


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode()))
def test_any_bytes_are_fields_or_refused(data: bytes) -> None:
    try:
        found = decode(data, KINDS)
    except NotJson:
        return
    assert found.keys() <= KINDS.keys()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1, "1"),
        (False, "false"),
        ("é <&> \U0001f600", '"é \\u003c\\u0026\\u003e \U0001f600"'),
        ('"\\\n\t\r\x01\x08\x7f', '"\\"\\\\\\n\\t\\r\\u0001\\u0008\x7f"'),
        ("\u2028\ud800", '"\\u2028\ufffd"'),
    ],
)
def test_what_is_written(value: object, written: str) -> None:
    assert encode({"a": value, "b": 2}) == f'{{"a":{written},"b":2}}'.encode()


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()))
def test_what_is_written_can_be_read(values: dict[str, object]) -> None:
    assert json.loads(encode(values)) == values
