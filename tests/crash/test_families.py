"""kill -9 and SIGSTOP amid branches, children and a session: nothing is lost, or done twice."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Graph, Holdfast
from holdfast.errors import RunCancelled, RunEnded, RunNotFound
from holdfast.model.event import AttemptFailed, Finished, NodeFinished
from holdfast.records.keys import RunKey, children_range
from holdfast.storage import Store
from holdfast.storage import open as open_store
from tests.crash.brink import Side
from tests.crash.doomed import OPTIONS
from tests.crash.flows import (
    BRANCH_SIGNALS,
    FAMILY,
    GATED_BRANCH_TRAIL,
    GATED_PARENT_TRAIL,
    GATED_TRAIL,
    LEAVES,
    SESSION,
    WIDE_TRAIL,
    brief,
    effects,
    effects_folder,
    gated,
    gated_branch,
    gated_parent,
    wide,
)
from tests.crash.journals import (
    Record,
    check_history,
    fences_of,
    finished_in,
    head_of,
    journal_of,
    workers_of,
)
from tests.crash.processes import ended, until, working
from tests.crash.test_boundaries import RUN, Death, empty, lived
from tests.crash.test_stall import at_the_gate, has_new_name, open_gate, stop_between_writes

PROCESSES = 4
RESCUES = 24
SLACK = 8
DEADLINE_SECONDS = 120
NEXT = f"{RUN}-next"
IDLE = f"{RUN}-idle"
LEASE_SECONDS = 2.0


# --- what must hold, whoever died -----------------------------------------------------------------


async def settled(hf: Holdfast, *parents: str) -> None:
    """Return when the children that nobody awaited are gone as well."""
    for parent in parents:
        with pytest.raises(RunCancelled):
            await hf.run(f"{parent}-idle").result()


async def check_family(hf: Holdfast, store: Store, parent: str) -> None:
    """Check that a run has each of its children once, and that nothing is left to be done."""
    children = await hf.run(parent).children()
    graphs = Counter((child.graph, child.status) for child in children)
    assert graphs == {("leaf", "finished"): LEAVES, ("idle", "cancelled"): 1}
    head = await head_of(store, parent)
    named = [
        item["SK"].split("#", 2)[2]
        async for item in store.table.query_all(head["PK"], children_range(head["generation"]))
    ]
    assert sorted(named) == sorted(child.id for child in children)
    for id in (parent, *named):
        row = await head_of(store, id)
        assert "GSI1PK" not in row, id
        assert "owner" not in row, id


async def check_session_queue(hf: Holdfast, store: Store, session: str, *runs: str) -> None:
    """Check that runs of a session began one after the other, and that nobody stands in it."""
    assert await hf.session_queue(session) == []
    left = [item["SK"] async for item in store.table.query_all(f"LANE#default#-#{session}")]
    assert left == ["LAST"]
    ended_ms = 0
    for run in runs:
        events = [event for record in await journal_of(store, run) for event in record.events]
        nodes = [event.at_ms for event in events if isinstance(event, NodeFinished)]
        assert nodes[0] >= ended_ms, run
        (ended_ms,) = (event.at_ms for event in events if isinstance(event, Finished))


# --- kill -9 at every write -----------------------------------------------------------------------


class Done(NamedTuple):
    """What a node did, or has on record, whoever did it."""

    run: str
    node: str
    attempt: int


@pytest.mark.parametrize("side", ["before", "after"])
async def test_kill_9_at_every_write_of_a_family_in_a_session(tmp_path: Path, side: Side) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        clean = await lived("family", empty(tmp_path / "clean"))
        # Two starts in a session; a fork with its waits; two signals; two children, each with what
        # names it, its row, its records, and its end that is told; the ends of all.
        assert len(clean.writes) >= 40, clean.said
        began = time.monotonic()
        deaths = await all_died(tmp_path, len(clean.writes), side)
        died_after = time.monotonic() - began
        room = asyncio.Semaphore(RESCUES)
        await asyncio.gather(*(within(room, death) for death in deaths))
        took = time.monotonic() - began
        print(f"\n{len(deaths)} deaths of a family in {died_after:.1f} s, all in {took:.1f} s")


async def all_died(folder: Path, writes: int, side: Side) -> list[Death]:
    """Let a process die at each write, each in a place of its own.

    How many writes there are depends on who comes first: some may live to see their end.
    """
    room = asyncio.Semaphore(PROCESSES)

    async def one(number: int) -> Death:
        async with room:
            place = empty(folder / f"{side}-{number}")
            return await lived("family", place, number, side, may_live=number > writes - SLACK)

    return await asyncio.gather(*(one(number) for number in range(1, writes + 1)))


async def within(room: asyncio.Semaphore, death: Death) -> None:
    async with room:
        try:
            await rescued(death)
        except BaseException as error:
            error.add_note(str(death))
            raise


async def rescued(death: Death) -> None:
    """Finish what somebody left behind, and check that nothing was lost or done twice."""
    place = death.place
    effects_folder.set(place.effects)
    async with open_store(place.url) as store:
        recorded = await recorded_in(store)
    async with Holdfast(place.url) as hf, hf.worker(FAMILY, **OPTIONS):
        # What was acknowledged is not asked for again: it must not be lost.
        if "started first" not in death.said:
            await hf.start(wide, {}, id=RUN, session=SESSION)
        if "started second" not in death.said:
            await hf.start(brief, {}, id=NEXT, session=SESSION)
        for name in BRANCH_SIGNALS:
            if f"signalled {name}" not in death.said:
                await sent(hf.run(RUN).signal(name, signal_id=name))
        assert await hf.run(RUN).result() == {"trail": WIDE_TRAIL}
        assert await hf.run(NEXT).result() == {"trail": ["speak"]}
        await settled(hf, RUN)
    async with Holdfast(place.url) as hf, open_store(place.url) as store:
        assert len((await hf.list()).runs) == 2 + LEAVES + 1
        await check_family(hf, store, RUN)
        await check_session_queue(hf, store, SESSION, RUN, NEXT)
        for entry in (await hf.list()).runs:
            journal = await journal_of(store, entry.id)
            check_history(journal)
            finished_in(journal)
    after = [effect for effect in effects(place.effects) if effect.pid == os.getpid()]
    done = Counter(Done(effect.run, effect.node, effect.attempt) for effect in after)
    assert max(done.values(), default=1) == 1, done
    assert not recorded & done.keys(), "what was on record ran again"


async def sent(signalling: Awaitable[None]) -> None:
    """Send a signal that may have been sent before; then the run may even have ended by now."""
    with suppress(RunEnded):
        await signalling


async def recorded_in(store: Store) -> set[Done]:
    """Return everything that need not be done again."""
    found = set[Done]()
    async for run, journal in journals_in(store):
        for event in (event for record in journal for event in record.events):
            if isinstance(event, NodeFinished):
                attempts = 2 if event.node == "shaky" else 1
                found |= {Done(run, event.node, n) for n in range(1, attempts + 1)}
            elif isinstance(event, AttemptFailed):
                found.add(Done(run, event.node, 1))
    return found


async def journals_in(store: Store) -> Any:
    """Yield every run of a place, with its journal."""
    ids = [RUN, NEXT, IDLE]
    try:
        head = await head_of(store, RUN)
    except (AssertionError, RunNotFound):
        return
    named = store.table.query_all(head["PK"], children_range(head["generation"]))
    ids += [item["SK"].split("#", 2)[2] async for item in named]
    for id in dict.fromkeys(ids):
        if await store.table.get(RunKey("default", id).head) is not None:
            yield id, await journal_of(store, id)


# --- SIGSTOP past the lease -----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["branch", "starting a child", "front of a session queue"])
async def test_a_worker_that_was_stopped(tmp_path: Path, folder: Path, where: str) -> None:
    """Its clock does not notice: what it goes on with meets the fences, and the row of others."""
    file = tmp_path / "runs.db"
    url = f"sqlite:///{file}"
    graphs: dict[str, tuple[Graph, list[str], int]] = {
        "branch": (gated_branch, GATED_BRANCH_TRAIL, 2),
        "starting a child": (gated_parent, GATED_PARENT_TRAIL, 2),
        "front of a session queue": (gated, GATED_TRAIL, 1),
    }
    graph, trail, front = graphs[where]
    runs = [f"run-{number}" for number in range(2)]
    session = SESSION if where == "front of a session queue" else None
    options = {"concurrency": 8, "lease": LEASE_SECONDS, "poll": 0.05}
    served = f"{graph.name},leaf"
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(url) as client,
        open_store(url) as store,
        working(url, served, stopped_clock=True, **options) as first,
    ):
        for run in runs:
            await client.start(graph, {}, id=run, session=session)
        await until(lambda: len(at_the_gate(folder, first)) == front, first)
        if where == "starting a child":
            for run in runs:
                await client.run(f"{run}-before").result()  # or it may be in flight, and run again
        stop_between_writes(first, file)
        (old,) = await workers_of(store, first.pid)
        async with working(url, served, **options) as second:
            await until(lambda: len(at_the_gate(folder, second)) == front, first, second)
            before = await everything(client, store)
            # The first wakes up with its gate open: everything that it held wants to go on.
            await open_gate(first)
            first.send_signal(signal.SIGCONT)
            await until(lambda: has_new_name(store, first, old), first, second)
            assert await everything(client, store) == before
            await leave(first)
            await open_gate(second)
            for run in runs:
                assert await client.run(run).result() == {"trail": trail}
            await leave(second)
        journals = {run: await journal_of(store, run) for run in runs}
        for run, journal in journals.items():
            check_history(journal)
            finished_in(journal)
            assert len(fences_of(journal)) == (1 if run in runs[:front] else 0)
        if where == "starting a child":
            for run in runs:
                children = {(one.id, one.status) for one in await client.run(run).children()}
                ends = {(f"{run}-{side}", "finished") for side in ("before", "after")}
                assert children == ends
                assert [done_by(folder, id) for id, _ in sorted(ends)] == [1, 1]
        if session is not None:
            await check_session_queue(client, store, session, *runs)
        assert len((await client.list()).runs) == (6 if where == "starting a child" else 2)


async def everything(client: Holdfast, store: Store) -> dict[str, list[Record]]:
    return {run.id: await journal_of(store, run.id) for run in (await client.list()).runs}


async def leave(process: Process) -> None:
    process.terminate()
    assert (await ended(process))[0] == 0


def done_by(folder: Path, run: str) -> int:
    return len([effect for effect in effects(folder) if effect.run == run])


# --- kill -9 of one of two workers ----------------------------------------------------------------

SESSIONS = 17
RUNS_A_SESSION = 2
WORK_SECONDS = 0.01


async def test_kill_9_of_one_of_two_workers_with_families(tmp_path: Path, folder: Path) -> None:
    """A hundred runs: two in each session, with three branches and two children each."""
    url = f"sqlite:///{tmp_path}/runs.db"
    options = {"concurrency": 16, "lease": 2, "poll": 0.1}
    sessions = {
        f"s{n}": [f"s{n}-{turn}" for turn in range(RUNS_A_SESSION)] for n in range(SESSIONS)
    }
    parents = [run for runs in sessions.values() for run in runs]
    served = "wide,leaf,idle"
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(url) as client,
        open_store(url) as store,
        working(url, served, **options) as victim,
        working(url, served, **options) as survivor,
    ):
        for session, runs in sessions.items():
            for run in runs:
                await client.start(wide, {"work_seconds": WORK_SECONDS}, id=run, session=session)
        nodes = len(parents) * (len(WIDE_TRAIL) + 1 + LEAVES)
        await until(
            lambda: (
                len(effects(folder)) >= nodes // 3
                and any(effect.pid == victim.pid for effect in effects(folder))
            ),
            victim,
            survivor,
        )
        victim.kill()
        assert await victim.wait() == -signal.SIGKILL
        for run in parents:
            state = await client.run(run, graph=wide).result()
            assert state == {"work_seconds": WORK_SECONDS, "trail": WIDE_TRAIL}
        await settled(client, *parents)
        await leave(survivor)
        for run in parents:
            await check_family(client, store, run)
            check_history(await journal_of(store, run))
            finished_in(await journal_of(store, run))
        for session, runs in sessions.items():
            await check_session_queue(client, store, session, *runs)
        found = (await client.list(limit=1000)).runs
        assert len(found) == len(parents) * (1 + LEAVES + 1)
    pids: dict[tuple[str, str, int, int], list[int]] = {}
    for effect in effects(folder):
        pids.setdefault(effect.what, []).append(effect.pid)
    again = [who for who in pids.values() if len(who) > 1]
    # Only what the victim had in flight ran twice, and then the survivor did it.
    assert all(sorted(who) == sorted([victim.pid, survivor.pid]) for who in again)
    assert pids.keys() >= {(run, node, 0, 1) for run in parents for node in ("begin", "left")}
