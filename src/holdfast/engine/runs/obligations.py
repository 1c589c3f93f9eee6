"""What a run owes to others once it has ended: it leaves the due index only when all is paid.

To pay is idempotent, and anybody can do it. A run whose journal says that it has ended is paid for
before its row says so: whoever dies in between leaves it under their name, and whoever claims it
next reads in the journal that it has ended, and pays again.
"""

from __future__ import annotations

from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.session_queue import leave_queue
from holdfast.records.head import Head

__all__ = ["has_family_obligations", "has_obligations", "settle_obligations"]


def has_obligations(head: Head) -> bool:
    """Return whether somebody waits for the run to have ended."""
    return head.session_queue is not None or head.payer is not None or has_family_obligations(head)


def has_family_obligations(head: Head) -> bool:
    """Return whether the run has a parent to be told, or children to be cancelled."""
    return head.parent is not None or head.children


async def settle_obligations(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Do what an ended run owes; again, if it was done before."""
    if head.session_queue is not None:
        await leave_queue(kernel, workers, head, head.session_queue)
