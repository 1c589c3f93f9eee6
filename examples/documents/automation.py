"""The step ``bda_processor``: Bedrock Data Automation describes pages and films, if configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

from documents.pieces import store_contents
from documents.processing import Desk, Processing, Work
from documents.segments import SegmentContent
from documents.steps import ATTEMPTS, TRANSIENT, StepFailed
from holdfast import Context, Graph, Retry
from holdfast.errors import ExtractionUnavailable

__all__ = ["add_automation"]


class Automated(TypedDict, total=False):
    """What the service made."""

    automated: str


def add_automation(graph: Graph[Processing], desk: Desk) -> Callable[[Processing, Context], object]:
    """Add the node ``bda_processor`` to the graph, and return it."""

    @graph.node(retry=Retry(attempts=ATTEMPTS, on=TRANSIENT))
    async def bda_processor(state: Processing, ctx: Context) -> Automated:
        job, automation = state.job, desk.automation
        if job is None or "bda_processor" not in state.needed:
            return {}
        work = Work(desk, ctx, job)

        async def analyzed(*, idempotency_key: str = "") -> str:
            """Analyse the file. The key names the job, so that it is paid once."""
            if automation is None:
                raise StepFailed(
                    "Bedrock Data Automation is not configured: set DOCUMENTS_BDA_PROFILE"
                )
            found = await automation.analyze(job.uri, key=idempotency_key)
            said = {page.index: page.text for page in found.pages}
            last = max(said, default=-1)
            contents = (
                SegmentContent(index=index + 1, text=said.get(index, ""), source="bda")
                for index in range(last + 1)
            )
            return await store_contents(work, "automated", contents)

        async with work.steps.running("bda_processor"):
            caller = ctx.with_options(
                retry=Retry(attempts=ATTEMPTS, on=(ExtractionUnavailable, *TRANSIENT))
            )
            return {"automated": await caller.call(analyzed)}

    return bda_processor
