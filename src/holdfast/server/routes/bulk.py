"""Routes of bulk jobs: actions on many runs, which servers carry out one page after the other."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar.params import PathParameter
from litestar.types import Scope
from msgspec import Meta

from holdfast.errors import InvalidQuery
from holdfast.model.service import BulkAction, BulkJob, BulkJobPage, BulkRequest
from holdfast.records.run_filter import RunFilter
from holdfast.server.caller import RequesterOf
from holdfast.server.encoding import JsonResponse
from holdfast.server.parameters import Cursor, FilterBody, Limit, address
from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["BULK"]

JobId = Annotated[str, PathParameter(description="The job's id.", min_length=1, max_length=128)]


class BulkBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action on all runs that meet a filter."""

    action: BulkAction
    filter: FilterBody = FilterBody()
    reason: Annotated[str, Meta(max_length=400)] = ""
    keep_answers: bool = False
    limit: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    dry_run: bool = False
    everything: bool = False


@route("POST", "/v1/bulk", role="operator", tag="bulk", status=202, located=True, returns=BulkJob)
async def start_bulk(
    requester: RequesterOf, services: ServicesOf, scope: Scope, data: BulkBody
) -> JsonResponse[BulkJob]:
    """Cancel or retry many runs. The answer is a job, which survives the death of a server.

    A filter without a condition needs everything=true. With dry_run the runs are only counted.
    """
    conditions = msgspec.to_builtins(data.filter)
    run_filter = RunFilter(**conditions)
    if run_filter.is_empty and not data.everything:
        raise InvalidQuery(
            'filter is empty. Pass "everything": true to act on all runs of the tenant.',
            field="everything",
        )
    request = BulkRequest(
        action=data.action,
        filter=conditions,
        reason=data.reason,
        keep_answers=data.keep_answers,
        limit=data.limit,
        dry_run=data.dry_run,
        everything=data.everything,
    )
    jobs = requester.hf.bulk_jobs
    job = await jobs.add(request, run_filter, tenant=requester.tenant)
    services.bulk.wake()
    return JsonResponse(job, headers={"Location": address(scope, "bulk", job.id)})


@route("GET", "/v1/bulk", role="viewer", tag="bulk", etag=True)
async def list_bulk(
    requester: RequesterOf, limit: Limit = 100, cursor: Cursor = None
) -> BulkJobPage:
    """List bulk jobs, the newest first."""
    jobs = requester.hf.bulk_jobs
    return await jobs.list(tenant=requester.tenant, limit=limit, cursor=cursor)


@route("GET", "/v1/bulk/{id:str}", role="viewer", tag="bulk", etag=True)
async def get_bulk(requester: RequesterOf, id: JobId) -> BulkJob:
    """Get a bulk job and its progress."""
    return await requester.hf.bulk_jobs.get(id, tenant=requester.tenant)


@route("DELETE", "/v1/bulk/{id:str}", role="operator", tag="bulk", status=200, conflicts=True)
async def cancel_bulk(requester: RequesterOf, id: JobId) -> BulkJob:
    """Cancel a bulk job. Runs that it has acted on stay as they are."""
    return await requester.hf.bulk_jobs.cancel(id, tenant=requester.tenant)


BULK = (start_bulk, list_bulk, get_bulk, cancel_bulk)
