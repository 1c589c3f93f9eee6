"""The person of a soak who settles ambiguous calls, for which at-most-once runs wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast import AmbiguousCall, Graph, Holdfast, tool
from soak.client import settling_ambiguous

DEADLINE_SECONDS = 30

graph = Graph("once", dict)


@tool(at_most_once=True)
async def pay() -> str:
    raise OSError("the connection broke, and the payment may have been made")


@graph.node
async def once(state: dict[str, Any], ctx: Any) -> dict[str, Any]:
    return {"paid": await ctx.call(pay)}


async def test_a_person_settles_calls_so_that_their_runs_end(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        Holdfast(f"sqlite:///{tmp_path}/runs.db") as hf,
        hf.worker([graph], poll=0.05),
    ):
        run = await hf.start(graph, {})
        async with settling_ambiguous(hf) as heard:
            assert await run.result() == {"paid": "pay"}
        assert heard == []


async def test_a_person_who_breaks_off_is_an_error() -> None:
    class Absurd:
        """Raises what no store does."""

        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def ambiguous(self) -> AsyncGenerator[AmbiguousCall, None]:
            self.asked.set()
            raise ZeroDivisionError
            yield

    hf = Absurd()
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(DEADLINE_SECONDS), settling_ambiguous(cast(Holdfast, hf)):
            await hf.asked.wait()
