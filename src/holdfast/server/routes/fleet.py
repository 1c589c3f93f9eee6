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
from holdfast.server.filter_parameters import takes_filter
from holdfast.server.parameters import Cursor, Limit
from holdfast.server.roles import includes
from holdfast.server.routing import route

__all__ = ["FLEET"]

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

    It needs the role admin, or operator with credentials for every tenant. Only callers of every
    tenant see the hosts and processes of workers.
    """
    sees_processes = requester.identity.tenant == ANY_TENANT
    if not sees_processes and not includes(requester.identity.role, "admin"):
        raise Forbidden("this needs the role admin, or credentials for every tenant")
    workers = await requester.hf.fleet.workers()
    if not sees_processes:
        workers = [msgspec.structs.replace(each, host="", pid=None) for each in workers]
    return WorkerList(workers=workers)


@route("GET", "/v1/fleet/stuck", role="viewer", tag="fleet")
async def list_stuck(
    requester: RequesterOf,
    limit: Limit = 100,
    cursor: Cursor = None,
    all_tenants: AllTenants = False,
) -> StalledPage:
    """List runs that a live worker should have claimed by now.

    Also runs that wait for a review, if no reviewer could be notified of it.
    """
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
@takes_filter
async def get_cost(
    requester: RequesterOf,
    run_filter: RunFilter,
    by: Annotated[
        str, QueryParameter(description="graph, day, status or label:NAME.", max_length=100)
    ] = "graph",
    cursor: Cursor = None,
) -> CostPage:
    """Add up what runs cost, and say what the store cost this process.

    Only callers of every tenant see what the store cost: its figures are those of all tenants.
    """
    page = await requester.hf.fleet.cost(run_filter, by=by, tenant=requester.tenant, cursor=cursor)
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
