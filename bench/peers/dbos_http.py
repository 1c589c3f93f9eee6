"""DBOS behind FastAPI, as its documentation shows it: a request starts a workflow and returns its
result. The settings of DBOS are those of ``dbos_runner.py``, which make it faster than it comes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import uvicorn
from dbos import DBOS, DBOSConfig
from fastapi import FastAPI
from ten_steps import NAMES, STEPS, text

file = Path(sys.argv[2]) / "dbos.db"
with closing(sqlite3.connect(file)) as connection:
    connection.execute("PRAGMA journal_mode = WAL")
config: DBOSConfig = {
    "name": "ten-steps",
    "system_database_url": f"sqlite:///{file}",
    "log_level": "WARNING",
    "max_executor_threads": 1,
}
app = FastAPI()
DBOS(config=config)


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


@app.post("/ten_steps/{number}")
async def run(number: int) -> dict[str, object]:
    return await ten_steps(number)


async def main() -> None:
    DBOS.launch()
    port = int(sys.argv[1])
    options = uvicorn.Config(app, "127.0.0.1", port, log_level="warning", access_log=False)
    await uvicorn.Server(options).serve()
    DBOS.destroy()
    os._exit(0)  # its threads do not end by themselves


asyncio.run(main())
