"""`RemoteBulkJobs`: the bulk actions that a server carries out."""

from __future__ import annotations

from holdfast.client.arguments import filter_body
from holdfast.client.connection import ServerConnection
from holdfast.client.reading import read
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.model.names import validated_name
from holdfast.model.service import BulkJob, BulkJobPage, BulkRequest
from holdfast.records.run_filter import RunFilter

__all__ = ["RemoteBulkJobs"]


class RemoteBulkJobs:
    """The bulk jobs of a server: adds, reads, lists and cancels them.

    `Client.cancel_all` and `Client.retry_all` add a job and follow it to its end.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def add(
        self, request: BulkRequest, run_filter: RunFilter, *, tenant: str | None = None
    ) -> BulkJob:
        """Add a job. After the return, any server of the store carries it out.

        Raises:
            InvalidQuery: the filter has no condition, unless the request says ``everything``; or a
                status to which the action does not apply.
            InvalidName: the tenant has an invalid name.
            ServerUnavailable: the server did not answer in time; the job may have begun.
        """
        body = {
            "action": request.action,
            "filter": filter_body(run_filter),
            "reason": request.reason,
            "keep_answers": request.keep_answers,
            "limit": request.limit,
            "dry_run": request.dry_run,
            "everything": request.everything,
        }
        return read(BulkJob, await self._connection.call("bulk_add", body=body, tenant=tenant))

    async def get(self, id: str, *, tenant: str | None = None) -> BulkJob:
        """Return a job.

        Raises:
            BulkJobNotFound: there is no such job.
            InvalidName: an invalid id or tenant.
        """
        names = {"id": validated_name(id, "id")}
        return read(BulkJob, await self._connection.call("bulk_get", names=names, tenant=tenant))

    async def list(
        self, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> BulkJobPage:
        """Return a page of the tenant's jobs, the newest first.

        Raises:
            InvalidQuery: the limit is not from 1 to 1,000.
            InvalidName: an invalid tenant or cursor.
        """
        query = {"limit": validated_limit(limit), "cursor": cursor}
        shown = await self._connection.call("bulk_list", query=query, tenant=tenant)
        return read(BulkJobPage, shown)

    async def cancel(self, id: str, *, tenant: str | None = None) -> BulkJob:
        """Cancel a job. Its server stops before its next page; cancelling it again does nothing.

        Raises:
            BulkJobNotFound: there is no such job.
            BulkJobEnded: the job has ended in another way.
            InvalidName: an invalid id or tenant.
        """
        names = {"id": validated_name(id, "id")}
        return read(BulkJob, await self._connection.call("bulk_cancel", names=names, tenant=tenant))
