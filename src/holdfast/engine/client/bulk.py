"""Acts on every run that matches a filter: page by page, concurrently, and resumable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial

from holdfast.engine.history.lists import list_runs
from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    HoldfastError,
    NotRetryable,
    RunEnded,
    RunNotFound,
    StoreUnavailable,
    StoreUnusable,
)
from holdfast.model.progress import BulkProgress
from holdfast.model.run import RunEntry
from holdfast.model.service import BulkAction
from holdfast.records.head import OPEN, TROUBLED
from holdfast.records.keys import RunKey
from holdfast.records.run_filter import RunFilter

__all__ = ["BULK_STATUSES", "ERRORS_MAX", "Action", "act_on_runs"]

Action = Callable[[RunKey], Awaitable[None]]

BULK_STATUSES: Mapping[BulkAction, frozenset[str]] = {
    "cancel": OPEN | {"ready", "closing"},
    "retry": TROUBLED,
}
"""The statuses of the runs to which an action applies."""
ERRORS_MAX = 5
"""Of how many runs a progress has the errors."""

_RUNS_PER_PAGE = 400
_CONCURRENT_MAX = 16
# The errors of runs that have changed since they were listed.
_REFUSALS = (RunEnded, RunNotFound, NotRetryable)


async def act_on_runs(
    kernel: Kernel,
    tenant: str,
    run_filter: RunFilter,
    action: Action | None,
    *,
    limit: int | None,
    cursor: str | None,
) -> AsyncGenerator[BulkProgress, None]:
    """Act on all matching runs, newest first; yield the progress after each page.

    The list may be stale. That is harmless: the action is a conditional write on the run's own row,
    which refuses a run that has ended meanwhile. Without an action the runs are only counted.

    Raises:
        InvalidQuery: the cursor is not one of a list of runs.
        StoreUnavailable: the store did not answer for a while; continue from the last cursor.
        StoreUnusable: the store needs an operator; then continue from the last cursor.
    """
    progress = BulkProgress(cursor=cursor)
    while True:
        page_limit = _RUNS_PER_PAGE if limit is None else min(_RUNS_PER_PAGE, limit - progress.seen)
        page = await kernel.retry_while_unavailable(
            partial(list_runs, kernel, tenant, run_filter, limit=page_limit, cursor=progress.cursor)
        )
        outcomes = [] if action is None else await _act_on_page(kernel, action, page.runs)
        errors = [
            f"run {entry.id!r}: {error} [{error.code}]"
            for entry, error in zip(page.runs, outcomes, strict=action is not None)
            if error is not None and not isinstance(error, _REFUSALS)
        ]
        refused = sum(isinstance(error, _REFUSALS) for error in outcomes)
        progress = BulkProgress(
            seen=progress.seen + len(page.runs),
            done=progress.done + len(outcomes) - refused - len(errors),
            refused=progress.refused + refused,
            failed=progress.failed + len(errors),
            cursor=page.cursor,
            errors=(*progress.errors, *errors)[:ERRORS_MAX],
        )
        yield progress
        if page.cursor is None or progress.seen == limit:
            return


async def _act_on_page(
    kernel: Kernel, action: Action, entries: list[RunEntry]
) -> list[HoldfastError | None]:
    """Act on all runs of a page, a few at a time; return the error of each, or None."""
    outcomes: list[HoldfastError | None] = []
    for start in range(0, len(entries), _CONCURRENT_MAX):
        chunk = entries[start : start + _CONCURRENT_MAX]
        attempts = (_try_action(kernel, action, RunKey(entry.tenant, entry.id)) for entry in chunk)
        results = await asyncio.gather(*attempts)
        for error in results:
            if isinstance(error, StoreUnavailable | StoreUnusable):
                raise error  # all others would fail, too
        outcomes += results
    return outcomes


async def _try_action(kernel: Kernel, action: Action, run: RunKey) -> HoldfastError | None:
    try:
        await kernel.retry_while_unavailable(partial(action, run))
    except HoldfastError as error:
        return error
    return None
