"""Reads the row of a run."""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.errors import (
    RunEnded,
    RunNotFound,
)
from holdfast.records.head import (
    Head,
    head_of,
    is_past_ttl,
)
from holdfast.records.keys import RunKey

__all__ = ["check_not_freed", "is_freed", "is_generation_freed", "read_row"]


async def read_row(kernel: Kernel, run: RunKey) -> Head:
    """Return a run's row with a consistent read.

    Raises:
        RunNotFound: there is no such run, or its ttl has passed.
    """
    item = await kernel.heads.get(run.head)
    if item is None or is_past_ttl(item, kernel.clock.now_ms()):
        raise RunNotFound(f"there is no run {run.id!r} of tenant {run.tenant!r}")
    return head_of(item)


def is_freed(head: Head) -> bool:
    """Return whether the run's data is deleted, or being deleted."""
    return head.freed or head.status == "expired"


async def is_generation_freed(kernel: Kernel, run: RunKey, generation: str) -> bool:
    """Return whether the data of one generation of a run is deleted, or being deleted."""
    try:
        head = await read_row(kernel, run)
    except RunNotFound:
        return True
    return head.generation != generation or is_freed(head)


async def check_not_freed(kernel: Kernel, run: RunKey) -> None:
    """Check that a run's data was not deleted while it was read.

    Raises:
        RunEnded: it was deleted.
    """
    head = await read_row(kernel, run)
    if is_freed(head):
        raise RunEnded(f"run {run.id!r} is {head.status}", status=head.status)
