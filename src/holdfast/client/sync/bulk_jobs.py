# Generated from src/holdfast/client/bulk_jobs.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `RemoteBulkJobs`; the async one is `holdfast.client.bulk_jobs.RemoteBulkJobs`."""

from __future__ import annotations

from holdfast.client.bulk_jobs import RemoteBulkJobs as AsyncRemoteBulkJobs
from holdfast.model.service import BulkJob, BulkJobPage, BulkRequest
from holdfast.portal import Portal
from holdfast.records.run_filter import RunFilter

__all__ = ["RemoteBulkJobs"]


class RemoteBulkJobs:
    """The bulk jobs of a server: adds, reads, lists and cancels them."""

    def __init__(self, portal: Portal, bulk_jobs: AsyncRemoteBulkJobs) -> None:
        self._portal = portal
        self._bulk_jobs = bulk_jobs

    def add(
        self, request: BulkRequest, run_filter: RunFilter, *, tenant: str | None = None
    ) -> BulkJob:
        """Add a job. After the return, any server of the store carries it out.

        Raises:
            InvalidQuery: the filter has no condition, unless the request says ``everything``; or a
                status to which the action does not apply.
            InvalidName: the tenant has an invalid name.
            ServerUnavailable: the server did not answer in time; the job may have begun.
        """
        return self._portal.call(self._bulk_jobs.add, request, run_filter, tenant=tenant)

    def get(self, id: str, *, tenant: str | None = None) -> BulkJob:
        """Return a job.

        Raises:
            BulkJobNotFound: there is no such job.
            InvalidName: an invalid id or tenant.
        """
        return self._portal.call(self._bulk_jobs.get, id, tenant=tenant)

    def list(
        self, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> BulkJobPage:
        """Return a page of the tenant's jobs, the newest first.

        Raises:
            InvalidQuery: the limit is not from 1 to 1,000.
            InvalidName: an invalid tenant or cursor.
        """
        return self._portal.call(self._bulk_jobs.list, tenant=tenant, limit=limit, cursor=cursor)

    def cancel(self, id: str, *, tenant: str | None = None) -> BulkJob:
        """Cancel a job. Its server stops before its next page; cancelling it again does nothing.

        Raises:
            BulkJobNotFound: there is no such job.
            BulkJobEnded: the job has ended in another way.
            InvalidName: an invalid id or tenant.
        """
        return self._portal.call(self._bulk_jobs.cancel, id, tenant=tenant)
