"""Routes that start and list runs."""

from __future__ import annotations

from contextlib import suppress

from litestar.types import Scope
from msgspec import structs

from holdfast.errors import HoldfastError, Unsuccessful
from holdfast.model.run import RunPage
from holdfast.model.service import StartedRun
from holdfast.records.run_filter import RunFilter
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.encoding import JsonResponse
from holdfast.server.filter_parameters import (
    CostMax,
    CostMin,
    GraphIs,
    LabelIs,
    NodeIs,
    ReasonIs,
    Since,
    StatusIs,
    Until,
    UpdatedSince,
    UpdatedUntil,
    labels_of,
)
from holdfast.server.long_polls import preferred_seconds, wait_for_result
from holdfast.server.parameters import (
    Cursor,
    IdempotencyKey,
    Limit,
    Prefer,
    StartBody,
    address,
    key_digest,
)
from holdfast.server.routing import route
from holdfast.server.services import Services, ServicesOf

__all__ = ["RUNS"]


@route(
    "POST",
    "/v1/runs",
    role="operator",
    tag="runs",
    status=201,
    conflicts=True,
    missing=True,
    also={200: StartedRun},
    returns=StartedRun,
)
async def start_run(
    requester: RequesterOf,
    services: ServicesOf,
    scope: Scope,
    data: StartBody,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
) -> JsonResponse[StartedRun]:
    """Start a run. The answer comes as soon as the start is stored.

    With Prefer: wait=30 the answer waits up to so many seconds for the end of the run, and then has
    its status, and its result if it finished.

    A start that is repeated with the same id or Idempotency-Key, and with the same input and user,
    answers 200 with the same run; with another input it answers 409.
    """
    bound_to = f"{requester.tenant}\0{data.graph}"
    run = await requester.hf.start(
        services.graph(data.graph),
        data.input,
        id=key_digest(idempotency_key, data.id, field="id", bound_to=bound_to),
        tenant=requester.tenant,
        user=data.user,
        labels=data.labels,
        pool=data.pool,
        session=data.session,
        on_busy=data.on_busy,
        durability="every_node",  # the answer must not wait for a pause
        start_at=data.start_at,
        expires=data.expires,
        retention=data.retention,
        budget=None if data.budget is None else data.budget.budget(),
    )
    url = address(scope, "runs", run.id)
    started = StartedRun(id=run.id, tenant=run.tenant, url=url)
    if seconds := preferred_seconds(prefer):
        started = await _after_wait(services, requester, started, seconds)
    return JsonResponse(
        started,
        status_code=200 if run.repeated else 201,
        headers={"Location": url},
    )


async def _after_wait(
    services: Services, requester: Requester, started: StartedRun, seconds: int
) -> StartedRun:
    """Wait for the end of a run that was just started; return what became of it.

    The start is stored. An answer with an error would make the caller start another run, so an
    answer without a status says that the store cannot be read now.
    """
    run = requester.run(started.id)
    try:
        ended = await wait_for_result(services, run, seconds)
        if ended is not None:
            return structs.replace(started, status="finished", result=ended.result)
    except Unsuccessful:
        pass
    except HoldfastError:
        return started
    with suppress(HoldfastError):
        return structs.replace(started, status=(await run.get()).status)
    return started


@route("GET", "/v1/runs", role="viewer", tag="runs", etag=True)
async def list_runs(
    requester: RequesterOf,
    status: StatusIs = None,
    graph: GraphIs = None,
    label: LabelIs = None,
    since: Since = None,
    until: Until = None,
    reason: ReasonIs = None,
    node: NodeIs = None,
    updated_since: UpdatedSince = None,
    updated_until: UpdatedUntil = None,
    cost_usd_min: CostMin = None,
    cost_usd_max: CostMax = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> RunPage:
    """List runs, the newest first: those that meet all conditions given.

    A page may have fewer runs than the limit, and a cursor.
    """
    found = RunFilter(
        status,
        graph=graph,
        labels=labels_of(label or []),
        since=since,
        until=until,
        reason=reason,
        node=node,
        updated_since=updated_since,
        updated_until=updated_until,
        cost_usd_min=cost_usd_min,
        cost_usd_max=cost_usd_max,
    )
    return await requester.hf.list(found, tenant=requester.tenant, limit=limit, cursor=cursor)


RUNS = (start_run, list_runs)
