"""LangGraph on SQLite: a thread of ten effects, written in three ways (``--effects``).

* ``nodes``: ten nodes in a row with one effect each. With ``durability="sync"`` a node's checkpoint
  is saved before the next node starts: the most careful way there is.
* ``tasks``: one node that awaits ten functions with ``@task``, whose results are saved beside the
  checkpoint of the node. LangGraph saves them while the next one is under way.
* ``plain``: one node that awaits ten functions. Nothing of them is saved before the node ends.

It resumes as LangGraph does: every thread is invoked again under its id, without input if it was
begun. A node is handed no key, but knows its thread's id; a key of it and the name of the effect
is the same after a resume.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"  # it costs time, and nothing here leaves the machine

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import task
from langgraph.graph import END, START, StateGraph
from ten_effects import NAMES, STEPS, Ledger, all_runs, arguments, tell_finished, tell_recorded

parser = arguments()
parser.add_argument("--effects", choices=["nodes", "tasks", "plain"], required=True)
given = parser.parse_args()
ledger = Ledger(given.ledger)
file = given.folder / "langgraph.db"


class State(TypedDict, total=False):
    number: int
    receipts: Annotated[list[str], lambda before, more: before + more]


async def effect(number: int, index: int) -> str:
    return await ledger.effect(number, index, f"{number}/{NAMES[index]}")


def node_of_one(index: int) -> Callable[[Any], Awaitable[Any]]:
    async def node(state: Any) -> Any:
        return {"receipts": [await effect(state["number"], index)]}

    return node


def node_of_all(awaited: Callable[[int, int], Awaitable[str]]) -> Callable[[Any], Awaitable[Any]]:
    async def node(state: Any) -> Any:
        return {"receipts": [await awaited(state["number"], index) for index in range(STEPS)]}

    return node


def nodes() -> dict[str, Callable[[Any], Awaitable[Any]]]:
    if given.effects == "nodes":
        return {name: node_of_one(index) for index, name in enumerate(NAMES)}
    return {"all": node_of_all(task(effect) if given.effects == "tasks" else effect)}


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[AsyncSqliteSaver, Any]]:
    async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
        await saver.setup()
        await saver.conn.execute("PRAGMA synchronous = FULL")
        builder = StateGraph(State)
        row = nodes()
        for name, node in row.items():
            builder.add_node(name, node)
        for before, after in zip([START, *row], [*row, END], strict=True):
            builder.add_edge(before, after)
        yield saver, builder.compile(checkpointer=saver)


async def work() -> None:
    async with opened() as (saver, graph):

        async def run(number: int) -> list[str]:
            config = {"configurable": {"thread_id": str(number)}}
            begun = await saver.aget_tuple(config) is not None
            input = None if begun else {"number": number}
            return (await graph.ainvoke(input, config, durability="sync"))["receipts"]

        await all_runs(given, run)
    tell_finished(["langgraph", "langgraph-checkpoint-sqlite"])


async def recorded() -> None:
    found = set[str]()
    async with opened() as (saver, _):
        for number in range(given.runs):
            saved = await saver.aget_tuple({"configurable": {"thread_id": str(number)}})
            if saved is None:
                continue
            found.update(saved.checkpoint["channel_values"].get("receipts", []))
            for _task, channel, value in saved.pending_writes or []:
                if channel == "receipts":
                    found.update(value)
                elif channel == "__return__":
                    found.add(value)
    tell_recorded(found)


asyncio.run(recorded() if given.part == "recorded" else work())
