"""Events that are not recorded: they cost nothing, come once, and a snapshot supersedes them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from holdfast import Graph, HistoryEntry, Holdfast, Retry, RunStream, signal
from holdfast.engine.history import ephemeral, events
from holdfast.engine.kernel import live_events, spool
from holdfast.errors import InvalidQuery, InvalidRequest, NodeError, RunNotFound
from holdfast.records.codec import pack
from holdfast.records.streamed_text import ProgressEntry, TextBatch, TextEntry, TextStream, text_of
from tests.engine.support import (
    WAIT_SECONDS_MAX,
    Gate,
    House,
    chain,
    reached,
    run_units,
    units_of,
)

NEVER_SECONDS = 10_000


async def waits(state: Any, ctx: Any) -> Any:
    return {"decision": await ctx.wait(signal("decision"), about={"amount": 3}, max_wait=3600)}


def asking() -> Graph:
    return chain("asking", 3, lambda number: {}, node1=waits)


async def collected(stream: RunStream[HistoryEntry]) -> list[HistoryEntry]:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        return [entry async for entry in stream]


async def next_of(stream: RunStream[HistoryEntry], kind: str) -> HistoryEntry:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async for entry in stream:
            if entry.kind == kind:
                return entry
    raise AssertionError(f"no {kind}")


async def follow_decision(hf: Holdfast, run_id: str) -> list[HistoryEntry]:
    """Follow a run to its end, and answer its wait as soon as an event shows it."""
    found: list[HistoryEntry] = []
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        async with hf.run(run_id).events(ephemeral=True) as stream:
            async for entry in stream:
                found.append(entry)
                if entry.kind == "paused":
                    await hf.run(run_id).signal("decision", "yes")
    return found


def short(entries: list[HistoryEntry]) -> list[tuple[str, str | None]]:
    return [(entry.kind, entry.node) for entry in entries]


async def test_a_follower_here_sees_everything_as_it_happens(
    house: House, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_POLL_FIRST_SECONDS", NEVER_SECONDS)
    graph, gate = asking(), Gate()

    async def first(state: Any) -> Any:
        await gate.pass_through()
        return {}

    graph = chain("asking", 3, lambda number: {}, node0=first, node1=waits)
    async with house.worker(hf, graph):
        await hf.start(graph, id="doc-42")
        await gate.reached.wait() if hasattr(gate, "reached") else None
        following = asyncio.ensure_future(follow_decision(hf, "doc-42"))
        while not hf._kernel.live.is_followed(hf.run("doc-42")._key):
            await house.clock.sleep(0)
        gate.open()
        found = await following
    assert short(found) == [
        ("snapshot", "node0"),
        ("started", "node0"),
        ("node", "node0"),
        ("node_started", "node1"),
        ("paused", "node1"),
        ("resumed", "node1"),
        ("node_started", "node1"),
        ("signal", "node1"),
        ("about", "node1"),
        ("node", "node1"),
        ("node_started", "node2"),
        ("node", "node2"),
        ("finished", None),
        ("ended", "node2"),
    ]
    assert all(entry.ephemeral == (entry.cursor == "") for entry in found)
    assert {entry.kind for entry in found if entry.ephemeral} <= set(ephemeral.KINDS)
    (paused,) = [entry.details for entry in found if entry.kind == "paused"]
    assert paused["reason"] == "signal"
    assert paused["waits"][0]["signal"] == "decision"
    assert paused["waits"][0]["about"] == {"amount": 3}
    assert paused["since"] < paused["until"]
    assert found[-1].details == {"status": "finished", "failure": None, "into": None}
