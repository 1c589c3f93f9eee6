"""DBOS on SQLite: an async workflow of ten steps, each of which asks the ledger for one effect.

The settings are those of ``dbos_runner.py`` that make it faster. ``--as-it-comes`` leaves them out;
that takes two to three times as long. How many effects are repeated hangs on the moment of the
kill: 19 and 23 as it comes; 24, 21, 27, 1, 21 and 32 with the settings.

It resumes as DBOS does: at the launch of the second process all workflows that were pending are
recovered. Those that were never started are started, as a caller does who does not know how far
the first process got.

DBOS hands a step no key, but tells it in which workflow and which step it is; both are the same
after a recovery. The key is made of them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID
from ten_effects import STEPS, Ledger, all_runs, arguments, tell_finished, tell_recorded

parser = arguments()
parser.add_argument("--as-it-comes", action="store_true")
given = parser.parse_args()
ledger = Ledger(given.ledger)
file = given.folder / "dbos.db"
url = f"sqlite:///{file}"
config: DBOSConfig = {
    "name": "ten-effects",
    "system_database_url": url,
    "log_level": "WARNING",
}
if not given.as_it_comes:
    config["max_executor_threads"] = 1


def make_step(index: int) -> Callable[[int], Awaitable[str]]:
    async def step(number: int) -> str:
        return await ledger.effect(number, index, f"{DBOS.workflow_id}/{DBOS.step_id}")

    return DBOS.step(name=f"step{index}")(step)


steps = [make_step(index) for index in range(STEPS)]


@DBOS.workflow()
async def ten_effects(number: int) -> list[str]:
    return [await step(number) for step in steps]


async def start(number: int) -> list[str]:
    with SetWorkflowID(str(number)):
        handle = await DBOS.start_workflow_async(ten_effects, number)
    return await handle.get_result()


async def begin() -> None:
    if not given.as_it_comes:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    DBOS(config=config)
    DBOS.launch()
    await all_runs(given, start)


async def resume() -> None:
    DBOS(config=config)
    DBOS.launch()
    known = {status.workflow_id for status in await DBOS.list_workflows_async()}

    async def result(number: int) -> list[str]:
        if str(number) not in known:
            return await start(number)
        handle = await DBOS.retrieve_workflow_async(str(number))
        return await handle.get_result()

    await all_runs(given, result)
    DBOS.destroy()
    tell_finished(["dbos"])


def recorded() -> None:
    client = DBOSClient(system_database_url=url)
    found = [
        step["output"]
        for status in client.list_workflows()
        for step in client.list_workflow_steps(status.workflow_id)
    ]
    client.destroy()
    tell_recorded(found)


if given.part == "recorded":
    recorded()
else:
    asyncio.run(begin() if given.part == "begin" else resume())
