"""Cancels the runs that process a document, and deletes their data."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.children import load_child_rows
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.map_chunks import chunk_id
from holdfast.engine.runs.map_removal import (
    free_settled_run,
    list_chunk_rows,
    list_item_retries,
)
from holdfast.engine.runs.map_stopping import cancel_chunk
from holdfast.engine.runs.removal import free_run
from holdfast.engine.runs.rows import read_row
from holdfast.errors import InvalidName, RunEnded, RunNotFound
from holdfast.model.names import validated_name
from holdfast.records.head import Head
from holdfast.records.keys import RunKey

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
    while not await _free_family(kernel, workers, run) and kernel.clock.monotonic() < deadline:
        await kernel.clock.sleep(_POLL_SECONDS)


async def _free_family(kernel: Kernel, workers: LocalWorkers, run: RunKey) -> bool:
    """Delete the data of an ended run and its descendants; return False if one has not ended."""
    try:
        head = await read_row(kernel, run)
    except RunNotFound:
        return True
    freed = True
    for id, _, row in await load_child_rows(kernel, head):
        if row is not None:
            child = RunKey(run.tenant, id)
            freed = await _free_family(kernel, workers, child) and freed
    async for chunk in list_chunk_rows(kernel, head):
        freed = await _free_family(kernel, workers, chunk.key) and freed
    freed = await _free_item_retries(kernel, workers, head) and freed
    # The descendants first: a call after a crash finds them through their parent.
    # The message of an error may quote the document.
    if not freed or not await free_settled_run(kernel, head, removes=("failure",)):
        return False
    if not head.maps:
        return True
    # Until now an item could be retried, and the end of its run could store a result.
    freed = await _free_item_retries(kernel, workers, head)
    await free_run(kernel, head)
    return freed


async def _free_item_retries(kernel: Kernel, workers: LocalWorkers, head: Head) -> bool:
    """Cancel the retries of single items of a run's maps, and delete their data, as above.

    They go on after the end of the run, so its end does not cancel them.
    """
    freed = True
    async for place, chunk in list_item_retries(kernel, head):
        await cancel_chunk(kernel, workers, place, head, chunk)
        key = RunKey(head.key.tenant, chunk_id(place.run, place.generation, chunk))
        freed = await _free_family(kernel, workers, key) and freed
    return freed
