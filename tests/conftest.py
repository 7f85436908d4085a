"""What every test run shares: how Hypothesis searches, and the fixtures of `tests/support`.

By default each property test draws the same examples in every run, so that a red run is red again
when it is repeated, and few where it does not say how many: all of `tests/unit` is to take seconds.
`PENSTOCK_EXPLORE=1` draws new ones, and many (Hypothesis prints what reproduces a failure). Nothing
here may start a broker or touch the network: the fixtures that do (see `tests/support/fixtures.py`)
do it for the tests that ask for them by name.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support")
pytest_plugins = ["tests.support.fixtures"]

settings.register_profile(
    "repeatable",
    deadline=None,  # wall-clock limits fail on a busy machine and tell nothing about the code
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", settings.get_profile("repeatable"), derandomize=False, max_examples=1000
)
settings.load_profile("explore" if os.environ.get("PENSTOCK_EXPLORE") else "repeatable")
