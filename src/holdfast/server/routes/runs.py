"""Routes that read runs."""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from holdfast.model.run import Run, RunPage
from holdfast.server.caller import RequesterOf
from holdfast.server.routing import route

__all__ = ["RUNS"]

RunId = Annotated[str, PathParameter(description="The run's id.", max_length=128)]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many, at most.")]


@route("GET", "/v1/runs", role="viewer", tag="runs")
async def list_runs(requester: RequesterOf, limit: Limit = 100) -> RunPage:
    """List runs, the newest first."""
    return await requester.hf.list(tenant=requester.tenant, limit=limit)


@route("GET", "/v1/runs/{id:str}", role="viewer", tag="runs")
async def get_run(requester: RequesterOf, id: RunId) -> Run:
    """Get the row of a run."""
    return await requester.run(id).get()


RUNS = (list_runs, get_run)
