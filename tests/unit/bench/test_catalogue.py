"""Names are unique and contain the parameters; sizes divide; what is asked for is what runs."""

from __future__ import annotations

import inspect

import pytest

from penstock.bench.catalogue import BENCHES, Bench, at_least, at_most, choose
from penstock.errors import ConfigError


@pytest.mark.parametrize("quick", [False, True])
def test_names_are_unique(quick: bool) -> None:
    names = [bench.name for bench in choose((), quick=quick)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_a_bench_gives_its_scenario_every_parameter_and_no_other(bench: Bench) -> None:
    signature = inspect.signature(bench.scenario)
    wanted = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    assert sorted(bench.params) == sorted(wanted)
    assert set(bench.quick) <= set(bench.params)


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
def test_every_bench_has_a_target(bench: Bench) -> None:
    assert bench.targets


def test_patterns_choose_and_unknown_names_are_refused() -> None:
    assert all(bench.name.startswith("mpub") for bench in choose(["mpub*"]))
    exact = BENCHES[-1].name
    assert [bench.name for bench in choose([exact])] == [exact]
    with pytest.raises(ConfigError, match="penstock bench list"):
        choose(["mpub*", "no_such_bench"])


def test_a_parameter_changes_the_name() -> None:
    (bench,) = choose(["idle5000conn"], params={"connections": "10_000"})
    assert bench.name == "idle10kconn"
    assert bench.params["connections"] == 10_000


def test_a_parameter_that_is_unknown_or_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter 'color'"):
        choose(["idle5000conn"], params={"color": "red"})
    with pytest.raises(ConfigError, match="'many' is none"):
        choose(["idle5000conn"], params={"connections": "many"})


def test_targets_are_bounds_that_their_value_keeps() -> None:
    assert at_most("x", 2).met(2)
    assert not at_most("x", 2).met(2.1)
    assert at_least("x", 150_000).met(150_000)
    assert not at_least("x", 150_000).met(1)
    assert str(at_least("x", 150_000)) == "≥ 150,000"
