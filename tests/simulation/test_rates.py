"""A quota keeps its limit and its pace, however slow the processes are that share it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.bugs import planted
from tests.simulation.faults import calm
from tests.simulation.memory_bugs import RATE_BUGS
from tests.simulation.promises import Broken
from tests.simulation.rates import rates

SEEDS = 20
SEEDS_A_BUG = 30


@pytest.mark.parametrize("seconds", [(0.05, 0.1), (0.05, 0.5), (0.4, 0.8)])
def test_processes_that_are_slow_in_everything_get_on(seconds: tuple[float, float]) -> None:
    least, most = seconds
    plan = calm().evolve(sluggish=1, sluggish_seconds_min=least, sluggish_seconds_max=most)
    seen: Counter[str] = Counter()
    for seed in range(3):
        seen += rates(seed, plan)
    assert seen["missed its moment"]


def test_a_crowd_keeps_the_limit_and_gets_on() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += rates(seed)
    assert seen["missed its moment"]
    assert seen["a window was full"]


@pytest.mark.parametrize("name", RATE_BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    with planted(name):
        for seed in range(SEEDS_A_BUG):
            try:
                rates(seed)
            except Broken as error:
                print(f"{name} is found by seed {seed}: {error}")
                return
    pytest.fail(f"{name} was not found in {SEEDS_A_BUG} seeds")
