"""Runs fleets by their seeds: ``python -m tests.simulation 7`` or ``0-99``."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from time import perf_counter

from tests.simulation.fleet import fleet
from tests.simulation.reduction import WHOLE, Reduction


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", help="one seed, or a range of them: 0-99")
    parser.add_argument("--trace", metavar="TEXT", help="print the lines in which the text occurs")
    parser.add_argument(
        "--reduced",
        metavar="PARTS",
        type=Reduction.parse,
        default=WHOLE,
        help="leave parts of the seed out, as `make soak` found that it still breaks",
    )
    asked = parser.parse_args()
    logging.disable()
    first, _, last = asked.seeds.partition("-")
    faults: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    began = perf_counter()
    seeds = range(int(first), int(last or first) + 1)
    broken = 0
    for seed in seeds:
        try:
            outcome = fleet(seed, reduction=asked.reduced)
        except Exception as error:
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if len(seeds) == 1:
                raise
            continue
        faults += outcome.world.faults
        seen += outcome.promises.seen
        if asked.trace is not None:
            print(outcome.world.trace.about(asked.trace, 10_000))
    seconds = perf_counter() - began
    print(f"{len(seeds)} seeds, {broken} broken, {seconds / len(seeds):.3f} s each")
    for counted in (faults, seen):
        print(", ".join(f"{kind} {count}" for kind, count in sorted(counted.items())))


if __name__ == "__main__":
    main()
