"""Cancels the runs that process a document, and deletes their data."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.children import load_child_rows
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.removal import free_run
from holdfast.engine.runs.rows import is_freed, read_row
from holdfast.engine.runs.waking import update_head
from holdfast.errors import InvalidName, RunEnded, RunNotFound
from holdfast.model.names import validated_name
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey
from holdfast.records.owner_writes import free_write

__all__ = ["remove_run"]

_REASON = "its document is deleted"
_POLL_SECONDS = 0.1
_WAIT_SECONDS = 5.0


async def remove_run(kernel: Kernel, workers: LocalWorkers, tenant: str, id: str) -> None:
    """Cancel a run, and delete the data of it and of all its descendants.

    Do nothing where there is no such run. A worker that drives it is given a few seconds to stop;
    after that, the run is left to it, and what it stored to its lifetime.
    """
    try:
        run = RunKey(tenant, validated_name(id, "execution_arn"))
    except InvalidName:
        return  # the ARN of an execution that is not ours
    try:
        await cancel_run(kernel, run, reason=_REASON, workers=workers)
    except RunNotFound:
        return
    except RunEnded:
        pass
    deadline = kernel.clock.monotonic() + _WAIT_SECONDS
    while not await _free_family(kernel, run) and kernel.clock.monotonic() < deadline:
        await kernel.clock.sleep(_POLL_SECONDS)


async def _free_family(kernel: Kernel, run: RunKey) -> bool:
    """Delete the data of an ended run and its descendants; return False if one has not ended."""
    try:
        head = await read_row(kernel, run)
    except RunNotFound:
        return True
    freed = True
    for id, _, row in await load_child_rows(kernel, head):
        if row is not None:
            freed = await _free_family(kernel, RunKey(run.tenant, id)) and freed
    # The children first: a call after a crash finds them through their parent.
    return freed and await _free(kernel, head)


def _is_due(head: Head, now_ms: int) -> bool:
    """Return whether a worker still has to settle what an ended run owes to other runs."""
    return head.index_key is not None and head.index_key.due_parts()[0] <= now_ms


async def _free(kernel: Kernel, head: Head) -> bool:
    if is_freed(head):
        return True
    if head.status not in ENDED or head.owner is not None or _is_due(head, kernel.clock.now_ms()):
        return False
    await free_run(kernel, head)
    write = free_write(head, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
    return await update_head(kernel, head, write) is None
