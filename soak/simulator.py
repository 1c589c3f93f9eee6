"""Runs fresh seeds of the simulator on all cores, and reduces those that break."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import TypeAlias

from soak.findings import MESSAGE_CHARS_MAX, Finding, Findings, commit, kind_of
from soak.halt import Halt
from soak.minimiser import ATTEMPTS_MAX, Minimiser, Suspect
from tests.simulation import seeds
from tests.simulation.reduction import Reduction
from tests.simulation.seeds import Told, run_seed

__all__ = ["SimulatorSoak"]

LOOK_SECONDS = 0.5
MINIMISING_SECONDS_MAX = 300.0


@dataclass(frozen=True)
class Reduced:
    """What the minimiser left of a seed."""

    finding: str
    reduction: str
    attempts: int


Work: TypeAlias = "Future[Told] | Future[Reduced]"


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
                (one, [self._run(pool, one.seed, text) for text in {"", one.reduced or ""}])
                for one in known
            ]
            for finding, futures in trials:
                if halt.is_over:
                    break
                found = [one for one in (each.result() for each in futures) if one.broken]
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
                    under_way.add(self._run(pool, next(fresh)))
                done, under_way = wait(under_way, LOOK_SECONDS, FIRST_COMPLETED)
                under_way |= {work for one in done for work in self._heard(pool, one.result())}
            stopping.set()
            for left in under_way:
                if not left.cancel():
                    self._heard(None, left.result())
        self.seconds += time.monotonic() - began

    def _run(self, pool: Executor, seed: int, reduction: str = "") -> Future[Told]:
        return pool.submit(run_seed, seed, reduction=Reduction.parse(reduction))

    def _heard(self, pool: Executor | None, result: Told | Reduced) -> list[Work]:
        """Take in what a core found; return what is to be done about it."""
        if isinstance(result, Reduced):
            self._keep_reduced(result)
            return []
        self.seeds += 1
        self.faults += result.faults
        self.seen += result.seen
        if result.broken is None:
            return []
        self.broken += 1
        finding = Finding(
            where="simulator",
            seed=result.seed,
            kind=kind_of(result.broken),
            message=result.broken[:MESSAGE_CHARS_MAX],
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

    def _judge(self, finding: Finding, found: Told | None) -> None:
        before, finding.tried = finding.status, commit()
        finding.status = "gone" if found is None else "breaks"
        self.findings.keep(finding)
        if found is not None:
            print(f"  still breaks: seed {finding.seed}: {found.broken!s:.{MESSAGE_CHARS_MAX}}")
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
    return seeds.pool(cores, _hear_of, stopping)


# --- in the processes of the pool -----------------------------------------------------------------


_stopping: Event | None = None


def _hear_of(stopping: Event) -> None:
    """Know the event by which the soak tells its processes that it ends."""
    global _stopping
    _stopping = stopping


def _is_stopping() -> bool:
    return _stopping is not None and _stopping.is_set()


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
