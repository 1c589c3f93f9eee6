"""The verdict on a round: nothing to say where all went well, and every kind of loss is seen."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast import Holdfast
from holdfast.storage import open as open_store
from soak.client import do
from soak.errands import Errand
from soak.trouble import Span
from soak.verdict import Evidence, judge
from tests.crash import flows
from tests.crash.flows import TOKENS_A_QUESTION, Called, calls, effects, effects_folder

DEADLINE_SECONDS = 60
LONG_MS = 60_000
ERRANDS = [
    Errand(number=0, at_seconds=0, verb="start", run="ten-0", graph="ten"),
    Errand(number=1, at_seconds=0, verb="start", run="ten_calls-0", graph="ten_calls"),
    Errand(number=2, at_seconds=0, verb="start", run="ten_calls_once-0", graph="ten_calls_once"),
    Errand(number=3, at_seconds=0, verb="start", run="varied-0", graph="varied"),
    Errand(number=4, at_seconds=0, verb="signal", run="varied-0", name="answer", id="one"),
    Errand(number=5, at_seconds=0, verb="signal", run="varied-0", name="answer", id="two"),
    Errand(
        number=6,
        at_seconds=0,
        verb="start",
        run="paid-0",
        graph="paid",
        given={"questions": 1, "heirs": 1},
        tokens=2 * TOKENS_A_QUESTION,
    ),
    Errand(number=7, at_seconds=0, verb="start", run="brief-0", graph="brief", session="chat"),
    Errand(number=8, at_seconds=0, verb="start", run="brief-1", graph="brief", session="chat"),
]


@asynccontextmanager
async def worked_through(folder: Path) -> AsyncIterator[Evidence]:
    """Yield what a round leaves behind in which nothing went wrong."""
    url = f"sqlite:///{folder}/runs.db"
    made, log = folder / "effects", folder / "log"
    made.mkdir()
    log.write_text("")
    effects_folder.set(made)
    graphs = [flows.ten, flows.ten_calls, flows.ten_calls_once, flows.varied, flows.paid]
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(url, models=flows.MODELS) as hf,
        open_store(url) as store,
    ):
        async with hf.worker([*graphs, flows.brief], poll=0.05):
            for errand in ERRANDS:
                await do(hf, errand)
            for errand in ERRANDS:
                await hf.run(errand.run).result()
        done = dict.fromkeys(range(len(ERRANDS)), "done")
        yield Evidence(hf, store, made, [log], ERRANDS, done, [])


async def test_it_has_nothing_to_say_of_a_round_in_which_all_went_well(tmp_path: Path) -> None:
    async with worked_through(tmp_path) as evidence:
        assert await judge(evidence) == []


async def test_it_sees_what_was_lost_and_what_was_done_twice(tmp_path: Path) -> None:
    async with worked_through(tmp_path) as evidence:
        call = first_call(evidence, "ten_calls-0")
        again = call._replace(at_ms=call.at_ms + LONG_MS)
        append(evidence, again)
        await sees(evidence, r"P3: ten_calls-0 made call0 again \d+ ms after its record")
        inside = dataclasses.replace(
            evidence, stops=[Span(call.pid, call.at_ms - 1, call.at_ms + LONG_MS)]
        )
        assert await judge(inside) == []
        append(evidence, call._replace(key="another"))
        await sees(evidence, "P3: ten_calls-0 made call0 under 2 keys")
        append(evidence, first_call(evidence, "ten_calls_once-0"))
        await sees(evidence, "P3: ten_calls_once-0 made call0 2 times, and may once")
        append(evidence, first_call(evidence, "paid-0"))
        await sees(evidence, "a budget was overspent: paid-0 paid 60 of 40 tokens")
        effect = effects(evidence.folder)[0]
        append(evidence, effect._replace(at_ms=effect.at_ms + LONG_MS))
        await sees(evidence, rf"P3: {effect.run} ran {effect.node} again \d+ ms after its record")
        evidence.logs[0].write_text("run x: the driver broke\nTraceback\n")
        await sees(evidence, "a worker complains: run x: the driver broke")


async def test_it_sees_that_what_was_acknowledged_is_not_there(tmp_path: Path) -> None:
    async with worked_through(tmp_path) as evidence:
        more = [
            Errand(number=90, at_seconds=0, verb="start", run="ten-9", graph="ten"),
            Errand(number=91, at_seconds=0, verb="signal", run="varied-0", name="answer", id="x"),
            Errand(number=92, at_seconds=0, verb="signal", run="varied-0", name="answer", id="y"),
        ]
        evidence = dataclasses.replace(
            evidence,
            errands=[*ERRANDS, *more],
            acknowledged={**evidence.acknowledged, 90: "done", 91: "done"},
        )
        await sees(evidence, "P1: the start of ten-9 was acknowledged, and it is gone")
        await sees(evidence, r"P4: varied-0 has not taken .*'x'\)\]")
        await sees(evidence, "P1: signal varied-0 y came to nothing")


async def sees(evidence: Evidence, pattern: str) -> None:
    broken = await judge(evidence)
    assert any(re.match(pattern, message) for message in broken), broken


def first_call(evidence: Evidence, run: str) -> Called:
    return next(call for call in calls(evidence.folder) if call.run == run)


def append(evidence: Evidence, what: Called | flows.Effect) -> None:
    line = " ".join(map(str, (type(what).__name__, *what)))
    with (evidence.folder / "more").open("a") as file:
        file.write(f"{line}\n")
