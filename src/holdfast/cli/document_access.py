"""Documents of a store or of a server, where the two have different verbs."""

from __future__ import annotations

from typing import Any, cast

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli.opening import Opened
from holdfast.documents.retrying import retry_workflow
from holdfast.documents.search import required_search
from holdfast.errors import DocumentWorkflowNotFound
from holdfast.model.document import (
    Document,
    DocumentSegment,
    DocumentWorkflow,
    DocumentWorkflowPage,
    WorkflowStatus,
)
from holdfast.model.segment_search import SegmentHit

__all__ = [
    "documents_of",
    "find_segments",
    "find_workflow",
    "list_workflows",
    "load_content",
    "retry",
]


def documents_of(holdfast: Opened) -> Any:
    """Return the documents; those of a server have the same verbs, unless this module says so."""
    return cast(Any, holdfast).documents


async def find_workflow(holdfast: Opened, id: str) -> DocumentWorkflow:
    """Return the workflow of this id, or the newest one of the document of this id.

    Raises:
        DocumentNotFound: there is neither.
        click.ClickException: the document was never processed.
    """
    documents = documents_of(holdfast)
    try:
        return await documents.workflow(id)
    except DocumentWorkflowNotFound:
        document: Document = await documents.get(id)
    if document.workflow is None:
        raise click.ClickException(f"document {id} was never processed: it has no workflow")
    return await documents.workflow(document.workflow)


async def list_workflows(
    holdfast: Opened, status: WorkflowStatus, *, limit: int, cursor: str | None
) -> DocumentWorkflowPage:
    """Return a page of the workflows with a status."""
    documents = documents_of(holdfast)
    if isinstance(holdfast, Holdfast):
        return await documents.in_progress(status=status, limit=limit, cursor=cursor)
    return await documents.workflows(status=status, limit=limit, cursor=cursor)


async def find_segments(holdfast: Opened, text: str, **given: Any) -> list[SegmentHit]:
    """Return the segments that fit a question best."""
    if isinstance(holdfast, Holdfast):
        return await required_search(holdfast.documents.search).search(
            holdfast.tenant, text, **given
        )
    return await documents_of(holdfast).search(text, **given)


async def load_content(holdfast: Opened, segment: DocumentSegment) -> dict[str, Any]:
    """Return the content of a segment; an empty one if it has none."""
    if not segment.s3_key:
        return {}
    documents = documents_of(holdfast)
    if isinstance(holdfast, Holdfast):
        content: Any = await documents.files.read_blob(segment.s3_key)
    else:
        content = await documents.content(segment.workflow, segment.index)
    if isinstance(content, bytes):
        try:
            content = msgspec.json.decode(content)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise click.ClickException(
                f"the content of segment {segment.index} is not JSON: {error}"
            ) from None
    return cast(dict[str, Any], content) if isinstance(content, dict) else {"content": content}


async def retry(holdfast: Opened, workflow: DocumentWorkflow, segment: int | None) -> None:
    """Let a workflow go on where it failed, or analyze one segment again."""
    if isinstance(holdfast, Holdfast):
        await retry_workflow(holdfast, workflow.id, segment=segment)
    else:
        await documents_of(holdfast).retry(workflow.id, segment=segment)
