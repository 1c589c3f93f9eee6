"""Gives runs other budgets, and wakes those that wait for it."""

from __future__ import annotations

from contextlib import suppress

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.waking import changed, woken
from holdfast.errors import BudgetShared, RunEnded, RunNotFound
from holdfast.model.budget import Limits
from holdfast.records import changes
from holdfast.records.head import OPEN, Head, head_of
from holdfast.records.keys import RunKey

__all__ = ["fund", "prompt"]


async def fund(kernel: Kernel, hands: Hands, run: RunKey, limits: Limits) -> Head:
    """Give a run another budget; if it waits for one, it asks again. Return its row as it was.

    Raises:
        RunNotFound: there is no such run.
        RunEnded: it has ended, or expired.
        BudgetShared: it has no budget of its own; or a slice, which is not raised.
    """
    standing: Head | None = await read_row(kernel, run)
    head = standing
    while standing is not None:
        head = standing
        if head.status not in OPEN:
            raise RunEnded(f"run {run.id!r} is {head.status}", status=head.status)
        if head.draws is not None:
            raise BudgetShared(f"run {run.id!r} shares the budget of run {head.draws.id!r}")
        await _check_slice(kernel, head, limits)
        now, token = kernel.clock.now_ms(), kernel.ids.new()
        write = changes.funded(head, limits, now_ms=now, token=token)
        standing = await changed(kernel, head, write)
    await prompt(kernel, hands, run)
    return head


async def _check_slice(kernel: Kernel, head: Head, limits: Limits) -> None:
    """Check that a child is not given more than its parent set aside for it.

    What a parent sets aside stands in its journal, into which only its owner writes.
    """
    if head.parent is None or head.budget is None or limits.is_within(head.budget):
        return
    item = await kernel.heads.get(RunKey(head.key.tenant, head.parent.id).head)
    parent = None if item is None else head_of(item)
    if parent is not None and parent.generation == head.parent.generation:
        budget = parent.budget or Limits()
        if parent.draws is None and budget.tokens is None and budget.nanodollars is None:
            return  # it limits nothing, and so it set nothing aside
    raise BudgetShared(
        f"run {head.key.id!r} has a slice of the budget of run {head.parent.id!r}, which can be "
        f"lowered, but not raised: cancel it, and let {head.parent.id!r} start another run with a "
        "larger slice"
    )


async def prompt(kernel: Kernel, hands: Hands, run: RunKey) -> None:
    """Let a run ask again for what it lacked, if it is there and waits, or is about to."""
    with suppress(RunNotFound):
        head: Head | None = await read_row(kernel, run)
        while head is not None and head.status in OPEN:
            if head.status == "waiting" and head.owner is None:
                if not any(wait.asks_again for wait in head.waits):
                    return
                head = await woken(kernel, hands, head, spilled=False)
            else:
                now, token = kernel.clock.now_ms(), kernel.ids.new()
                sign = changes.signalled(head, spilled=False, now_ms=now, token=token)
                head = await changed(kernel, head, sign)
