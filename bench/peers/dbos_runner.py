"""DBOS on SQLite: an async workflow that awaits ten async steps, each recorded before the next.

Two settings make DBOS faster than it comes (``--as-it-comes`` leaves them out). The figures are
of 2 shared cores when little else ran, most of them of one to three runs, and vary by a fifth.
As it comes: 190 to 300 steps a second, p99 3 to 4 s.

* ``journal_mode = WAL``: DBOS leaves SQLite at a rollback journal, with four fdatasyncs to a commit
  instead of one (seen with strace). The mode is a property of the file, so it is set before DBOS
  opens it. About 360 steps a second.
* ``max_executor_threads = 1``: DBOS writes to its database in threads, as many as there are
  workflows, though SQLite has one writer. One thread lets the writes queue: 430 to 590, p99 0.6 to
  0.9 s. A pool of one or two connections does too, with all the threads: about 420.

As DBOS has them:

* ``synchronous = FULL``, SQLite's default; twelve commits to a workflow.
* No tracing, no Conductor, no queue. The workflow is awaited where it runs, so that nothing polls
  for its result. Logging at WARNING.

Tried and left: sync steps in 32 threads (490 to 640 steps a second, but p99 1.5 to 3.7 s). With one
thread, a pool of one connection and ``pool_pre_ping`` off each took about 4 % less CPU in six
rounds on a busy machine, which is less than the rounds differ by: that they help is not settled.

The workflow returns its ten updates, as the others do. To return a number would save it a write of
10 KB: about a tenth of its CPU in the quieter of those rounds, nothing in the others.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

from dbos import DBOS, DBOSConfig
from sqlalchemy import Engine, event
from ten_steps import NAMES, STEPS, Race, arguments, ask, text

parser = arguments()
parser.add_argument("--as-it-comes", action="store_true")
given = parser.parse_args()
file = given.folder / "dbos.db"

config: DBOSConfig = {
    "name": "ten-steps",
    "system_database_url": f"sqlite:///{file}",
    "log_level": "WARNING",
}
if not given.as_it_comes:
    config["max_executor_threads"] = 1
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")

synchronous: set[int] = set()


@event.listens_for(Engine, "connect")
def connected(connection: Any, _record: object) -> None:
    synchronous.add(connection.execute("PRAGMA synchronous").fetchone()[0])


def make_step(index: int) -> Callable[[int], Awaitable[str]]:
    async def step(number: int) -> str:
        return text(number, index)

    return DBOS.step(name=NAMES[index])(step)


steps = [make_step(index) for index in range(STEPS)]


@DBOS.workflow()
async def ten_steps(number: int) -> dict[str, object]:
    state: dict[str, object] = {"number": number}
    for name, step in zip(NAMES, steps, strict=True):
        state[name] = await step(number)
    return state


async def main() -> None:
    race = Race("DBOS", given, packages=["dbos", "sqlalchemy"])
    DBOS(config=config)
    DBOS.launch()
    await race.run(ten_steps)
    DBOS.destroy()

    done = "SELECT count(*) FROM workflow_status WHERE status = 'SUCCESS'"
    recorded = "SELECT count(*) FROM operation_outputs WHERE length(output) > 1000"
    assert ask(file, done) == race.started
    assert ask(file, recorded) == race.started * STEPS
    journal_mode = ask(file, "PRAGMA journal_mode")
    assert journal_mode == ("delete" if given.as_it_comes else "wal")
    assert synchronous == {2}, "a connection did not wait for the disk"
    race.report(journal_mode=journal_mode, synchronous="full")


asyncio.run(main())
