"""kill -9 in the middle of many calls: none that was recorded is made again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.model.event import CallFinished, CallIntended, Event
from holdfast.model.program import Program
from holdfast.storage import open as open_store
from tests.crash.flows import (
    DIE_AT,
    TEN,
    TEN_CALLS,
    Called,
    Trail,
    calls,
    ten_calls,
    ten_calls_once,
    ten_calls_workflow,
)
from tests.crash.journals import check_history, journal_of
from tests.crash.processes import ended, until, working

RUNS = [f"run-{number}" for number in range(60)]
CONCURRENCY = 16
OPTIONS = {"concurrency": CONCURRENCY, "lease": 2, "poll": 0.1}
WORK: Trail = {"work_seconds": 0.01}
DEADLINE_SECONDS = 60

What = tuple[str, str]
"""A call: whose, and its name."""


class Wreck(NamedTuple):
    """What a worker left behind that died in the middle of its calls."""

    client: Holdfast
    made: set[What]
    """What reached the world."""
    recorded: set[What]
    intended: set[What]
    """What was about to be made at most once, as far as the journals tell."""


@asynccontextmanager
async def wrecked(url: str, graph: Program, folder: Path) -> AsyncGenerator[Wreck, None]:
    """Let a worker die inside the call that makes half of all; read the journals."""
    half = len(RUNS) * TEN // 2
    async with asyncio.timeout(DEADLINE_SECONDS), Holdfast(url) as client:
        for run in RUNS:
            await client.start(graph, WORK, id=run)
        async with working(url, graph.name, env={DIE_AT: f"{half}"}, **OPTIONS) as victim:
            assert (await ended(victim))[0] == -signal.SIGKILL
        made = {call.what for call in calls(folder)}
        assert len(made) == len(calls(folder)) == half
        events = await journals_of(url)
        recorded = {(run, e.result) for run, e in events if isinstance(e, CallFinished)}
        begun = {(run, e.call) for run, e in events if isinstance(e, CallIntended)}
        yield Wreck(client, made, recorded, {(run, name_in(call)) for run, call in begun})


@pytest.mark.parametrize("graph", [ten_calls, ten_calls_workflow], ids=["graph", "workflow"])
async def test_only_calls_in_flight_are_made_again_and_under_their_keys(
    tmp_path: Path, folder: Path, graph: Program
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with wrecked(url, graph, folder) as wreck:
        in_flight = wreck.made - wreck.recorded
        assert wreck.recorded < wreck.made
        check_in_flight(in_flight)
        async with working(url, graph.name, **OPTIONS) as heir:
            await all_finish(wreck.client)
            heir.terminate()
            assert (await ended(heir))[0] == 0
        every = calls(folder)
    assert repeated(every) == in_flight
    # So who honours keys does nothing twice, and never takes one call for another.
    assert len({call.key for call in every}) == len(RUNS) * TEN == len({c.what for c in every})
    assert len({(*call.what, call.key) for call in every}) == len(RUNS) * TEN
    await check_histories(url)


async def test_calls_at_most_once_in_flight_are_listed_as_ambiguous_and_never_made_again(
    tmp_path: Path, folder: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with wrecked(url, ten_calls_once, folder) as wreck:
        client = wreck.client
        in_doubt = wreck.intended - wreck.recorded
        # Those that were made, and perhaps some that were about to be.
        assert wreck.made - wreck.recorded <= in_doubt
        assert wreck.recorded < wreck.made <= wreck.intended
        check_in_flight(in_doubt)
        async with working(url, ten_calls_once.name, **OPTIONS) as heir:

            async def all_wait() -> bool:
                found = [await client.run(run).get() for run, _ in in_doubt]
                assert "finished" not in {run.status for run in found}
                return {run.reason for run in found} == {"ambiguous"}

            await until(all_wait, heir)
            assert {what async for what, _ in ambiguous(client)} == in_doubt
            async for (run, name), call in ambiguous(client):
                await client.run(run).resolve(call, result=name)
            await all_finish(client)
            assert [what async for what, _ in ambiguous(client)] == []
            heir.terminate()
            assert (await ended(heir))[0] == 0
        every = calls(folder)
    assert repeated(every) == set()
    # What was in doubt and had not been made, is not made now either: a person said that it was.
    assert {call.what for call in every} == all_calls() - (in_doubt - wreck.made)
    await check_histories(url)


def check_in_flight(in_flight: set[What]) -> None:
    """Fail unless it is one call of each run that was under way: the one before it stands."""
    assert 1 <= len(in_flight) <= CONCURRENCY
    assert len({run for run, _ in in_flight}) == len(in_flight)


async def ambiguous(client: Holdfast) -> AsyncGenerator[tuple[What, str], None]:
    """Yield the calls that are listed as ambiguous, each with the id by which it is settled."""
    async for call in client.ambiguous():
        yield (call.run, call.name), call.call


async def all_finish(client: Holdfast) -> None:
    for run in RUNS:
        assert await client.run(run).result() == {**WORK, "trail": TEN_CALLS}


async def journals_of(url: str) -> list[tuple[str, Event]]:
    """Return everything that the journals tell, with the run that it is of."""
    async with open_store(url) as store:
        return [
            (run, event)
            for run in RUNS
            for record in await journal_of(store, run)
            for event in record.events
        ]


async def check_histories(url: str) -> None:
    """Fail unless each run has one history in which every call has one end."""
    async with open_store(url) as store:
        for run in RUNS:
            check_history(await journal_of(store, run))
    ends = [(run, e.result) for run, e in await journals_of(url) if isinstance(e, CallFinished)]
    assert sorted(ends) == sorted(all_calls())


def all_calls() -> set[What]:
    return {(run, name) for run in RUNS for name in TEN_CALLS}


def repeated(every: list[Called]) -> set[What]:
    """Return the calls that were made more than once."""
    seen: dict[What, int] = {}
    for call in every:
        seen[call.what] = seen.get(call.what, 0) + 1
    return {what for what, count in seen.items() if count > 1}


def name_in(call: str) -> Any:
    """Return the name of the tool in the id of a call."""
    return next(name for name in TEN_CALLS if name in call)
