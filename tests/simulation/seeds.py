"""What becomes of many seeds, in one process or in several."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from typing import Any

from tests.simulation.fleet import fleet
from tests.simulation.reduction import WHOLE, Reduction

__all__ = ["Hung", "Told", "pool", "run_seed", "shown", "told_of"]

SEEDS_AT_ONCE = 4
"""How many seeds a process is handed at once."""
SEED_SECONDS_MAX = 300
"""A seed that takes longer hangs: it takes less than one second."""


class Hung(Exception):
    """A seed did not end."""


@dataclass
class Told:
    """What became of one seed, or of what a reduction left of it."""

    seed: int
    broken: str | None = None
    """The error that it raised, as `shown` writes it."""
    faults: Counter[str] = field(default_factory=Counter[str])
    seen: Counter[str] = field(default_factory=Counter[str])
    traced: str | None = None


@contextmanager
def told_of(
    seeds: Iterable[int], trace: str | None, jobs: int, *, reduction: Reduction = WHOLE
) -> Iterator[Iterable[Told]]:
    """Yield what becomes of the seeds, in their order, whichever of them ends first."""
    run = partial(run_seed, trace=trace, reduction=reduction)
    if jobs == 1:
        yield map(run, seeds)
        return
    processes = pool(jobs)
    try:
        yield processes.map(run, seeds, chunksize=SEEDS_AT_ONCE)
    finally:
        processes.shutdown(cancel_futures=True)


def run_seed(seed: int, *, trace: str | None = None, reduction: Reduction = WHOLE) -> Told:
    """Run a seed; return what broke, or what it covered."""
    try:
        with _bounded():
            outcome = fleet(seed, reduction=reduction)
    except Exception as error:
        return Told(seed, broken=shown(error))
    traced = None if trace is None else outcome.world.trace.about(trace, 10_000)
    return Told(seed, None, outcome.world.faults, outcome.promises.seen, traced)


def shown(error: BaseException) -> str:
    """Return an error as text, which other processes can read."""
    return f"{type(error).__name__}: {error}"


def pool(
    jobs: int, initializer: Callable[..., None] | None = None, *args: Any
) -> ProcessPoolExecutor:
    """Return processes that run seeds; each calls the initializer before its first one.

    They log nothing, leave Ctrl-C to their parent, and end with it.
    """
    # Not forked: a process that has threads, as the pool's owner does, cannot be forked safely.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, _begin, (initializer, args))


# --- in the processes of the pool -----------------------------------------------------------------


def _begin(initializer: Callable[..., None] | None, args: tuple[Any, ...]) -> None:
    logging.disable()
    # Ctrl-C reaches the whole group. The parent decides what it means, and lets us finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise `Hung` where what is inside takes too long."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(SEED_SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _give_up(number: int, frame: Any) -> None:
    raise Hung(f"a seed did not end within {SEED_SECONDS_MAX} s")
