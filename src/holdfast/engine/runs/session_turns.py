"""Whether it is a run's turn in its session, and what is done about those before it."""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.runs.session_queue import look
from holdfast.engine.runs.waking import wake_queued
from holdfast.errors import HoldfastError, RunEnded, RunNotFound
from holdfast.model.execution import Execution
from holdfast.records.head import Head
from holdfast.records.keys import LaneKey, RunKey
from holdfast.records.lane import lane_of

__all__ = ["look_again", "must_wait"]


async def must_wait(kernel: Kernel, hands: Hands, head: Head, execution: Execution) -> bool:
    """Return whether others go before a run that is about to begin; end them if it is to.

    Whoever was in front once stays there, so a run that got anywhere need not ask.
    """
    if head.lane is None or execution.nodes_run or not await _is_behind(kernel, head, head.lane):
        return False
    if head.replaces:
        with suppress(HoldfastError):  # it is asked again
            await _cancel_those_before(kernel, hands, head, head.lane)
    return True


async def look_again(kernel: Kernel, hands: Hands, head: Head) -> None:
    """See to a run that was just queued: those before it may have left before it was there."""
    if head.lane is None:
        return
    # Whatever goes wrong here is mended when the run asks by itself.
    with suppress(HoldfastError):
        if head.replaces:
            await _cancel_those_before(kernel, hands, head, head.lane)
        if not await _is_behind(kernel, head, head.lane):
            await wake_queued(kernel, hands, head)


async def _is_behind(kernel: Kernel, head: Head, key: LaneKey) -> bool:
    first = (await look(kernel, key)).first
    return first is not None and first.ticket.number < head.ticket


async def _cancel_those_before(kernel: Kernel, hands: Hands, head: Head, key: LaneKey) -> None:
    lane = lane_of([item async for item in kernel.lanes.every(key.pk)])
    reason = f"replaced by run {head.key.id!r}"
    # The last one first, so that none of them begins when the one before it ends.
    for ticket in reversed(lane.tickets):
        if ticket.number < head.ticket:
            run = RunKey(key.tenant, ticket.run)
            with suppress(RunEnded, RunNotFound):
                await cancel_run(kernel, run, reason=reason, hands=hands)
                hands.interrupt(run)
