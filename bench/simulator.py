"""How many seeds a second the simulator runs, beside an earlier revision of this project.

Both run the same range of seeds in turns, each in a process and a work tree of its own. A seed does
not mean the same to both; so what it covers is printed as well: writes that were checked, faults
that took effect, and situations that came about.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from math import nan
from pathlib import Path

import msgspec

from bench.figures import Figure, ratio, show
from bench.revisions import ROOT, missing, tree

REVISION = os.environ.get("SIMULATOR_BEFORE", "02d6f4d")
"""What to compare with: the last revision before the simulator was made fast."""
SEEDS_FIRST = 5_000_000
SEEDS = 8
ROUNDS = 6
RATIO_MIN = 3.0

# Handed to both trees as it is: the earlier one has no such module.
_PROGRAM = """
import json, logging, sys, time
from collections import Counter
from tests.simulation.fleet import fleet

logging.disable()
fleet(0)
cpu, wall = time.process_time(), time.perf_counter()
steps, faults, seen, broken = 0, Counter(), Counter(), []
first, count = int(sys.argv[1]), int(sys.argv[2])
for seed in range(first, first + count):
    try:
        outcome = fleet(seed)
    except Exception:
        broken.append(seed)
        continue
    steps += outcome.promises.steps
    faults += outcome.world.faults
    seen += outcome.promises.seen
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
told = dict(cpu=cpu, wall=wall, steps=steps, faults=faults, seen=seen, broken=broken)
print(json.dumps(told))
"""


class Told(msgspec.Struct):
    """What one process measured."""

    cpu: float
    wall: float
    steps: int
    faults: dict[str, int]
    seen: dict[str, int]
    broken: list[int]


def measure() -> list[Figure]:
    """Measure both, print it, and return what it must reach."""
    what = f"simulator: seeds a CPU second / those of {REVISION}"
    with tree(REVISION) as before:
        if before is None:
            print(f"  Nothing to compare with: {missing(REVISION, 'SIMULATOR_BEFORE')}")
            return [Figure(what, nan, at_least=RATIO_MIN)]
        trees = {"before": before, "now": ROOT}
        told: dict[str, list[Told]] = {name: [] for name in trees}
        for turn in range(ROUNDS):
            for name, folder in trees.items():
                told[name].append(_run(folder, SEEDS_FIRST + turn * SEEDS))
    cpu = [{name: SEEDS / told[name][turn].cpu for name in trees} for turn in range(ROUNDS)]
    wall = [{name: SEEDS / told[name][turn].wall for name in trees} for turn in range(ROUNDS)]
    show(cpu, "seeds a CPU second", digits=2)
    show(wall, "seeds a second", digits=2)
    _show_coverage(told)
    return [Figure(what, ratio(cpu, "now", "before"), at_least=RATIO_MIN)]


def _run(folder: Path, first: int) -> Told:
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(first), str(SEEDS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}/src:{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"the simulator in {folder} failed:\n{ran.stderr}")
    return msgspec.json.decode(ran.stdout, type=Told)


def _show_coverage(told: dict[str, list[Told]]) -> None:
    """Print what a seed covers, before and now."""
    print(f"  {'a seed covers':<48} {'before':>12} {'now':>12}")
    _row("writes that were checked", {n: sum(t.steps for t in told[n]) for n in told})
    for title, name in (("fault: ", "faults"), ("situation: ", "seen")):
        counted = {n: _sum(getattr(each, name) for each in told[n]) for n in told}
        _row(f"{title}all", {n: counts.total() for n, counts in counted.items()})
        for kind in sorted({kind for counts in counted.values() for kind in counts}):
            _row(title + kind, {n: counts[kind] for n, counts in counted.items()})
    for name, every in told.items():
        broken = [seed for each in every for seed in each.broken]
        if broken:
            print(f"  {name}: {len(broken)} seeds broke a promise, and count in no row: {broken}")


def _row(what: str, counts: dict[str, int]) -> None:
    a_seed = [count / (ROUNDS * SEEDS) for count in counts.values()]
    print(f"  {what:<48} " + " ".join(f"{count:>12.2f}" for count in a_seed))


def _sum(counters: Iterator[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in counters:
        total.update(counts)
    return total
