"""Changes the budgets of runs, and wakes the runs that wait for more."""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.waking import update_head, wake_or_notify
from holdfast.errors import BudgetShared, RunEnded, RunNotFound
from holdfast.model.budget import BudgetLimits
from holdfast.records import run_writes
from holdfast.records.head import OPEN, Head, head_of
from holdfast.records.keys import RunKey

__all__ = ["fund_run", "recheck_budget"]


async def fund_run(
    kernel: Kernel, workers: LocalWorkers, run: RunKey, limits: BudgetLimits
) -> Head:
    """Give a run another budget, and wake it if it waits for one; return its old row.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: the run has ended, or expired.
        BudgetShared: the run has no budget of its own, or a slice, which cannot be raised.
    """
    current: Head | None = await read_row(kernel, run)
    head = current
    while current is not None:
        head = current
        if head.status not in OPEN:
            raise RunEnded(f"run {run.id!r} is {head.status}", status=head.status)
        if head.payer is not None:
            raise BudgetShared(f"run {run.id!r} shares the budget of run {head.payer.id!r}")
        await _check_slice(kernel, head, limits)
        now, token = kernel.clock.now_ms(), kernel.ids.new()
        write = run_writes.budget_write(head, limits, now_ms=now, token=token)
        current = await update_head(kernel, head, write)
    await recheck_budget(kernel, workers, run)
    return head


async def _check_slice(kernel: Kernel, head: Head, limits: BudgetLimits) -> None:
    """Check that a child is not given more than its parent reserved for it.

    The reservation is in the parent's journal, which only the parent's owner writes.
    """
    if head.parent is None or head.budget is None or limits.is_within(head.budget):
        return
    item = await kernel.heads.get(RunKey(head.key.tenant, head.parent.id).head)
    parent = None if item is None else head_of(item)
    if parent is not None and parent.generation == head.parent.generation:
        budget = parent.budget or BudgetLimits()
        if parent.payer is None and budget.tokens is None and budget.nanodollars is None:
            return  # the parent has no limits, so it reserved nothing
    raise BudgetShared(
        f"run {head.key.id!r} has a slice of the budget of run {head.parent.id!r}, which can be "
        f"lowered, but not raised: cancel it, and let {head.parent.id!r} start another run with a "
        "larger slice"
    )


async def recheck_budget(kernel: Kernel, workers: LocalWorkers, run: RunKey) -> None:
    """Let a run ask again for the budget that it lacked, if it waits for it or is about to."""

    def needs(head: Head) -> bool:
        waiting = head.status == "waiting" and head.owner is None
        return not waiting or any(wait.needs_recheck for wait in head.waits)

    with suppress(RunNotFound):
        head = await read_row(kernel, run)
        await wake_or_notify(kernel, workers, head, needs=needs)
