"""A client as a process: ``python -m soak.client URL ERRANDS ACKS BEGAN_MS``.

It repeats each errand until it is acknowledged, and writes that down at once, so that whoever comes
after a kill goes on. It ends when everything is acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from pathlib import Path

from holdfast import Budget, Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import (
    AlreadyExists,
    HoldfastError,
    NotAmbiguous,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
    StoreUnusable,
)
from soak.errands import Errand, acknowledged, read_errands
from tests.crash import flows

RETRY_SECONDS = 0.3
LOOK_SECONDS = 1.0
AT_ONCE = 8
# A user repeats what may come about later: room is made on the disk, the run is started.
_PASSING = (OutcomeUnknown, RunNotFound, StoreUnusable)


async def main(url: str, errands: Path, acks: Path, began_ms: int) -> None:
    done = acknowledged(acks)
    left = sorted(read_errands(errands), key=lambda errand: (errand.run, errand.at_seconds))
    room = asyncio.Semaphore(AT_ONCE)
    clock = SystemClock()

    async def do_all(hf: Holdfast, those: list[Errand]) -> None:
        for errand in those:
            await clock.sleep(began_ms / 1000 + errand.at_seconds - clock.now_ms() / 1000)
            async with room:
                outcome = await repeated(hf, errand)
            _write_down(acks, f"{errand.number} {outcome}")

    async with Holdfast(url) as hf:
        runs = groupby((one for one in left if one.number not in done), key=lambda one: one.run)
        async with settling_ambiguous(hf):
            await asyncio.gather(*(do_all(hf, list(those)) for _, those in runs))


async def repeated(hf: Holdfast, errand: Errand) -> str:
    """Do an errand until it is known what came of it."""
    while True:
        try:
            await do(hf, errand)
        except RunEnded:
            return "ended"
        except HoldfastError as error:
            if not (error.retryable or isinstance(error, _PASSING)):
                return f"{type(error).__name__}: {error}".replace("\n", " ")
            await SystemClock().sleep(RETRY_SECONDS)
        else:
            return "done"


async def do(hf: Holdfast, errand: Errand) -> None:
    budget = None if errand.tokens is None else Budget(tokens=errand.tokens)
    match errand.verb:
        case "start":
            session = errand.session
            await hf.start(
                getattr(flows, errand.graph),
                errand.given,
                id=errand.run,
                session=session,
                on_busy="queue" if session else None,
                budget=budget,
            )
        case "signal":
            await hf.run(errand.run).signal(errand.name, errand.id, signal_id=errand.id)
        case "fund":
            assert budget is not None
            await hf.run(errand.run).set_budget(budget)


@asynccontextmanager
async def settling_ambiguous(hf: Holdfast) -> AsyncGenerator[list[str], None]:
    """Have a person who says of every ambiguous call that it was made, as if done by hand.

    Yield what the person hears instead of an acknowledgement. A person who breaks off is an error:
    the runs that wait for an answer would look as if the engine had lost them.
    """
    heard: list[str] = []
    person = asyncio.create_task(_settle_ambiguous(hf, heard))
    try:
        yield heard
    finally:
        person.cancel()
        with suppress(asyncio.CancelledError):
            await person


async def _settle_ambiguous(hf: Holdfast, heard: list[str]) -> None:
    while True:
        try:
            async for call in hf.ambiguous():
                try:
                    await hf.run(call.run).resolve(call.call, result=call.name)
                except (RunEnded, RunNotFound, NotAmbiguous, AlreadyExists) as error:
                    heard.append(f"of {call.run} {call.call}: {type(error).__name__}: {error}")
        except HoldfastError as error:
            heard.append(f"{type(error).__name__}: {error}")
        await SystemClock().sleep(LOOK_SECONDS)


def _write_down(file: Path, line: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
