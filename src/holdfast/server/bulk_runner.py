"""Carries out bulk jobs in a server: its own, and those of servers that died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from types import TracebackType

from holdfast.app import Holdfast
from holdfast.display import get_logger
from holdfast.engine.client.bulk_jobs import ClaimedBulkJob
from holdfast.errors import HoldfastError, StoreError
from holdfast.model.progress import BulkProgress

__all__ = ["BulkRunner"]

_log = get_logger("holdfast.server")

_POLL_SECONDS = 5.0


class BulkRunner:
    """Claims bulk jobs that no live server carries out, and carries them out."""

    def __init__(self, hf: Holdfast, *, poll_seconds: float = _POLL_SECONDS) -> None:
        self._hf = hf
        self._poll_seconds = poll_seconds
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Look for jobs now: one was added."""
        self._news.set()

    async def __aenter__(self) -> BulkRunner:
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop. Another server continues the jobs when their leases end."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            try:
                await self.carry_out_due()
            except HoldfastError as error:
                _log.warning("bulk jobs could not be claimed: %s", error)
            except Exception:
                _log.exception("a bulk job could not be carried out")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):
                    await self._news.wait()
            self._news.clear()

    async def carry_out_due(self) -> None:
        """Carry out the jobs that no live server carries out, one after the other.

        Raises:
            StoreError: the store cannot be read.
        """
        while claimed := await self._hf.bulk_jobs.claim_due():
            await self._carry_out(claimed)

    async def _carry_out(self, claimed: ClaimedBulkJob) -> None:
        """Act on page after page, until the job has ended or is no longer this server's."""
        progress = claimed.job.progress
        if progress.seen == claimed.job.limit:  # its last server died before it said so
            return await claimed.end("finished", progress)
        try:
            async with aclosing(self._pages(claimed)) as pages:
                async for page in pages:
                    progress = claimed.added(page)
                    if page.cursor is not None and not await claimed.save(progress):
                        return
        except StoreError as error:  # the job is continued when its lease ends
            _log.warning("bulk job %s stopped: %s", claimed.job.id, error)
        except HoldfastError as error:
            await claimed.end("failed", progress, error=f"{error} [{error.code}]")
        else:
            await claimed.end("finished", progress)
        return None

    def _pages(self, claimed: ClaimedBulkJob) -> AsyncGenerator[BulkProgress, None]:
        job = claimed.job
        limit = None if job.limit is None else job.limit - job.progress.seen
        if job.action == "retry":
            return self._hf.retry_all(
                claimed.run_filter,
                tenant=job.tenant,
                limit=limit,
                cursor=job.progress.cursor,
                everything=job.everything,
                dry_run=job.dry_run,
                keep_answers=job.keep_answers,
            )
        return self._hf.cancel_all(
            claimed.run_filter,
            tenant=job.tenant,
            reason=job.reason,
            limit=limit,
            cursor=job.progress.cursor,
            everything=job.everything,
            dry_run=job.dry_run,
        )
