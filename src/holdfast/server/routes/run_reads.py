"""Routes that read one run."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from litestar.params import QueryParameter

from holdfast.model.run import HistoryPage, Run, RunEntry, RunPage, SetAsideSignal, WaitPage
from holdfast.model.service import RunInput, RunResult, RunState, SetAsidePage
from holdfast.model.spending import Spending
from holdfast.records.head import ENDED
from holdfast.server.caller import RequesterOf
from holdfast.server.encoding import JsonResponse
from holdfast.server.long_polls import preferred_seconds, wait_for_result
from holdfast.server.parameters import Cursor, Limit, Prefer, RunId, paged
from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["RUN_READS"]

_At = Annotated[
    str | None,
    QueryParameter(max_length=128, description="The cursor of an entry of the run's history."),
]
_Branch = Annotated[
    str, QueryParameter(max_length=1024, description="The branch as which to see the state.")
]
# The row says that the run has ended, so that its result is there.
_RESULT_SECONDS = 5


@route("GET", "/v1/runs/{id:str}", role="viewer", tag="runs", etag=True)
async def get_run(requester: RequesterOf, id: RunId) -> Run:
    """Get the row of a run."""
    return await requester.run(id).get()


@route("GET", "/v1/runs/{id:str}/history", role="viewer", tag="runs", etag=True)
async def get_history(
    requester: RequesterOf, id: RunId, limit: Limit = 100, cursor: Cursor = None
) -> HistoryPage:
    """Get a page of the history of a run, the oldest entry first."""
    return await requester.run(id).history(limit=limit, cursor=cursor)


@route("GET", "/v1/runs/{id:str}/state", role="viewer", tag="runs", etag=True)
async def get_state(
    requester: RequesterOf, id: RunId, at: _At = None, branch: _Branch = ""
) -> RunState:
    """Get the state of a run after its last finished node, or after an entry of its history."""
    return RunState(await requester.run(id).state(at=at, branch=branch))


@route("GET", "/v1/runs/{id:str}/input", role="viewer", tag="runs", etag=True)
async def get_input(requester: RequesterOf, id: RunId) -> RunInput:
    """Get the input of a run."""
    return RunInput(await requester.run(id).input())


@route(
    "GET",
    "/v1/runs/{id:str}/result",
    role="viewer",
    tag="runs",
    conflicts=True,
    also={202: Run},
    returns=RunResult,
)
async def get_result(
    requester: RequesterOf, services: ServicesOf, id: RunId, prefer: Prefer = None
) -> JsonResponse[Any]:
    """Get the result of a run that finished.

    It answers 202 with the row if the run has not ended, and 409 if the run ended without a result.
    It does not wait, unless Prefer: wait=30 says for how many seconds.
    """
    run = requester.run(id)
    row = await run.get()
    if row.into is not None:
        run = requester.run(row.into)
        row = await run.get()
    if row.status in ENDED:
        with suppress(TimeoutError):  # it was retried since
            return JsonResponse(RunResult(await run.result(timeout=_RESULT_SECONDS)))
    elif seconds := preferred_seconds(prefer):
        ended = await wait_for_result(services, run, seconds)
        if ended is not None:
            return JsonResponse(ended)
    else:
        return JsonResponse(row, status_code=202)
    return JsonResponse(await run.get(), status_code=202)


@route("GET", "/v1/runs/{id:str}/waits", role="viewer", tag="runs", etag=True)
async def get_waits(
    requester: RequesterOf, id: RunId, limit: Limit = 100, cursor: Cursor = None
) -> WaitPage:
    """Get a page of everything that a run waits for, the longest wait first."""
    return await requester.run(id).waits(limit=limit, cursor=cursor)


@route("GET", "/v1/runs/{id:str}/children", role="viewer", tag="runs", etag=True)
async def list_children(
    requester: RequesterOf, id: RunId, limit: Limit = 100, cursor: Cursor = None
) -> RunPage:
    """List the runs that a run started, the oldest first."""
    found = await requester.run(id).children()
    return RunPage(*paged(found, _child_position, limit=limit, cursor=cursor))


@route("GET", "/v1/runs/{id:str}/spending", role="viewer", tag="runs", etag=True)
async def get_spending(requester: RequesterOf, id: RunId) -> Spending:
    """Get what a run and the runs that share its budget have spent."""
    return await requester.run(id).spending()


@route("GET", "/v1/runs/{id:str}/set-aside", role="viewer", tag="runs", etag=True)
async def list_set_aside(
    requester: RequesterOf, id: RunId, limit: Limit = 100, cursor: Cursor = None
) -> SetAsidePage:
    """List the signals that a run has set aside, the oldest first.

    A run sets a signal aside if its payload does not fit the type of the wait.
    """
    found = list(enumerate(await requester.run(id).set_aside()))
    page, following = paged(found, _number, limit=limit, cursor=cursor)
    return SetAsidePage([signal for _, signal in page], following)


def _child_position(entry: RunEntry) -> str:
    return f"{round(entry.created_at.timestamp() * 1000):013d}#{entry.id}"


def _number(numbered: tuple[int, SetAsideSignal]) -> str:
    return f"{numbered[0]:09d}"


RUN_READS = (
    get_run,
    get_history,
    get_state,
    get_input,
    get_result,
    get_waits,
    list_children,
    get_spending,
    list_set_aside,
)
