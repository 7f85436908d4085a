"""How much the property tests search: little in every run, much more with PENSTOCK_LONG=1.

A longer search also draws new examples each time; Hypothesis prints what reproduces a failure.
"""

import os

from hypothesis import settings

LONG = bool(os.environ.get("PENSTOCK_LONG"))
LONG_FACTOR = 40


def budget(examples: int, steps: int = 50) -> settings:
    """So many examples (of so many steps, for a machine) in a default run."""
    if not LONG:
        return settings(max_examples=examples, stateful_step_count=steps)
    return settings(
        max_examples=examples * LONG_FACTOR, stateful_step_count=2 * steps, derandomize=False
    )
