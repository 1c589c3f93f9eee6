"""Looks for what breaks until its time is up: ``python -m soak [simulator] [processes]``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from holdfast.clock import SystemIds
from soak.findings import FOLDER, Findings
from soak.halt import Halt
from soak.rounds import ProcessSoak
from soak.simulator import SimulatorSoak

PARTS = ("simulator", "processes")
SECONDS = 600.0
SIMULATOR_SHARE = 0.6
FRESH_FROM = 1_000_000
FRESH_SEEDS = 10**9
"""Seeds below the first are run by CI, or were looked at by somebody."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{' or '.join(PARTS)}; both unless said")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long, about")
    parser.add_argument("--first", type=int, help="the first seed, to repeat a soak")
    asked = parser.parse_args(arguments)
    parts: list[str] = asked.parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    first = asked.first
    if first is None:
        first = FRESH_FROM + int(SystemIds().random() * FRESH_SEEDS)
    halt = Halt(asked.seconds)
    halt.catch_signals()
    findings = Findings()
    print(f"soak of {asked.seconds:g} s from seed {first}; findings are kept in {FOLDER}")
    broken = 0
    if "simulator" in parts:
        share = SIMULATOR_SHARE if "processes" in parts else 1.0
        broken += _simulate(findings, halt.part(share), first)
    if "processes" in parts:
        broken += _process(findings, halt.part(1.0), first)
    print(f"broken: {broken}" if broken else "nothing broke")
    return 1 if broken else 0


def _simulate(findings: Findings, halt: Halt, first: int) -> int:
    print("== simulator")
    soak = SimulatorSoak(findings, first)
    known = soak.retry_known(halt)
    soak.soak(halt)
    rate = soak.seeds / soak.seconds if soak.seconds else 0.0
    last = first + max(soak.seeds - 1, 0)
    print(
        f"  {soak.seeds} seeds ({first}–{last}) in {soak.seconds:.0f} s on {soak.cores} cores, "
        f"{rate:.2f} a second; {soak.broken} broken, {known} known still break"
    )
    _show("faults", soak.faults)
    _show("situations", soak.seen)
    return soak.broken + known


def _process(findings: Findings, halt: Halt, first: int) -> int:
    print("== processes")
    soak = ProcessSoak(findings, first)
    known = soak.retry_known(halt)
    soak.soak(halt)
    print(
        f"  {soak.rounds} rounds in {soak.seconds:.0f} s; {soak.broken} broken, "
        f"{known} known still break"
    )
    _show("done to it", soak.done)
    return soak.broken + known


def _show(what: str, counted: Counter[str]) -> None:
    print(f"  {what}: {', '.join(f'{kind} {count}' for kind, count in sorted(counted.items()))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
