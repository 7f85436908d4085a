"""The fuzzers for a moment and without coverage: what they begin with, and mutations of it.

So that they can't rot, and what was found once is found again. The search itself is `make fuzz`.
"""

from importlib import import_module
from random import Random

import pytest

from fuzz.run import INPUT_BYTES_MAX, TARGETS
from tests.property.budget import LONG, LONG_FACTOR

ROUNDS = 300 * (LONG_FACTOR if LONG else 1)


def mutated(random: Random, data: bytes) -> bytes:
    """A few bytes changed, doubled, moved or left out."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(out) + 1)
        upto = at + random.choice((1, 1, 1, 4, 30))
        match random.randrange(5):
            case 0:
                out[at : at + 1] = bytes([random.choice((0, 1, 127, 255, random.randrange(256)))])
            case 1:
                out[at:at] = random.randbytes(random.choice((1, 2, 5)))
            case 2:
                out[at:at] = out[at:upto]
            case 3:
                del out[at:upto]
            case _:
                other = random.randrange(len(out) + 1)
                out[at:upto] = out[other : other + upto - at]
    return bytes(out[:INPUT_BYTES_MAX])


@pytest.mark.parametrize("name", TARGETS)
def test_the_invariant_holds(name: str) -> None:
    target = import_module(f"fuzz.targets.{name}")
    seeds = target.seeds()
    for seed in seeds:
        target.check(seed)
    random = Random(name)
    for _ in range(ROUNDS):
        data = mutated(random, random.choice(seeds))
        try:
            target.check(data)
        except Exception:
            print(f"the input: {data!r}")
            raise
