r"""Go's regular expressions (RE2) for Python's ``re``.

Authorizations name topics and channels by patterns that were written for nsqd. What both languages
read alike is taken as it is, ``\z``, ``[[:alpha:]]`` and a leading ``(?i)`` among it; the rest
(look-around, back-references, Unicode classes: what only one of them knows) is refused, because a
pattern that silently means something else would let in the wrong client.
"""

from __future__ import annotations

import re

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_POSIX_CLASS = re.compile(rf"\[:({'|'.join(_POSIX)}):\]")
_ESCAPED = r"\\(?:[dDsSwWafnrtv]|x[0-9A-Fa-f]{2}|[!-/:-@\[-`{-~])"
_TOKEN = re.compile(
    rf"""
      (?P<set> \[ \^? \]?
        (?: {_POSIX_CLASS.pattern} | {_ESCAPED} | ([&|~-])(?!\3) | [^][\\&|~-] )* \] )
    | (?P<end> \\z )
    | {_ESCAPED} | \\[AbB]
    | \( (?!\?) | \(\? (?: P<[A-Za-z_]\w*> | [ims]* (?: -[ims]+ )? : )
    | [*+?] \?? (?![*+?])
    | \{{ (?: \d{{1,3}} | 1000 ) (?: , (?: \d{{0,3}} | 1000 ) )? \}} \?? (?![*+?])
    | \{{ (?! [,\d] )
    | [^][\\({{*+?] | \]
    """,
    re.VERBOSE | re.ASCII,
)
_FLAGS = re.compile(r"\(\?[ims]+\)")


class PatternError(ValueError):
    """Not a pattern, or one that only Go or only Python would understand."""


def compile_go(pattern: str) -> re.Pattern[str]:
    """The pattern for ``search``, which matches anywhere as Go's MatchString does."""
    flags = _FLAGS.match(pattern)
    at = flags.end() if flags else 0
    parts = [pattern[:at]]
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise PatternError(f"'{pattern}' cannot be used as a pattern from '{pattern[at:]}' on")
        if token["end"]:
            parts.append(r"\Z")
        elif token["set"]:
            parts.append(_POSIX_CLASS.sub(lambda name: _POSIX[name[1]], token[0]))
        else:
            parts.append(token[0])
        at = token.end()
    try:
        return re.compile("".join(parts), re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"'{pattern}' is not a pattern ({error})") from error
