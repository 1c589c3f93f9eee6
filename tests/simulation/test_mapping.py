"""Runs map while everything goes wrong: each item counts once, and no result is lost."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.faults import calm
from tests.simulation.mapping import mapping

SEEDS = 32
SEEDS_ALL_SEEN = 120

SITUATIONS = {
    "cancelled",
    "cancelled with its parent",
    "child finished",
    "chunk cancelled before it was made",
    "chunk counted after a stop",
    "chunk given away",
    "chunk of a later round",
    "chunk with failures",
    "claimed to pay",
    "concurrency was full",
    "expired",
    "finished",
    "item retried after the end of its run",
    "item retried alone",
    "lane helped",
    "lane stopped: ended",
    "lane stopped: failed",
    "made again",
    "map begun again",
    "map failed",
    "map finished",
    "map read by its run",
    "retry of an item acknowledged",
    "run retried",
    "snapshot of branches",
    # Of the faults, those that lanes have to survive.
    "blob_lost_answer",
    "blob_unreachable",
    "crash",
    "effect_crash",
    "late_write",
    "lost_answer",
    "stall",
}


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
def test_every_item_counts_once(first: int) -> None:
    for seed in range(first, first + 8):
        mapping(seed)


def test_every_situation_comes_about() -> None:
    missing = set(SITUATIONS)
    for seed in range(SEEDS_ALL_SEEN):
        missing -= {what for what, count in mapping(seed).items() if count}
        if not missing:
            return
    pytest.fail(f"{SEEDS_ALL_SEEN} seeds never showed {sorted(missing)}")


def test_a_seed_replays_exactly() -> None:
    assert mapping(3) == mapping(3) != mapping(4)


def test_runs_that_meet_no_trouble_finish_all_maps() -> None:
    seen: Counter[str] = Counter()
    for seed in range(6):
        seen += mapping(seed, calm())
    assert seen["map finished"]
    # A run that ends takes no further ends of its maps.
    assert seen["map failed"] + seen["map finished"] <= seen["map ended"]
