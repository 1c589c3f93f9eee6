"""Ends the workflows whose runs ended without a word: cancelled, expired, or quarantined.

A node reports when it fails. An operator who cancels a run, an expiry and a worker that dies again
and again at one node end a run from outside: its workflow would stay in progress.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast import Holdfast
from holdfast.errors import DocumentWorkflowNotFound, RunNotFound, StatusRefused

__all__ = ["end_abandoned"]

_ENDED_OUTSIDE = ("cancelled", "expired", "quarantined")


async def end_abandoned(hf: Holdfast) -> list[str]:
    """End the workflows of the tenant whose runs have ended from outside; return their ids."""
    ended: list[str] = []
    cursor: str | None = None
    while True:
        page = await hf.documents.in_progress(cursor=cursor)
        for workflow in page:
            if workflow.execution_arn is None:
                continue
            try:
                row = await hf.run(workflow.execution_arn, tenant=workflow.tenant).get()
                why = f"its run was {row.status}" if row.status in _ENDED_OUTSIDE else ""
            except RunNotFound:
                why = "its run is no longer stored"
            if not why:
                continue
            # A retry may have begun it again in this moment: then this attempt is refused.
            with suppress(StatusRefused, DocumentWorkflowNotFound):
                await hf.documents.set_status(
                    workflow.id,
                    "failed",
                    error=why,
                    attempt=workflow.attempt,
                    tenant=workflow.tenant,
                )
                ended.append(workflow.id)
        cursor = page.cursor
        if cursor is None:
            return ended
