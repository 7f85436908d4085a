"""Every failpoint is a place in the code, and every place in the code is a failpoint."""

import re

from penstock.failpoint import PLACES
from tests.tidy.tree import SOURCE, modules

# What `replace_file` makes of the point that it is given.
REPLACING = (".write", ".rename", ".renamed")

_NAMED = re.compile(r"\"([a-z_]+(?:\.[a-z_]+)+)\"")
_REPLACED = re.compile(r"\breplace_file\([^()]*(?:\([^()]*\)[^()]*)*\"([a-z.]+)\"")


def test_places_and_code_name_the_same() -> None:
    families = {place.partition(".")[0] for place in PLACES}
    named = set()
    for path in modules():
        if path != SOURCE / "failpoint.py":
            text = path.read_text("utf-8")
            named |= {name for name in _NAMED.findall(text) if name.partition(".")[0] in families}
            for point in _REPLACED.findall(text):
                named |= {f"{point}{end}" for end in REPLACING}
                named.discard(point)
    assert named == PLACES.keys()
