"""Go's patterns: which names they match, and which patterns are refused rather than misread."""

from __future__ import annotations

import pytest

from penstock.doors.nsq.patterns import PatternError, compile_go


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("", ["", "a"], []),
        (".*", ["", "a.b-c_d#ephemeral"], []),
        ("^metrics", ["metrics", "metrics.cpu"], ["my.metrics"]),
        ("logs$", ["logs", "my.logs"], ["logs2"]),
        (r"^logs\z", ["logs"], ["logs2"]),
        (r"\Alogs", ["logs2"], ["my.logs"]),
        (r"^(orders|refunds)\.[^.]+$", ["orders.eu"], ["orders", "orders.eu.x"]),
        (r"^(?:a|b){2,3}?$", ["ab", "bab"], ["a", "abab"]),
        (r"^(?P<team>[a-z]+)-\d+$", ["x-1"], ["x-y", "-1"]),
        ("(?i)^FOO", ["foobar", "FOO"], ["bar"]),
        ("^(?i:f)oo", ["Foo"], ["FOO"]),
        ("^[[:alpha:]_]+[[:digit:]]$", ["a_b1"], ["1a", "a"]),
        (r"^[\w.\-]+#ephemeral$", ["a.b-c#ephemeral"], ["a.b"]),
        (r"^\x61", ["a"], ["b"]),
        (r"[]a]", ["a"], ["b"]),
        (r"^a{2}$", ["aa"], ["a"]),
        (r"^a+?b*$", ["aab"], ["b"]),
        (r"\bx\b", ["a.x-b"], ["ax"]),
    ],
)
def test_what_is_matched(pattern: str, matched: list[str], others: list[str]) -> None:
    compiled = compile_go(pattern)
    assert [name for name in matched + others if compiled.search(name)] == matched


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[",
        "[z-a]",
        "*",
        "a**",
        "a{3,1}",
        "\\",
        # Python would take these, for something that RE2 does not know
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?>a)",
        r"(a)\1",
        "(?P<n>a)(?P=n)",
        "(?#note)",
        "(a)(?(1)b)",
        "a++",
        "a*+",
        "a{2}+",
        r"a\Z",
        r"[\b]",
        r"\u0061",
        # and these for something else
        "a{,3}",
        "[a&&b]",
        "[a--b]",
        "[[a]",
        "[[:alpha]",
        r"\07",
        # these only RE2 knows
        r"\pL",
        r"\Qa.b\E",
        r"\C",
        r"\x{61}",
        "a(?i)b",
        "(?U)a",
        "(" * 2000,
        "a{1001}",
    ],
    ids=lambda pattern: pattern[:20],
)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="pattern"):
        compile_go(pattern)
