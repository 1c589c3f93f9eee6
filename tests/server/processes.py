"""``holdfast serve`` and ``dev`` as real processes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60
GRAPHS = "tests.server.graphs:GRAPHS"
PROMPT = ("--poll", "0.05s")


class Served:
    """A process of the command line that says what it does on standard error."""

    def __init__(self, process: Process) -> None:
        assert process.stderr is not None
        self.process = process
        self._err = process.stderr
        self.address = ""

    async def told(self, pattern: str) -> re.Match[str]:
        """Return the next line of its standard error that has the pattern."""
        seen: list[str] = []
        while line := (await self._err.readline()).decode():
            seen.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"it ended without saying {pattern}: {''.join(seen)}")

    async def serves(self) -> str:
        """Wait until it serves; return its address."""
        self.address = (await self.told(r"server listens on (http://[^ ,]+),"))[1]
        return self.address

    async def ended(self) -> tuple[int, str]:
        """Return the exit code, and the rest of its standard error."""
        rest = (await self._err.read()).decode()
        return await self.process.wait(), rest


@asynccontextmanager
async def started(
    *arguments: str, cwd: Path = ROOT, env: dict[str, str] | None = None, module: str = "holdfast"
) -> AsyncIterator[Served]:
    """Run ``holdfast arguments``; at the end nothing of it is left."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield Served(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def serving(url: str, *options: str, **kwargs: str) -> AsyncIterator[Served]:
    """Serve the graphs of the tests on a free port; it answers from now on."""
    async with started("serve", GRAPHS, "--url", url, "--port", "0", *PROMPT, *options) as served:
        await served.serves()
        yield served
