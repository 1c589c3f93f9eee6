"""A quota keeps its limit and its pace, however slow the processes are that share it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.faults import calm
from tests.simulation.rates import rates

SEEDS = 20


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
