"""Holdfast on SQLite: a graph of ten async nodes in a row, started and run in one process.

Settings: all as they come (WAL, ``synchronous = FULL``, ``every_node``: a node's record is in the
file before the next node starts). ``concurrency`` is above the number in flight, so that the
submitters decide how many there are, as they do for the other contestants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from ten_steps import NAMES, STEPS, Race, arguments, ask, text

from holdfast import Graph, Holdfast

given = arguments().parse_args()
file = given.folder / "holdfast.db"

State = TypedDict("State", {"number": int} | dict.fromkeys(NAMES, str), total=False)


def make_node(index: int) -> Callable[..., Awaitable[dict[str, str]]]:
    name = NAMES[index]

    async def node(state: Any, ctx: Any) -> dict[str, str]:
        return {name: text(state["number"], index)}

    node.__name__ = node.__qualname__ = name
    return node


graph = Graph("ten", State, version=1)
graph.route(*[graph.node(make_node(index)) for index in range(STEPS)])


async def main() -> None:
    race = Race("Holdfast", given, packages=["holdfast", "msgspec"])
    async with (
        Holdfast(f"sqlite:///{file}") as holdfast,
        holdfast.worker([graph], concurrency=given.in_flight * 2),
    ):

        async def workflow(number: int) -> dict[str, object]:
            run = await holdfast.start(graph, {"number": number})
            return await run.result()

        await race.run(workflow)

    journal_mode = ask(file, "PRAGMA journal_mode")
    assert journal_mode == "wal"
    runs = "SELECT count(*) FROM items WHERE pk LIKE 'RUN#%' AND sk = 'HEAD'"
    records = "SELECT count(*) FROM items WHERE pk LIKE 'RUN#%' AND sk LIKE 'J#%'"
    assert ask(file, runs) == race.started
    assert ask(file, records) >= race.started * STEPS
    # Its connections cannot be asked from here whether they wait for the disk, as the peers' are.
    race.report(journal_mode=journal_mode)


asyncio.run(main())
