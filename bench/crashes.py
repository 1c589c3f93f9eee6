"""500 runs of ten effects, 32 in flight, kill -9 at half: what is done twice, beside the peers.

The ledger that does the effects stands outside of all contestants, in this process: it kills the
contestant with the effect that makes half of them. Then the contestant's store is read, so that it
is known which effects were recorded; then a second process resumes, and finishes all runs.
``bench/peers/`` has what each contestant does, and by which means it resumes.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.effects import EffectLedger, Place, done_twice, repeated
from bench.figures import Figure
from bench.kernel import CACHE, PEERS_MADE, PEERS_PYTHON
from bench.peers.ten_effects import STEPS

SCRIPTS = Path(__file__).parent / "peers"
RUNS = 500
IN_FLIGHT = 32
SECONDS_MAX = 180  # for one process; the slowest takes about thirty


@dataclass(frozen=True)
class Outcome:
    """What became of the effects of one contestant."""

    unrecorded: set[Place]
    """What was asked for before the kill, and does not stand in the store."""
    repeated: set[Place]
    recorded_repeated: set[Place]
    done_twice: set[Place]
    ambiguous: set[Place]
    """What it asked a person about."""
    versions: dict[str, str]


@dataclass(frozen=True)
class Contestant:
    python: Path
    script: str
    options: tuple[str, ...] = ()

    async def run(self, *, runs: int = RUNS) -> Outcome:
        """Begin, be killed, and resume.

        Raises:
            RuntimeError: The script failed, or ended before half of the effects were done.
        """
        # In .cache and not in /tmp, which on some machines is memory: there a fsync costs nothing.
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as folder:
            return await self._killed_in(folder, runs)

    async def _killed_in(self, folder: str, runs: int) -> Outcome:
        victims: list[Process] = []
        ledger = EffectLedger(alarm_at=runs * STEPS // 2, alarm=lambda: victims[0].kill())
        async with ledger.served():
            options = (f"--runs={runs}", f"--folder={folder}", f"--ledger={ledger.port}")
            victims.append(await self._process("begin", *options))
            await self._ended(victims[0], "begin", code=-signal.SIGKILL)
            await ledger.quiet()
            before = {asked.place for asked in ledger.asked}
            told = await self._ended(await self._process("recorded", *options), "recorded")
            recorded = {_place_of(receipt) for receipt in told["recorded"]}
            told = await self._ended(await self._process("resume", *options), "resume")
        every = {Place(run, step) for run in range(runs) for step in range(STEPS)}
        assert recorded <= before, "it recorded what was never asked for"
        assert before | {asked.place for asked in ledger.asked} == every, "an effect is missing"
        again = repeated(ledger.asked)
        return Outcome(
            unrecorded=before - recorded,
            repeated=again,
            recorded_repeated=again & recorded,
            done_twice=done_twice(ledger.asked),
            ambiguous={Place(run, step) for run, step in told.get("ambiguous", [])},
            versions=told["versions"],
        )

    async def _process(self, part: str, *options: str) -> Process:
        command = [self.python, SCRIPTS / self.script, part, *self.options, *options]
        return await asyncio.create_subprocess_exec(
            *command, f"--in-flight={IN_FLIGHT}", stdout=PIPE, stderr=PIPE
        )

    async def _ended(self, process: Process, part: str, *, code: int = 0) -> dict[str, Any]:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                said, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != code:
            told = complaint.decode()[-2000:]
            raise RuntimeError(f"{self.script} {part} ended with {process.returncode}:\n{told}")
        return json.loads(said) if code == 0 else {}


def _ours(effects: str) -> Contestant:
    return Contestant(Path(sys.executable), "holdfast_crash.py", (f"--effects={effects}",))


def _langgraph(effects: str) -> Contestant:
    return Contestant(PEERS_PYTHON, "langgraph_crash.py", (f"--effects={effects}",))


CALLS, MODELS, ONCE = "Holdfast, calls", "Holdfast, model calls", "Holdfast, at most once"
OURS = {CALLS: _ours("calls"), MODELS: _ours("models"), ONCE: _ours("at_most_once")}
PEERS = {
    "DBOS, ten steps": Contestant(PEERS_PYTHON, "dbos_crash.py"),
    "LangGraph, ten nodes": _langgraph("nodes"),
    "LangGraph, ten tasks": _langgraph("tasks"),
    "LangGraph, one node": _langgraph("plain"),
}


def _place_of(receipt: str) -> Place:
    run, step, _ = receipt.split()
    return Place(int(run), int(step))


def measure() -> list[Figure]:
    contestants = OURS | PEERS
    if not PEERS_MADE.exists():
        print(
            f"  !! NO COMPARISON: DBOS and LangGraph are not installed, there is no {PEERS_MADE}\n"
            "  !! `make bench` installs them; if it could not, it said why."
        )
        contestants = OURS
    CACHE.mkdir(exist_ok=True)
    outcomes = {name: asyncio.run(one.run()) for name, one in contestants.items()}
    _show(outcomes)
    calls, models, once = outcomes[CALLS], outcomes[MODELS], outcomes[ONCE]
    none = {
        "calls repeated that were recorded": calls.recorded_repeated,
        "calls repeated that were not in flight": calls.repeated - calls.unrecorded,
        "calls done twice at a ledger that honours keys": calls.done_twice,
        "model calls paid twice that were recorded": models.recorded_repeated,
        "at_most_once calls repeated": once.repeated,
        "at_most_once calls in flight, not listed as ambiguous": once.unrecorded - once.ambiguous,
    }
    return [
        *(Figure(what, len(found), at_most=0) for what, found in none.items()),
        Figure("model calls paid twice", len(models.repeated), at_most=IN_FLIGHT),
    ]


_COLUMNS = (
    "done, not recorded",
    "asked for again",
    "again though recorded",
    "twice in spite of keys",
)


def _show(outcomes: dict[str, Outcome]) -> None:
    print(f"  {RUNS} runs of {STEPS} effects, {IN_FLIGHT} in flight, kill -9 at half; effects")
    print(f"  {'':<24}{''.join(f'{column:>24}' for column in _COLUMNS)}")
    for name, outcome in outcomes.items():
        counts = [len(outcome.unrecorded), len(outcome.repeated), len(outcome.recorded_repeated)]
        # A model is handed no key: if it is asked twice, it is paid twice.
        counts.append("no key" if name == MODELS else len(outcome.done_twice))
        about = ", ".join(f"{package} {version}" for package, version in outcome.versions.items())
        print(f"  {name:<24}{''.join(f'{count:>24}' for count in counts)}   {about}")
    # The last column is no merit of an engine alone: it needs a key that outlives the crash.
    print(
        "  Keys: Holdfast hands one to the function; for DBOS and LangGraph our scripts make one of"
    )
    print("  the ids that they tell. Without keys, what is asked for again is done again.")
    asked = outcomes[ONCE].ambiguous
    print(f"  {ONCE}: {len(asked)} listed as ambiguous, and settled by a person")
