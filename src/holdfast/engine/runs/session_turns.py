"""Decides whether it is a run's turn in its session, and cancels the runs that it replaces."""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.session_queue import prune_queue
from holdfast.engine.runs.waking import wake_queued
from holdfast.errors import HoldfastError, RunEnded, RunNotFound
from holdfast.model.execution import Execution
from holdfast.records.head import Head
from holdfast.records.keys import RunKey
from holdfast.records.session_queue import session_queue_of

__all__ = ["needs_turn", "prune_earlier", "recheck_queue", "replace_earlier"]


def needs_turn(head: Head, execution: Execution) -> bool:
    """Return whether a run has to wait for its turn in a session.

    A run that once reached the front stays there, so a run that ran a node does not have to.
    """
    return head.session_queue is not None and not execution.nodes_run


async def prune_earlier(kernel: Kernel, head: Head) -> bool:
    """Delete the stale tickets at the front of a run's session queue.

    Return whether live runs remain before it.
    """
    if head.session_queue is None:
        return False
    first = (await prune_queue(kernel, head.session_queue)).first
    return first is not None and first.ticket.number < head.ticket


async def replace_earlier(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Cancel all earlier runs of the session, if the run was started to replace them.

    Errors are ignored: the run calls this again when it next asks for its turn.
    """
    if head.replaces:
        with suppress(HoldfastError):
            await _cancel_earlier(kernel, workers, head)


async def recheck_queue(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Wake a run that was just queued if the runs before it left before it was queued.

    Errors are ignored: the run asks for its turn by itself later.
    """
    if head.session_queue is None:
        return
    with suppress(HoldfastError):
        if head.replaces:
            await _cancel_earlier(kernel, workers, head)
        if not await prune_earlier(kernel, head):
            await wake_queued(kernel, workers, head)


async def _cancel_earlier(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    key = head.session_queue
    if key is None:
        return
    queue = session_queue_of([item async for item in kernel.session_queues.query_all(key.pk)])
    reason = f"replaced by run {head.key.id!r}"
    # From the last to the first, so that none of them begins when the one before it ends.
    for ticket in reversed(queue.tickets):
        if ticket.number < head.ticket:
            run = RunKey(key.tenant, ticket.run)
            with suppress(RunEnded, RunNotFound):
                await cancel_run(kernel, run, reason=reason, workers=workers)
                workers.interrupt(run)
