"""Whether it is a run's turn in its session, and what is done about those before it."""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.session_queue import load_queue
from holdfast.engine.runs.waking import wake_queued
from holdfast.errors import HoldfastError, RunEnded, RunNotFound
from holdfast.model.execution import Execution
from holdfast.records.head import Head
from holdfast.records.keys import RunKey, SessionQueueKey
from holdfast.records.session_queue import session_queue_of

__all__ = ["defer_to_earlier", "recheck_queue"]


async def defer_to_earlier(
    kernel: Kernel, workers: LocalWorkers, head: Head, execution: Execution
) -> bool:
    """Return whether others go before a run that is about to begin; end them if it is to.

    Whoever was in front once stays there, so a run that got anywhere need not ask.
    """
    if (
        head.session_queue is None
        or execution.nodes_run
        or not await _check_behind(kernel, head, head.session_queue)
    ):
        return False
    if head.replaces:
        with suppress(HoldfastError):  # it is asked again
            await _cancel_earlier(kernel, workers, head, head.session_queue)
    return True


async def recheck_queue(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """See to a run that was just queued: those before it may have left before it was there."""
    if head.session_queue is None:
        return
    # Whatever goes wrong here is mended when the run asks by itself.
    with suppress(HoldfastError):
        if head.replaces:
            await _cancel_earlier(kernel, workers, head, head.session_queue)
        if not await _check_behind(kernel, head, head.session_queue):
            await wake_queued(kernel, workers, head)


async def _check_behind(kernel: Kernel, head: Head, key: SessionQueueKey) -> bool:
    first = (await load_queue(kernel, key)).first
    return first is not None and first.ticket.number < head.ticket


async def _cancel_earlier(
    kernel: Kernel, workers: LocalWorkers, head: Head, key: SessionQueueKey
) -> None:
    queue = session_queue_of([item async for item in kernel.session_queues.query_all(key.pk)])
    reason = f"replaced by run {head.key.id!r}"
    # The last one first, so that none of them begins when the one before it ends.
    for ticket in reversed(queue.tickets):
        if ticket.number < head.ticket:
            run = RunKey(key.tenant, ticket.run)
            with suppress(RunEnded, RunNotFound):
                await cancel_run(kernel, run, reason=reason, workers=workers)
                workers.interrupt(run)
