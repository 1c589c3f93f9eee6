"""LangGraph on SQLite: a StateGraph of ten async nodes in a row, a thread id for each workflow.

Settings:

* ``durability="sync"``: a step's checkpoint is saved before the next step starts, as the other
  contestants do. LangGraph's default ("async") lets the next step start meanwhile; it was up to a
  tenth faster here. "exit" saves no steps at all.
* ``AsyncSqliteSaver``: one connection behind one lock in one thread, WAL by itself, and
  ``synchronous = FULL``, which is SQLite's default but is set here lest it be built otherwise. More
  savers on one file would wait for each other: SQLite has one writer.
* The saver commits 23 times for a workflow (twelve checkpoints, and what each task wrote), with one
  fdatasync each (seen with strace). That is what LangGraph does, not a setting.
* Async nodes, so that none is sent to a thread; the graph is compiled once; tracing is off.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"  # it costs time, and nothing here leaves the machine

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from ten_steps import NAMES, STEPS, Race, arguments, ask, text

given = arguments().parse_args()
file = given.folder / "langgraph.db"

State = TypedDict("State", {"number": int} | dict.fromkeys(NAMES, str), total=False)


def make_node(index: int) -> Callable[[Any], Awaitable[dict[str, str]]]:
    name = NAMES[index]

    async def node(state: Any) -> dict[str, str]:
        return {name: text(state["number"], index)}

    return node


def ten_steps(saver: AsyncSqliteSaver) -> Any:
    builder = StateGraph(State)
    for index, name in enumerate(NAMES):
        builder.add_node(name, make_node(index))
    for before, after in zip([START, *NAMES], [*NAMES, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


async def main() -> None:
    race = Race("LangGraph", given, packages=["langgraph", "langgraph-checkpoint-sqlite"])
    async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
        await saver.setup()
        await saver.conn.execute("PRAGMA synchronous = FULL")
        graph = ten_steps(saver)

        async def workflow(number: int) -> dict[str, object]:
            return await graph.ainvoke(
                {"number": number},
                {"configurable": {"thread_id": str(number)}},
                durability="sync",
            )

        await race.run(workflow)

        (synchronous,) = await (await saver.conn.execute("PRAGMA synchronous")).fetchone()
        assert synchronous == 2, "the connection did not wait for the disk"

    journal_mode = ask(file, "PRAGMA journal_mode")
    assert journal_mode == "wal"
    # Step -1 is the input and step 0 what stands before the first node.
    steps = "SELECT count(*) FROM checkpoints WHERE json_extract(metadata, '$.step') > 0"
    assert ask(file, steps) == race.started * STEPS
    race.report(journal_mode=journal_mode, synchronous="full")


asyncio.run(main())
