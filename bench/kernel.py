"""Durable ten-step workflows on SQLite, 32 in flight: Holdfast against DBOS and LangGraph.

Each contestant runs in a fresh process with a fresh file; ``bench/peers/`` has what each does, and
with which settings. ``make bench`` installs the peers into ``.cache/peers``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import median

from bench.figures import Figure, ratio
from bench.revisions import cost_beside

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
PEERS_MADE = CACHE / "peers" / ".made"
PEERS_PYTHON = CACHE / "peers" / "bin" / "python"
IN_FLIGHT = 32
ROUNDS = 3
SECONDS_MAX = 120  # a turn takes about eight
STEPS_A_SECOND_AIM = 10_000


@dataclass(frozen=True)
class Outcome:
    """What a contestant's turn came to, in the words of the table's columns."""

    steps_a_second: float
    cpu_ms_a_step: float
    p50_ms: float
    p99_ms: float
    about: str


@dataclass(frozen=True)
class Contestant:
    python: Path
    script: str
    workflows: int
    options: tuple[str, ...] = ()

    def run(self, sources: Path | None = None) -> Outcome:
        """Take one turn, in a fresh process with a fresh file; ours may be of other sources.

        Raises:
            RuntimeError: The script failed, or found something wrong with what was done.
        """
        # In .cache and not in /tmp, which on some machines is memory: there a fsync costs nothing.
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
            command = [self.python, ROOT / "bench" / "peers" / self.script, *self.options]
            command += ["--workflows", str(self.workflows), "--in-flight", str(IN_FLIGHT)]
            command += ["--folder", folder]
            done = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | ({} if sources is None else {"PYTHONPATH": str(sources)}),
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{self.script} failed:\n{done.stderr[-2000:]}")
        line = json.loads(done.stdout)
        about = line["versions"] | line["settings"]
        return Outcome(
            steps_a_second=line["steps"] / line["seconds"],
            cpu_ms_a_step=line["cpu_seconds"] / line["steps"] * 1000,
            p50_ms=line["p50_ms"],
            p99_ms=line["p99_ms"],
            about=", ".join(f"{key} {value}" for key, value in about.items()),
        )


# So many workflows that a turn takes some eight seconds.
OURS = {"Holdfast": Contestant(Path(sys.executable), "holdfast_runner.py", 5_000)}
SHORT = Contestant(Path(sys.executable), "holdfast_runner.py", 600)
PEERS = {
    "DBOS, tuned": Contestant(PEERS_PYTHON, "dbos_runner.py", 300),
    "DBOS, as it comes": Contestant(PEERS_PYTHON, "dbos_runner.py", 100, ("--as-it-comes",)),
    "LangGraph": Contestant(PEERS_PYTHON, "langgraph_runner.py", 300),
}


def measure() -> list[Figure]:
    contestants = OURS | PEERS
    if not PEERS_MADE.exists():
        print(
            f"  !! NO COMPARISON: DBOS and LangGraph are not installed, there is no {PEERS_MADE}\n"
            "  !! `make bench` installs them; if it could not, it said why."
        )
        contestants = OURS
    CACHE.mkdir(exist_ok=True)
    # A turn is long enough for other work to hit one contestant and spare the next.
    print(f"  load before: {os.getloadavg()[0]:.1f}; above 1 the ratios are not to be trusted")
    rounds = [
        {name: contestant.run() for name, contestant in contestants.items()} for _ in range(ROUNDS)
    ]
    _show(rounds)
    cpu_ms = _middle(rounds, "Holdfast", "cpu_ms_a_step")
    # The bars are set against DBOS as it comes; what an expert makes of it is told beside them.
    for column in ("steps_a_second", "p99_ms"):
        tuned = _against("DBOS, tuned", rounds, column, at_least=0)
        print(f"  {tuned.what}: {tuned.ratio:.2f}")
    return [
        _against("DBOS, as it comes", rounds, "steps_a_second", at_least=10),
        _against("LangGraph", rounds, "steps_a_second", at_least=6),
        Figure("Holdfast's CPU ms a step", cpu_ms, at_most=0.25),
        _against("DBOS, as it comes", rounds, "p99_ms", at_most=0.2),
        _against("LangGraph", rounds, "p99_ms", at_most=0.2),
        cost_beside("CPU ms a step", lambda sources: SHORT.run(sources).cpu_ms_a_step),
    ]


def _against(peer: str, rounds: list[dict[str, Outcome]], column: str, **bar: float) -> Figure:
    values = [
        {name: getattr(outcome, column) for name, outcome in outcomes.items()}
        for outcomes in rounds
    ]
    measured = ratio(values, "Holdfast", peer) if peer in rounds[0] else nan
    return Figure(f"Holdfast's {column.replace('_', ' ')} / that of {peer}", measured, **bar)


def _middle(rounds: list[dict[str, Outcome]], name: str, column: str) -> float:
    return median(getattr(outcomes[name], column) for outcomes in rounds)


def _show(rounds: list[dict[str, Outcome]]) -> None:
    print(
        f"  {'':<18}{'steps/s':>8}{'all rounds':>18}{'CPU ms/step':>13}{'p50 ms':>9}{'p99 ms':>9}"
    )
    for name, outcome in rounds[0].items():
        rates = sorted(outcomes[name].steps_a_second for outcomes in rounds)
        print(
            f"  {name:<18}{median(rates):>8,.0f}{f'{rates[0]:,.0f} to {rates[-1]:,.0f}':>18}"
            f"{_middle(rounds, name, 'cpu_ms_a_step'):>13.3f}"
            f"{_middle(rounds, name, 'p50_ms'):>9,.1f}{_middle(rounds, name, 'p99_ms'):>9,.1f}"
            f"   {outcome.about}"
        )
    reached = _middle(rounds, "Holdfast", "steps_a_second")
    print(f"  Holdfast steps/s: {reached:,.0f} of the {STEPS_A_SECOND_AIM:,} aimed at")
