"""Routes for operators: workers, runs that make no progress, counts, cost."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import QueryParameter

from holdfast.errors import Forbidden
from holdfast.model.fleet import CostPage, FleetOverview, GraphEntry, StalledPage, WorkerEntry
from holdfast.model.json_form import JsonForm
from holdfast.records.run_filter import RunFilter
from holdfast.server.caller import ANY_TENANT, Requester, RequesterOf
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
from holdfast.server.roles import includes
from holdfast.server.routing import route

__all__ = ["FLEET"]

Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="How many, at most.")]
Cursor = Annotated[
    str | None, QueryParameter(description="The cursor of the page before.", max_length=4096)
]
AllTenants = Annotated[
    bool,
    QueryParameter(description="Look at the runs of all tenants: for callers of every tenant."),
]


class GraphList(JsonForm, frozen=True, kw_only=True):
    """The graphs of the fleet."""

    graphs: list[GraphEntry]


class WorkerList(JsonForm, frozen=True, kw_only=True):
    """The workers of the fleet."""

    workers: list[WorkerEntry]


@route("GET", "/v1/fleet/graphs", role="viewer", tag="fleet")
async def list_published(requester: RequesterOf) -> GraphList:
    """List every graph and version that any worker or server on the store has published."""
    return GraphList(graphs=await requester.hf.fleet.graphs())


@route("GET", "/v1/workers", role="operator", tag="fleet")
async def list_workers(requester: RequesterOf) -> WorkerList:
    """List live workers, and dead ones whose runs are not all taken over yet.

    It needs the role admin, or operator with credentials for every tenant.
    """
    if requester.identity.tenant != ANY_TENANT and not includes(requester.identity.role, "admin"):
        raise Forbidden("this needs the role admin, or credentials for every tenant")
    return WorkerList(workers=await requester.hf.fleet.workers())


@route("GET", "/v1/fleet/stuck", role="viewer", tag="fleet")
async def list_stuck(
    requester: RequesterOf,
    limit: Limit = 100,
    cursor: Cursor = None,
    all_tenants: AllTenants = False,
) -> StalledPage:
    """List runs that a live worker should have claimed by now."""
    tenant = _tenant(requester, all_tenants=all_tenants)
    return await requester.hf.fleet.stuck(tenant=tenant, limit=limit, cursor=cursor)


@route("GET", "/v1/fleet/unserved", role="viewer", tag="fleet")
async def list_unserved(
    requester: RequesterOf,
    grace_seconds: Annotated[
        float, QueryParameter(ge=0, le=86_400, description="How long a run may be due.")
    ] = 30,
    limit: Limit = 100,
    cursor: Cursor = None,
    all_tenants: AllTenants = False,
) -> StalledPage:
    """List runs that no live worker serves."""
    tenant = _tenant(requester, all_tenants=all_tenants)
    return await requester.hf.fleet.unserved(
        tenant=tenant, grace=grace_seconds, limit=limit, cursor=cursor
    )


@route("GET", "/v1/fleet/overview", role="operator", tag="fleet")
async def get_overview(requester: RequesterOf) -> FleetOverview:
    """Count the runs of all tenants by state. It needs credentials for every tenant."""
    _require_every_tenant(requester)
    return await requester.hf.fleet.overview()


@route("GET", "/v1/cost", role="viewer", tag="fleet")
async def get_cost(
    requester: RequesterOf,
    by: Annotated[
        str, QueryParameter(description="graph, day, status or label:NAME.", max_length=100)
    ] = "graph",
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
    cursor: Cursor = None,
) -> CostPage:
    """Add up what runs cost, and say what the store cost this process.

    Only callers of every tenant see what the store cost: its figures are those of all tenants.
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
    page = await requester.hf.fleet.cost(
        found,
        by=by,
        tenant=requester.tenant,
        cursor=cursor,
    )
    if requester.identity.tenant == ANY_TENANT:
        return page
    return msgspec.structs.replace(page, store=[], saved_calls=0, saved_usd=0.0)


def _tenant(requester: Requester, *, all_tenants: bool) -> str:
    if not all_tenants:
        return requester.tenant
    _require_every_tenant(requester)
    return ANY_TENANT


def _require_every_tenant(requester: Requester) -> None:
    if requester.identity.tenant != ANY_TENANT:
        raise Forbidden("this needs credentials for every tenant")


FLEET = (list_published, list_workers, list_stuck, list_unserved, get_overview, get_cost)
