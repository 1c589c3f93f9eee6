"""Bulk jobs: bulk actions that outlive the process that was asked for them.

A job is an item. A server claims it, acts on one page of runs after the other, and saves the cursor
and the counts after each page, which renews its lease. If the server dies, the lease ends, and
another server continues from the cursor. Actions are idempotent, so a page that was acted on and
not saved does no harm when it is acted on again.
"""

from __future__ import annotations

import builtins
from typing import Any

import msgspec

from holdfast.engine.client.bulk import BULK_STATUSES, ERRORS_MAX
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import validated_bulk_filter, validated_limit
from holdfast.errors import BulkJobEnded, BulkJobNotFound, ConditionFailed, JournalDamaged
from holdfast.model.names import validated_name, validated_tenant
from holdfast.model.progress import BulkProgress
from holdfast.model.service import BulkJob, BulkJobPage, BulkRequest, BulkStatus
from holdfast.records.bulk_job import (
    BULKS,
    bulk_job_of,
    cancel_bulk_write,
    claim_bulk_write,
    create_bulk_write,
    due_bulk_job,
    end_bulk_write,
    progress_bulk_write,
)
from holdfast.records.index_keys import due_by
from holdfast.records.keys import bulk_key, bulk_partition
from holdfast.records.run_filter import RunFilter
from holdfast.storage import All, Key, UpTo

__all__ = ["BulkJobs", "ClaimedBulkJob"]

LEASE_MS = 60_000
"""How long a server may take for a page before another one continues the job."""
_LOOKED_AT_MAX = 100


