"""Retries runs that have failed or are quarantined."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.waking import update_head
from holdfast.errors import (
    NotRetryable,
    RunEnded,
)
from holdfast.records import run_writes
from holdfast.records.damage import attribute_part
from holdfast.records.head import (
    TROUBLED,
    Head,
    RetryRequest,
)
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import RunKey
from holdfast.records.shown_status import shown_status

__all__ = ["retry_run"]


async def retry_run(
    kernel: Kernel, run: RunKey, *, from_node: str | None, keep_answers: bool
) -> IndexKey:
    """Retry a run that has failed or is quarantined; return its key in the due index.

    The waits for signals of the failed visit ask again, unless they ``keep_answers``.

    Raises:
        RunNotFound: there is no such run.
        NotRetryable: the run has not failed.
        RunEnded: the run failed, and has expired since.
    """
    head = await read_row(kernel, run)
    _check_retryable(kernel, head)
    request = RetryRequest(kernel.ids.new(), from_node, keep_answers or None)
    while True:
        write = run_writes.retry_write(
            head, request, now_ms=kernel.clock.now_ms(), token=kernel.ids.new()
        )
        current = await update_head(
            kernel, head, write, lambda item: attribute_part(item, "retry", "id") == request.id
        )
        if current is None:
            return run_writes.index_key_in(write)
        head = current  # a caller may have extended the run, or retried it
        _check_retryable(kernel, head)


def _check_retryable(kernel: Kernel, head: Head) -> None:
    run = head.key
    now_ms = kernel.clock.now_ms()
    if head.chunk is not None and head.parent is not None:
        raise NotRetryable(
            f"run {run.id!r} is a chunk of map {head.chunk.map!r} of run {head.parent.id!r}: retry "
            "the items of the map that failed, or that run"
        )
    if head.status not in TROUBLED:
        status = shown_status(head, now_ms=now_ms)
        raise NotRetryable(
            f"run {run.id!r} is {status}; only a failed or quarantined run can be retried"
        )
    if now_ms >= head.expires_ms:
        raise RunEnded(
            f"run {run.id!r} is {head.status}, and has expired since: extend it first, then retry "
            "it",
            status="expired",
        )
