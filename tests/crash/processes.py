"""Processes of Python that the tests start, wait for and end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.02


@asynccontextmanager
async def running(
    *arguments: str, env: dict[str, str] | None = None, stderr: int | None = None
) -> AsyncIterator[Process]:
    """Run ``python arguments``; at the end nothing of it is left, not even if it is stopped."""
    # On Linux it also ends with whoever started it. setpriv becomes Python: the pid stays.
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    process = await asyncio.create_subprocess_exec(
        *guard,
        *(sys.executable, *arguments),
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def working(
    url: str, graph: str, *, env: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Process]:
    """Run a worker for a graph; it claims runs from now on."""
    module = ("-m", "tests.crash.worker")
    async with running(*module, url, graph, json.dumps(options), env=env) as process:
        assert await line_of(process) == "ready"
        yield process


async def line_of(process: Process) -> str:
    """Return the next line that it says."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.endswith("\n"), "the process ended early"
    return line.rstrip("\n")


async def ended(process: Process) -> tuple[int, list[str]]:
    """Wait for its end; return the exit code, and what it said that was not read yet."""
    assert process.stdout is not None
    said = (await process.stdout.read()).decode().splitlines()
    return await process.wait(), said


async def until(true: Callable[[], bool | Awaitable[bool]], *processes: Process) -> None:
    """Return when it is true; fail if one of the processes ends before."""
    # Between two questions we wait for the processes and not for a time: if one ends, we know.
    ends: list[asyncio.Future[Any]]
    ends = [asyncio.ensure_future(process.wait()) for process in processes]
    if not ends:
        ends = [asyncio.get_running_loop().create_future()]
    try:
        while not await _answer(true()):
            done, _ = await asyncio.wait(ends, timeout=POLL_SECONDS)
            assert not done, "a process ended early"
    finally:
        for end in ends:
            end.cancel()


async def _answer(given: bool | Awaitable[bool]) -> bool:
    return given if isinstance(given, bool) else await given