class BulkJobs:
    """The bulk jobs of a store: adds, lists and cancels them, and claims them for a server."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def add(self, request: BulkRequest, run_filter: RunFilter, *, tenant: str) -> BulkJob:
        """Store a job. After the return, any server carries it out.

        Raises:
            InvalidQuery: the filter has no condition, unless the request says ``everything``; or a
                status to which the action does not apply.
            InvalidName: the tenant has an invalid name.
        """
        among = BULK_STATUSES[request.action]
        validated_bulk_filter(run_filter, among=among, everything=request.everything)
        write = create_bulk_write(
            validated_tenant(tenant),
            self._kernel.ids.new(),
            request,
            now_ms=self._kernel.clock.now_ms(),
            token=self._kernel.ids.new(),
        )
        return bulk_job_of(await self._kernel.resolve_write(self._kernel.bulk_jobs, write))

    async def get(self, id: str, *, tenant: str) -> BulkJob:
        """Return a job.

        Raises:
            BulkJobNotFound: there is no such job.
            InvalidName: an invalid id or tenant.
        """
        key = _key_of(id, tenant)
        item = await self._kernel.bulk_jobs.get(key)
        if item is None:
            raise _not_found(id)
        return bulk_job_of(item)

    async def list(
        self, *, tenant: str, limit: int = 100, cursor: str | None = None
    ) -> BulkJobPage:
        """Return a page of the tenant's jobs, the newest first.

        Raises:
            InvalidQuery: the limit is not from 1 to 1,000.
            InvalidName: an invalid tenant or cursor.
        """
        limit = validated_limit(limit)
        where = All() if cursor is None else UpTo(validated_name(cursor, "cursor"))
        page = await self._kernel.bulk_jobs.query(
            bulk_partition(validated_tenant(tenant)), where, forward=False, limit=limit + 1
        )
        items = [item for item in page.items if item["SK"] != cursor]
        shown = items[:limit]
        jobs: builtins.list[BulkJob] = []
        for item in shown:
            try:
                jobs.append(bulk_job_of(item))
            except JournalDamaged as error:  # the others can be read
                self._kernel.note_damage(item, error)
        has_more = len(items) > limit or page.cursor is not None
        return BulkJobPage(jobs, shown[-1]["SK"] if shown and has_more else None)

    async def cancel(self, id: str, *, tenant: str) -> BulkJob:
        """Cancel a job. Its server stops before its next page; cancelling it again does nothing.

        Raises:
            BulkJobNotFound: there is no such job.
            BulkJobEnded: the job has ended in another way.
            InvalidName: an invalid id or tenant.
        """
        key = _key_of(id, tenant)
        write = cancel_bulk_write(
            tenant, key.sk, now_ms=self._kernel.clock.now_ms(), token=self._kernel.ids.new()
        )
        try:
            return bulk_job_of(await self._kernel.resolve_write(self._kernel.bulk_jobs, write))
        except ConditionFailed as failed:
            if failed.item is None:
                raise _not_found(id) from None
            job = bulk_job_of(failed.item)
            if job.status != "cancelled":
                raise BulkJobEnded(f"the bulk job {id!r:.80} has {job.status}") from None
            return job

    async def claim_due(self) -> ClaimedBulkJob | None:
        """Claim a job that no live server carries out, the one that is due for longest.

        Raises:
            StoreError: the store cannot be read.
        """
        now = self._kernel.clock.now_ms()
        page = await self._kernel.due.query(BULKS, due_by(now), index="GSI1", limit=_LOOKED_AT_MAX)
        for entry in page.items:
            try:
                due_ms, key = due_bulk_job(entry)
            except JournalDamaged as error:
                self._kernel.note_damage(entry, error)
                continue
            owner = self._kernel.ids.new()
            job = await self._claim(key, due_ms, owner)
            if job is not None:
                return ClaimedBulkJob(self._kernel, job, owner)
        return None

    async def _claim(self, key: Key, due_ms: int, owner: str) -> BulkJob | None:
        now = self._kernel.clock.now_ms()
        write = claim_bulk_write(
            key.pk.partition("#")[2],
            key.sk,
            due_ms=due_ms,
            owner=owner,
            now_ms=now,
            expires_ms=now + LEASE_MS,
            token=self._kernel.ids.new(),
        )
        try:
            item = await self._kernel.resolve_write(self._kernel.bulk_jobs, write)
        except ConditionFailed:  # another server was first, or the job has ended
            return None
        try:
            return bulk_job_of(item)
        except JournalDamaged as error:  # it is claimed again after the lease, and logged again
            self._kernel.note_damage(item, error)
            return None


class ClaimedBulkJob:
    """A job that this process carries out."""

    def __init__(self, kernel: Kernel, job: BulkJob, owner: str) -> None:
        self.job = job
        self._kernel = kernel
        self._owner = owner

    @property
    def run_filter(self) -> RunFilter:
        """The filter of the job."""
        return RunFilter(**self.job.filter)

    def added(self, page: BulkProgress) -> BulkProgress:
        """Return the progress of the job with what this process has done since it claimed it."""
        before = self.job.progress
        return BulkProgress(
            seen=before.seen + page.seen,
            done=before.done + page.done,
            refused=before.refused + page.refused,
            failed=before.failed + page.failed,
            cursor=page.cursor,
            errors=(*before.errors, *page.errors)[:ERRORS_MAX],
        )

    async def save(self, progress: BulkProgress) -> bool:
        """Save the progress and renew the lease; return False if this process must stop.

        It must if the job was cancelled, or if another process has claimed it.
        """
        now = self._kernel.clock.now_ms()
        return await self._write(
            progress_bulk_write(
                self.job.tenant,
                self.job.id,
                progress,
                owner=self._owner,
                now_ms=now,
                expires_ms=now + LEASE_MS,
                token=self._kernel.ids.new(),
            )
        )

    async def end(
        self, status: BulkStatus, progress: BulkProgress, *, error: str | None = None
    ) -> None:
        """Record that the job has ended, unless it is no longer this process's."""
        await self._write(
            end_bulk_write(
                self.job.tenant,
                self.job.id,
                status,
                progress=msgspec.structs.replace(progress, cursor=None),
                error=error,
                owner=self._owner,
                now_ms=self._kernel.clock.now_ms(),
                token=self._kernel.ids.new(),
            )
        )

    async def _write(self, write: Any) -> bool:
        try:
            await self._kernel.resolve_write(self._kernel.bulk_jobs, write)
        except ConditionFailed:
            return False
        return True


def _key_of(id: str, tenant: str) -> Key:
    return bulk_key(validated_tenant(tenant), validated_name(id, "id"))


def _not_found(id: str) -> BulkJobNotFound:
    return BulkJobNotFound(f"there is no bulk job {id!r:.80}")
