"""Holdfast on SQLite: one node that awaits ten calls in a row, made in three ways (``--effects``).

* ``calls``: ``ctx.call`` of a function that takes an idempotency key, and hands it to the ledger.
* ``models``: ``ctx.model``; a model is paid whenever it is asked, and the ledger sees no key.
* ``at_most_once``: ``ctx.call`` of a tool that is never called again blindly. Where it is not known
  whether one was done, a person looks it up in the ledger, does it by hand if it was not, and says
  so with ``hf.run(id).resolve``.

Settings: all as they come, but for a lease of two seconds, lest the second process wait a minute
until the first one counts as dead. It resumes as Holdfast does: its worker takes over what the dead
one held. All runs are started again under their ids: those that there are, are only waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypedDict

from paid_model import PaidModel
from ten_effects import NAMES, STEPS, Ledger, all_runs, arguments, tell_finished, tell_recorded

from holdfast import Graph, Holdfast, tool
from holdfast.clock import SystemClock
from holdfast.errors import RunNotFound

LEASE_SECONDS = 2
LOOK_SECONDS = 0.1

parser = arguments()
parser.add_argument("--effects", choices=["calls", "models", "at_most_once"], required=True)
given = parser.parse_args()
ledger = Ledger(given.ledger)
url = f"sqlite:///{given.folder}/holdfast.db"
graph = Graph("effects", TypedDict("State", {"number": int, "receipts": list[str]}, total=False))


async def effect(number: int, step: int, idempotency_key: str) -> str:
    return await ledger.effect(number, step, idempotency_key)


once = [tool(name=name, at_most_once=True)(effect) for name in NAMES]


async def receipt(ctx: Any, number: int, step: int) -> str:
    match given.effects:
        case "calls":
            return await ctx.call(effect, number, step)
        case "models":
            return (await ctx.model("paid", f"{number} {step}")).text
        case _:
            return await ctx.call(once[step], number, step)


@graph.node
async def all_effects(state: Any, ctx: Any) -> Any:
    return {"receipts": [await receipt(ctx, state["number"], step) for step in range(STEPS)]}


def opened() -> Holdfast:
    return Holdfast(url, models={"paid": PaidModel(ledger.effect)})


async def work() -> None:
    ambiguous = set[tuple[int, int]]()
    async with opened() as hf:
        options = {"concurrency": given.in_flight * 2, "lease": LEASE_SECONDS}
        async with hf.worker([graph], **options):
            person = asyncio.create_task(settle(hf, ambiguous))

            async def run(number: int) -> list[str]:
                handle = await hf.start(graph, {"number": number}, id=str(number))
                return (await handle.result())["receipts"]

            await all_runs(given, run)
            person.cancel()
    tell_finished(["holdfast", "msgspec"], ambiguous=sorted(ambiguous))


async def settle(hf: Holdfast, seen: set[tuple[int, int]]) -> None:
    """Be the person who says what became of calls of which nobody else can tell."""
    while True:
        async for call in hf.ambiguous():
            number, step = int(call.run), NAMES.index(call.name)
            if (number, step) in seen:  # its run has not yet heard
                continue
            seen.add((number, step))
            found = await ledger.receipt_of(number, step)
            result = found or await ledger.effect(number, step, None)
            await hf.run(call.run).resolve(call.call, result=result)
        await SystemClock().sleep(LOOK_SECONDS)


async def recorded() -> None:
    found: list[str] = []
    async with opened() as hf:
        for number in range(given.runs):
            with suppress(RunNotFound):  # it was not begun
                found += [receipt async for receipt in receipts_of(hf, str(number))]
    tell_recorded(found)


async def receipts_of(hf: Holdfast, run: str) -> AsyncIterator[str]:
    async for event in hf.run(run).events(follow=False):
        if event.kind == "call":
            result = event.details["result"]
            yield result["text"] if given.effects == "models" else result


asyncio.run(recorded() if given.part == "recorded" else work())
