"""The part of docs/configuration.md that is made from the settings themselves.

`make docs` (this module as a program) writes it; `test_documented.py` fails where it is not what
the settings say.
"""

from penstock.cli.config import markdown
from tests.tidy.tree import ROOT

CONFIGURATION = ROOT / "docs" / "configuration.md"
BEGIN = "<!-- made by `make docs` from src/penstock/config/settings.py: edit there -->"
END = "<!-- end of what `make docs` makes -->"


def documented(text: str) -> str:
    """The document with its tables made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{CONFIGURATION} has lost its marker {BEGIN!r}"
    assert end, f"{CONFIGURATION} has lost its marker {END!r}"
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{after}"


if __name__ == "__main__":
    CONFIGURATION.write_text(documented(CONFIGURATION.read_text("utf-8")), "utf-8")
    print(f"{CONFIGURATION} says what the settings say.")
