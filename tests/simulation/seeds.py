"""What becomes of many seeds, in one process or in several."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from tests.simulation.fleet import fleet
from tests.simulation.reduction import WHOLE, Reduction

__all__ = ["Told", "told_of"]

SEEDS_AT_ONCE = 4
"""How many seeds a process is handed at once."""


@dataclass
class Told:
    """What became of one seed."""

    seed: int
    broken: str | None = None
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    traced: str | None = None


@contextmanager
def told_of(
    seeds: Iterable[int], trace: str | None, jobs: int, *, reduction: Reduction = WHOLE
) -> Iterator[Iterable[Told]]:
    """Yield what becomes of the seeds, in their order, whoever is the first to be done."""
    run = partial(_run, trace=trace, reduction=reduction)
    if jobs == 1:
        yield map(run, seeds)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, logging.disable) as processes:
        yield processes.map(run, seeds, chunksize=SEEDS_AT_ONCE)


def _run(seed: int, *, trace: str | None, reduction: Reduction) -> Told:
    try:
        outcome = fleet(seed, reduction=reduction)
    except Exception as error:
        return Told(seed, broken=f"{type(error).__name__}: {error}")
    traced = None if trace is None else outcome.world.trace.about(trace, 10_000)
    return Told(seed, None, outcome.world.faults, outcome.promises.seen, traced)
