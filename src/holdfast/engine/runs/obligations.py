"""The obligations of an ended run to other runs: it stays due until all are settled.

Settling is idempotent, and every process can do it. The obligations are settled after the end is in
the journal and before it is in the row. If the worker dies in between, the run is still claimed by
it; the next worker that claims the run finds the end in the journal, and settles again.
"""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.session_queue import leave_queue
from holdfast.records.head import Head

__all__ = ["has_family_obligations", "has_obligations", "settle_obligations"]


def has_obligations(head: Head) -> bool:
    """Return whether other runs wait for the end of the run."""
    return head.session_queue is not None or head.payer is not None or has_family_obligations(head)


def has_family_obligations(head: Head) -> bool:
    """Return whether the run has a parent to notify, or children to cancel."""
    return head.parent is not None or head.children


async def settle_obligations(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Settle the obligations of an ended run; idempotent."""
    if head.session_queue is not None:
        await leave_queue(kernel, workers, head, head.session_queue)
