"""Lists the children of a run."""

from __future__ import annotations

from holdfast.engine.history.views import run_entry_of, shown_entry
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.children import load_child_rows
from holdfast.engine.runs.rows import read_row
from holdfast.model.run import RunEntry
from holdfast.records.keys import RunKey

__all__ = ["list_children"]


async def list_children(kernel: Kernel, run: RunKey) -> list[RunEntry]:
    """Return the children of a run, oldest first.

    Raises:
        RunNotFound: there is no such run.
    """
    parent = await read_row(kernel, run)
    found = await load_child_rows(kernel, parent)
    now = kernel.clock.now_ms()
    entries = [
        shown_entry(run_entry_of(item), item, now_ms=now)
        for _, _, item in found
        if item is not None
    ]
    return sorted(entries, key=lambda entry: (entry.created_at, entry.id))
