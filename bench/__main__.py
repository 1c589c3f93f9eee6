"""Runs the benchmarks that are named, or all of them, and prints what each must reach."""

from __future__ import annotations

import sys

from bench import (
    branches,
    calls,
    crashes,
    dynamodb,
    fairness,
    fan_out,
    flood,
    following,
    http,
    kernel,
    large_document,
    load,
    loops,
    pausing,
    quota,
    reaping,
    resume,
    scale,
    simulator,
    sizes,
    sqlite,
)
from bench.figures import Figure

BENCHMARKS = {
    "sqlite": sqlite.measure,
    "dynamodb": dynamodb.measure,
    "kernel": kernel.measure,
    "pausing": pausing.measure,
    "fairness": fairness.measure,
    "flood": flood.measure,
    "following": following.measure,
    "loops": loops.measure,
    "resume": resume.measure,
    "scale": scale.measure,
    "branches": branches.measure,
    "fan_out": fan_out.measure,
    "quota": quota.measure,
    "calls": calls.measure,
    "reaping": reaping.measure,
    "crashes": crashes.measure,
    "http": http.measure,
    "load": load.measure,
    "sizes": sizes.measure,
    "simulator": simulator.measure,
    "large_document": large_document.measure,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
        return 2
    figures: list[Figure] = []
    for name in names or BENCHMARKS:
        print(f"== {name}")
        figures += BENCHMARKS[name]()
    print("\n== bars")
    for figure in figures:
        print(figure)
    return 0 if all(figure.reached for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
