"""The first step: what kind of document it is, how many segments it has, what it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypedDict

from documents.processing import Desk, Job, Processing, Work
from documents.prompts import Instructions
from documents.steps import ATTEMPTS, TRANSIENT, Steps
from holdfast import Context, Graph, Retry
from holdfast.documents.node_access import documents_of
from holdfast.integrations.reading import HEAD_BYTES, sniffed_type
from holdfast.model.document import DocumentWorkflow, StepName, StepStatus

__all__ = ["PREPROCESSING", "add_preparation", "needed_steps"]

PREPROCESSING: tuple[StepName, ...] = (
    "format_parser",
    "paddleocr_processor",
    "bda_processor",
    "transcribe",
    "webcrawler",
)
_STAGES: dict[str, StepName] = {
    "ocr": "paddleocr_processor",
    "bda": "bda_processor",
    "transcribe": "transcribe",
    "webcrawler": "webcrawler",
}
_SPOKEN = ("audio", "video")
_PICTURED = ("pdf", "image")


class Prepared(TypedDict):
    """What the first step finds out."""

    job: Job
    needed: list[StepName]


def needed_steps(kind: str, *, automation: bool) -> list[StepName]:
    """Return which preprocessing steps a kind of document needs."""
    if kind == "web":
        return ["webcrawler"]
    steps: list[StepName] = ["transcribe"] if kind in _SPOKEN else ["format_parser"]
    if kind in _PICTURED:
        steps.append("paddleocr_processor")
    if automation and kind in (*_PICTURED, "video"):
        steps.append("bda_processor")
    return steps


def stages(needed: Collection[StepName], status: StepStatus) -> dict[str, StepStatus]:
    """Return the stages of a workflow: those that it needs have a status, others are skipped."""
    return {stage: status if step in needed else "skipped" for stage, step in _STAGES.items()}


def add_preparation(
    graph: Graph[Processing], desk: Desk
) -> Callable[[Processing, Context], object]:
    """Add the node ``segment_prep`` to the graph, and return it."""

    @graph.node(retry=Retry(attempts=ATTEMPTS, on=TRANSIENT))
    async def segment_prep(state: Processing, ctx: Context) -> Prepared:
        steps = Steps(documents_of(ctx), state.workflow, ctx)
        async with steps.running("segment_prep") as workflow:
            job = await _job_of(desk, ctx, workflow)
            if job.kind != "web":
                job = await _outlined(Work(desk, ctx, job))
            # Data Automation reads objects of S3 only.
            automation = desk.automation is not None and job.uri.startswith("s3://")
            needed = needed_steps(job.kind, automation=automation)
            await steps.update(
                total_segments=job.segments or None, preprocess=stages(needed, "in_progress")
            )
            unneeded: list[StepName] = [step for step in PREPROCESSING if step not in needed]
            await steps.skip(*unneeded)
        return {"job": job, "needed": needed}

    return segment_prep


async def _job_of(desk: Desk, ctx: Context, workflow: DocumentWorkflow) -> Job:
    documents, tenant = documents_of(ctx), ctx.tenant
    project = await documents.projects.get(workflow.project, tenant=tenant)
    job = Job(
        workflow=workflow.id,
        document=workflow.document,
        project=workflow.project,
        prefix=await documents.blob_prefix(workflow.document, tenant=tenant),
        instructions="",
        language=project.language,
        ocr_model=project.ocr_model,
        uri=workflow.file_uri,
        name=workflow.file_name,
        kind="web" if workflow.kind == "WEB" else "",
    )
    said = Instructions(project.language, project.document_prompt)
    uri = await Work(desk, ctx, job).shelf.put("instructions", asdict(said))
    job = replace(job, instructions=uri)
    if job.kind == "web":
        return job
    file = await documents.files.get(workflow.file_uri, tenant=tenant)
    return replace(job, sha256=file.sha256, bytes=file.bytes)


async def _outlined(work: Work) -> Job:
    """Return the job with what the file itself tells of its type and its size."""
    async with work.file() as path:
        type = sniffed_type(_head(path), work.job.name)
        outline = await work.reader.outline(path, type)
    return replace(work.job, kind=type.kind, mime=type.mime, segments=outline.segments)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
