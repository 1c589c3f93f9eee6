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

    in_flight: set[Place]
    """What was asked for before the kill, and does not stand in the store."""
    repeated: set[Place]
    recorded_repeated: set[Place]
    done_twice: set[Place]
    told: dict[str, Any]


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
            in_flight=before - recorded,
            repeated=again,
            recorded_repeated=again & recorded,
            done_twice=done_twice(ledger.asked),
            told=told,
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


PEERS = {
    "DBOS, ten steps": Contestant(PEERS_PYTHON, "dbos_crash.py"),
    "LangGraph, ten nodes": Contestant(PEERS_PYTHON, "langgraph_crash.py", ("--effects=nodes",)),
    "LangGraph, ten tasks": Contestant(PEERS_PYTHON, "langgraph_crash.py", ("--effects=tasks",)),
    "LangGraph, one node": Contestant(PEERS_PYTHON, "langgraph_crash.py", ("--effects=plain",)),
}


def _place_of(receipt: str) -> Place:
    run, step, _ = receipt.split()
    return Place(int(run), int(step))


def measure() -> list[Figure]:
    contestants = PEERS
    if not PEERS_MADE.exists():
        print(
            f"  !! NO COMPARISON: DBOS and LangGraph are not installed, there is no {PEERS_MADE}\n"
            "  !! `make bench` installs them; if it could not, it said why."
        )
        contestants = {}
    CACHE.mkdir(exist_ok=True)
    outcomes = {name: asyncio.run(one.run()) for name, one in contestants.items()}
    _show(outcomes)
    return []


def _show(outcomes: dict[str, Outcome]) -> None:
    print(f"  of {RUNS * STEPS:,} effects, {IN_FLIGHT} runs in flight, killed at half:")
    print(f"  {'':<24}{'in flight':>10}{'repeated':>10}{'recorded, and':>15}{'twice in spite':>16}")
    print(f"  {'':<24}{'unrecorded':>10}{'':>10}{'repeated':>15}{'of keys':>16}")
    for name, outcome in outcomes.items():
        versions = outcome.told["versions"].items()
        print(
            f"  {name:<24}{len(outcome.in_flight):>10}{len(outcome.repeated):>10}"
            f"{len(outcome.recorded_repeated):>15}{len(outcome.done_twice):>16}"
            f"   {', '.join(f'{package} {version}' for package, version in versions)}"
        )
