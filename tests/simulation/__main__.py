"""Runs fleets by their seeds: ``python -m tests.simulation 7`` or ``0-99``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from time import perf_counter

from tests.simulation.fleet import fleet
from tests.simulation.reduction import WHOLE, Reduction
from tests.simulation.seeds import told_of


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"must be a seed or a range such as 0-99, got {text!r}")
    return range(int(first), int(last or first) + 1)


def _reduction(text: str) -> Reduction:
    try:
        return Reduction.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", type=_seeds, help="one seed, or a range of them: 0-99")
    parser.add_argument("--trace", metavar="TEXT", help="print the lines in which the text occurs")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes to run them in")
    parser.add_argument(
        "--reduced",
        metavar="PARTS",
        type=_reduction,
        default=WHOLE,
        help="leave parts of the seed out, as `make soak` found that it still breaks",
    )
    asked = parser.parse_args()
    logging.disable()
    seeds: range = asked.seeds
    faults: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    broken = 0
    began = perf_counter()
    with told_of(seeds, asked.trace, asked.jobs, reduction=asked.reduced) as every:
        for told in every:
            faults += told.faults
            seen += told.seen
            if told.broken is not None:
                broken += 1
                print(f"seed {told.seed}: {told.broken}", flush=True)
            if told.traced is not None:
                print(told.traced)
    seconds = perf_counter() - began
    if broken and len(seeds) == 1:
        fleet(seeds[0], reduction=asked.reduced)  # once more, for its traceback and its trace
    print(f"{len(seeds)} seeds, {broken} broken, {seconds / len(seeds):.3f} s each")
    for counted in (faults, seen):
        print(", ".join(f"{kind} {count}" for kind, count in sorted(counted.items())))
    # A loop over ranges must notice what the last lines do not say.
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
