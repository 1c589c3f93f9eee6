"""Retries runs that failed, or are quarantined."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.waking import changed
from holdfast.errors import (
    NotRetryable,
    RunEnded,
)
from holdfast.records import changes
from holdfast.records.damage import part
from holdfast.records.head import (
    TROUBLE,
    RetryRequest,
)
from holdfast.records.keys import Place, RunKey

__all__ = ["retry_run"]


async def retry_run(kernel: Kernel, run: RunKey, *, from_node: str | None) -> Place:
    """Let a run that failed, or is quarantined, go on; return where it is due.

    Raises:
        RunNotFound: there is no such run.
        NotRetryable: it has not failed.
        RunEnded: it has expired.
    """
    head = await read_row(kernel, run)
    if head.status not in TROUBLE:
        raise NotRetryable(f"run {run.id!r} is {head.status}; only one that failed can be retried")
    if kernel.clock.now_ms() >= head.expires_ms:
        raise RunEnded(f"run {run.id!r} failed, and has expired since", status="expired")
    request = RetryRequest(kernel.ids.new(), from_node)
    write = changes.with_retry(head, request, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    standing = await changed(
        kernel, head, write, lambda item: part(item, "retry_run", "id") == request.id
    )
    if standing is not None:
        raise NotRetryable(f"run {run.id!r} is {standing.status} by now")
    return changes.place_in(write)
