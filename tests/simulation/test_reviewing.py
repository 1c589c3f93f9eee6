"""People decide reviews while everything goes wrong, and every reader is told one outcome."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.faults import calm
from tests.simulation.reviewing import reviewing

SEEDS = 24
SEEDS_ALL_SEEN = 100

SITUATIONS = {
    "cancelled",
    "change acknowledged",
    "decided before",
    "decided by a divided vote",
    "decided by votes",
    "decided over a fence",
    "decided within 16 ms of the expiry",
    "decision acknowledged",
    "expired",
    "extended",
    "finished",
    "refused as AlreadyVoted",
    "refused as NotAssigned",
    "refused as ReviewChanged",
    "refused as ReviewClaimed",
    "review approved",
    "review claimed",
    "review commented",
    "review edited",
    "review expired",
    "review fenced",
    "review reassigned",
    "review rejected",
    "review released",
    "review withdrawn",
    "shown again with the difference",
    "told of the expiry of its run",
    "vote acknowledged",
    # Of the faults, those that a decision has to survive.
    "crash",
    "late_write",
    "lost_answer",
    "slow_signal",
    "stall",
}


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
def test_a_review_has_one_outcome(first: int) -> None:
    for seed in range(first, first + 8):
        reviewing(seed)


def test_every_situation_comes_about() -> None:
    missing = set(SITUATIONS)
    for seed in range(SEEDS_ALL_SEEN):
        missing -= reviewing(seed).keys()
        if not missing:
            return
    pytest.fail(f"{SEEDS_ALL_SEEN} seeds never showed {sorted(missing)}")


def test_a_seed_replays_exactly() -> None:
    assert reviewing(3) == reviewing(3) != reviewing(4)


def test_people_who_meet_no_trouble_decide_everything_in_time() -> None:
    seen: Counter[str] = Counter()
    for seed in range(4):
        seen += reviewing(seed, calm())
    assert seen["decision acknowledged"]
    assert seen["review asked for"] == seen["review decided"]
