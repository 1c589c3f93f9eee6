"""Acts on every run that a filter finds: page by page, several at a time, and resumable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from holdfast.engine.history.lists import listed
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
from holdfast.model.run_filter import RunFilter
from holdfast.records.keys import RunKey

__all__ = ["Act", "acted"]

Act = Callable[[RunKey], Awaitable[None]]

_RUNS_A_PAGE = 400
_AT_ONCE = 16
_ERRORS_MAX = 5
# What a run says that is not, or no longer, what the list showed of it.
_REFUSALS = (RunEnded, RunNotFound, NotRetryable)


async def acted(
    kernel: Kernel,
    tenant: str,
    asked: RunFilter,
    act: Act | None,
    *,
    limit: int | None,
    cursor: str | None,
) -> AsyncGenerator[BulkProgress, None]:
    """Act on the runs that fit, the newest first; yield how far it is after each page.

    The list may be a moment old. That is harmless: to act is a conditional write on the run's own
    row, and what has ended meanwhile is refused. Without an act the runs are only counted.

    Raises:
        InvalidQuery: not a cursor of such a list.
        StoreUnavailable: the store did not answer for a while; go on from the last cursor.
        StoreUnusable: somebody has to mend the store first; likewise.
    """
    progress = BulkProgress(cursor=cursor)
    while True:
        room = _RUNS_A_PAGE if limit is None else min(_RUNS_A_PAGE, limit - progress.seen)
        page = await kernel.persistently(
            partial(listed, kernel, tenant, asked, limit=room, cursor=progress.cursor)
        )
        outcomes = [] if act is None else await _all(kernel, act, page.runs)
        errors = [
            f"run {entry.id!r}: {error} [{error.code}]"
            for entry, error in zip(page.runs, outcomes, strict=act is not None)
            if error is not None and not isinstance(error, _REFUSALS)
        ]
        refused = sum(isinstance(error, _REFUSALS) for error in outcomes)
        progress = BulkProgress(
            seen=progress.seen + len(page.runs),
            done=progress.done + len(outcomes) - refused - len(errors),
            refused=progress.refused + refused,
            failed=progress.failed + len(errors),
            cursor=page.cursor,
            errors=(*progress.errors, *errors)[:_ERRORS_MAX],
        )
        yield progress
        if page.cursor is None or progress.seen == limit:
            return


async def _all(kernel: Kernel, act: Act, entries: list[RunEntry]) -> list[HoldfastError | None]:
    """Act on all of them, a few at a time; return what each said."""
    outcomes: list[HoldfastError | None] = []
    for start in range(0, len(entries), _AT_ONCE):
        some = entries[start : start + _AT_ONCE]
        tried = (_tried(kernel, act, RunKey(entry.tenant, entry.id)) for entry in some)
        said = await asyncio.gather(*tried)
        for error in said:
            if isinstance(error, StoreUnavailable | StoreUnusable):
                raise error  # all others would say the same
        outcomes += said
    return outcomes


async def _tried(kernel: Kernel, act: Act, run: RunKey) -> HoldfastError | None:
    try:
        await kernel.persistently(partial(act, run))
    except HoldfastError as error:
        return error
    return None
