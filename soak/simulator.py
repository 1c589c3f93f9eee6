"""Runs fresh seeds of the simulator on all cores, and reduces those that break."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.synchronize import Event
from typing import Any, TypeAlias

from soak.findings import Finding, Findings, commit, kind_of, told
from soak.halt import Halt
from soak.minimiser import ATTEMPTS_MAX, Minimiser, Suspect
from tests.simulation.fleet import fleet
from tests.simulation.reduction import WHOLE, Reduction

__all__ = ["SimulatorSoak"]

SEED_SECONDS_MAX = 300
"""A seed that takes longer has hung: it takes less than one."""
LOOK_SECONDS = 0.5
MINIMISING_SECONDS_MAX = 300.0


class Hung(Exception):
    """A seed did not end."""


@dataclass(frozen=True)
class Trial:
    """What became of a seed, or of what a reduction left of it."""

    seed: int
    kind: str = ""
    """Of what broke; empty where nothing did."""
    message: str = ""
    faults: Counter[str] = field(default_factory=Counter[str])
    seen: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True)
class Reduced:
    """What the minimiser left of a seed."""

    finding: str
    reduction: str
    attempts: int


Work: TypeAlias = "Future[Trial] | Future[Reduced]"


@dataclass
class SimulatorSoak:
    """Runs seeds from a first one upwards until it is halted, and counts what they covered."""

    findings: Findings
    first: int
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    seeds: int = 0
    seconds: float = 0.0
    broken: int = 0
    attempts_max: int = ATTEMPTS_MAX
    """How many fleets the minimiser may run for one finding."""
    executor: Callable[[int, Event], Executor] = field(default_factory=lambda: _processes)
    faults: Counter[str] = field(default_factory=Counter[str])
    seen: Counter[str] = field(default_factory=Counter[str])

    def retry_known(self, halt: Halt) -> int:
        """Try everything again that ever broke; return how many findings still do."""
        known = [finding for finding in self.findings if finding.where == "simulator"]
        breaking = 0
        if not known:
            return breaking
        with self._pool() as (pool, _):
            trials = [
                # After a change all dice fall in another way: the less there is of a seed, the more
                # likely it breaks again.
                (one, [pool.submit(tried, one.seed, text) for text in {"", one.reduced or ""}])
                for one in known
            ]
            for finding, futures in trials:
                if halt.is_over:
                    break
                found = [one for one in (each.result() for each in futures) if one.kind]
                breaking += bool(found)
                self._judge(finding, found[0] if found else None)
        return breaking

    def soak(self, halt: Halt) -> None:
        """Run seeds until halted; keep what breaks, and reduce the first of each kind."""
        began = time.monotonic()
        fresh = itertools.count(self.first)
        with self._pool() as (pool, stopping):
            under_way: set[Work] = {self._reduce(pool, one) for one in self._unreduced()}
            while not halt.is_over:
                while len(under_way) < 2 * self.cores:
                    under_way.add(pool.submit(tried, next(fresh)))
                done, under_way = wait(under_way, LOOK_SECONDS, FIRST_COMPLETED)
                under_way |= {work for one in done for work in self._heard(pool, one.result())}
            stopping.set()
            for left in under_way:
                if not left.cancel():
                    self._heard(None, left.result())
        self.seconds += time.monotonic() - began

    def _heard(self, pool: Executor | None, result: Trial | Reduced) -> list[Work]:
        """Take in what a core found; return what is to be done about it."""
        if isinstance(result, Reduced):
            self._keep_reduced(result)
            return []
        self.seeds += 1
        self.faults += result.faults
        self.seen += result.seen
        if not result.kind:
            return []
        self.broken += 1
        finding = Finding(
            where="simulator",
            seed=result.seed,
            kind=result.kind,
            message=result.message,
            commit=commit(),
            again=f"python -m tests.simulation {result.seed}",
        )
        is_new = finding.kind not in {one.kind for one in self.findings if one.reduced is not None}
        self.findings.keep(finding)
        print(f"  BROKEN: seed {finding.seed}: {finding.message}", flush=True)
        return [self._reduce(pool, finding)] if pool is not None and is_new else []

    def _reduce(self, pool: Executor, finding: Finding) -> Future[Reduced]:
        given = (finding.name, finding.seed, finding.kind, finding.message)
        return pool.submit(reduced, *given, attempts_max=self.attempts_max)

    def _keep_reduced(self, result: Reduced) -> None:
        for finding in self.findings:
            if finding.name == result.finding:
                finding.reduced = result.reduction
                finding.again = f"python -m tests.simulation {finding.seed}"
                if result.reduction:
                    finding.again += f" --reduced {result.reduction}"
                self.findings.keep(finding)
                print(
                    f"  reduced seed {finding.seed} in {result.attempts} attempts: {finding.again}"
                )

    def _unreduced(self) -> list[Finding]:
        """Return one finding of each kind that breaks and was not reduced yet."""
        known = {one.kind for one in self.findings if one.reduced is not None}
        found = {
            one.kind: one
            for one in self.findings
            if one.where == "simulator" and one.status == "breaks" and one.kind not in known
        }
        return list(found.values())

    def _judge(self, finding: Finding, found: Trial | None) -> None:
        before, finding.tried = finding.status, commit()
        finding.status = "gone" if found is None else "breaks"
        self.findings.keep(finding)
        if found is not None:
            print(f"  still breaks: seed {finding.seed}: {found.message}")
        elif before == "breaks":
            print(f"  gone: seed {finding.seed}: {finding.kind}")

    @contextmanager
    def _pool(self) -> Iterator[tuple[Executor, Event]]:
        stopping = multiprocessing.get_context("spawn").Event()
        pool = self.executor(self.cores, stopping)
        try:
            yield pool, stopping
        finally:
            stopping.set()
            pool.shutdown(cancel_futures=True)


def _processes(cores: int, stopping: Event) -> Executor:
    # Not forked: a process that has threads, as the pool's owner does, cannot be forked safely.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(cores, mp_context=context, initializer=_begin, initargs=(stopping,))


# --- in the processes of the pool -----------------------------------------------------------------


_stopping: Event | None = None


def _begin(stopping: Event) -> None:
    global _stopping
    _stopping = stopping
    logging.disable()
    # Whoever presses Ctrl-C means the soak, which then lets us finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _give_up)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _is_stopping() -> bool:
    return _stopping is not None and _stopping.is_set()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _give_up(number: int, frame: Any) -> None:
    raise Hung(f"a seed did not end within {SEED_SECONDS_MAX} s")


def tried(seed: int, reduction: str = "") -> Trial:
    """Run a seed; return what broke, or what it covered."""
    signal.alarm(SEED_SECONDS_MAX)
    try:
        outcome = fleet(seed, reduction=Reduction.parse(reduction) if reduction else WHOLE)
    except Exception as error:
        return Trial(seed, kind_of(error), told(error))
    finally:
        signal.alarm(0)
    return Trial(seed, faults=outcome.world.faults, seen=outcome.promises.seen)


def reduced(finding: str, seed: int, kind: str, message: str, *, attempts_max: int) -> Reduced:
    """Reduce a seed, for as long as the soak goes on."""
    deadline = time.monotonic() + MINIMISING_SECONDS_MAX
    minimiser = Minimiser(
        Suspect(seed),
        kind,
        message=message,
        attempts_max=attempts_max,
        is_over=lambda: _is_stopping() or time.monotonic() > deadline,
    )
    return Reduced(finding, str(minimiser.minimise()), minimiser.attempts)
