"""Routes of the workflows of documents: status, steps and segments."""

from __future__ import annotations

import msgspec
from litestar import Response
from litestar.types import Scope

from holdfast.documents.retrying import retry_workflow
from holdfast.errors import SegmentNotFound, StoredFileNotFound
from holdfast.model.document import (
    DocumentSegment,
    DocumentSegmentPage,
    DocumentWorkflow,
    DocumentWorkflowPage,
)
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.document_parameters import (
    AfterSegment,
    DocumentId,
    DocumentRetryBody,
    ProjectId,
    SegmentIndex,
    StatusQuery,
    StepList,
    WorkflowCounts,
    WorkflowId,
)
from holdfast.server.downloads import (
    content_response,
    image_response,
    is_known,
    not_modified,
    uri_tag,
)
from holdfast.server.parameters import Cursor, Limit
from holdfast.server.routing import route

__all__ = ["DOCUMENT_WORKFLOWS"]

_PATH = "/v1/document-workflows"
_ONE = f"{_PATH}/{{id:str}}"
_SEGMENT = f"{_ONE}/segments/{{index:int}}"
_JSON = "application/json"


@route("GET", "/v1/projects/{id:str}/document-workflows", role="viewer", tag="documents", etag=True)
async def list_workflows_of_project(
    requester: RequesterOf, id: ProjectId, limit: Limit = 100, cursor: Cursor = None
) -> DocumentWorkflowPage:
    """List the workflows of a project's documents."""
    return await requester.hf.documents.workflows(
        project=id, limit=limit, cursor=cursor, tenant=requester.tenant
    )


@route(
    "GET", "/v1/documents/{id:str}/document-workflows", role="viewer", tag="documents", etag=True
)
async def list_workflows_of_document(
    requester: RequesterOf, id: DocumentId, limit: Limit = 100, cursor: Cursor = None
) -> DocumentWorkflowPage:
    """List the workflows of a document."""
    return await requester.hf.documents.workflows(
        document=id, limit=limit, cursor=cursor, tenant=requester.tenant
    )


@route("GET", _PATH, role="viewer", tag="documents", etag=True)
async def list_document_workflows(
    requester: RequesterOf,
    status: StatusQuery = "in_progress",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> DocumentWorkflowPage:
    """List the workflows of a status, those that changed last first."""
    return await requester.hf.documents.in_progress(
        status=status, limit=limit, cursor=cursor, tenant=requester.tenant
    )


@route("GET", f"{_PATH}/counts", role="viewer", tag="documents")
async def count_document_workflows(requester: RequesterOf) -> WorkflowCounts:
    """Count the workflows of each status."""
    counts = await requester.hf.documents.counts(tenant=requester.tenant)
    return msgspec.convert({str(name): count for name, count in counts.items()}, WorkflowCounts)


@route("GET", _ONE, role="viewer", tag="documents", etag=True)
async def get_document_workflow(requester: RequesterOf, id: WorkflowId) -> DocumentWorkflow:
    """Get a workflow: its status, and the status of each preprocessing stage."""
    return await requester.hf.documents.workflow(id, tenant=requester.tenant)


@route("GET", f"{_ONE}/steps", role="viewer", tag="documents", etag=True)
async def list_document_steps(requester: RequesterOf, id: WorkflowId) -> StepList:
    """List the steps of a workflow, in their order."""
    steps = await requester.hf.documents.steps(id, tenant=requester.tenant)
    return StepList([*steps.values()])


@route("POST", f"{_ONE}/retry", role="operator", tag="documents", conflicts=True)
async def retry_document_workflow(
    requester: RequesterOf, id: WorkflowId, data: DocumentRetryBody | None = None
) -> DocumentWorkflow:
    """Retry a failed workflow, which goes on at the failed step; or one segment of it."""
    segment = None if data is None else data.segment
    return await retry_workflow(requester.hf, id, segment=segment, tenant=requester.tenant)


@route("GET", f"{_ONE}/segments", role="viewer", tag="documents", etag=True)
async def list_segments(
    requester: RequesterOf, id: WorkflowId, after: AfterSegment = 0, limit: Limit = 100
) -> DocumentSegmentPage:
    """List the segments of a workflow in their order; large analyses show their beginning."""
    return await requester.hf.documents.segments(
        id, after=after, limit=limit, tenant=requester.tenant
    )


@route("GET", _SEGMENT, role="viewer", tag="documents", etag=True)
async def get_segment(
    requester: RequesterOf, id: WorkflowId, index: SegmentIndex
) -> DocumentSegment:
    """Get a segment with its whole analysis."""
    return await requester.hf.documents.segment(id, index, tenant=requester.tenant)


@route(
    "GET",
    f"{_SEGMENT}/image",
    role="viewer",
    tag="documents",
    media_type="image/*",
    also={304: None},
    returns=bytes,
)
async def get_segment_image(
    requester: RequesterOf, scope: Scope, id: WorkflowId, index: SegmentIndex
) -> Response[bytes]:
    """Get the image of a segment, in a sandbox. A segment without one: 404."""
    segment = await requester.hf.documents.segment(id, index, tenant=requester.tenant)
    uri = _uri(segment.image_uri, index, "image")
    if is_known(scope, tag := uri_tag(uri)):
        return not_modified(tag)
    return image_response(await _read(requester, uri), tag=tag)


@route(
    "GET",
    f"{_SEGMENT}/content",
    role="viewer",
    tag="documents",
    also={304: None},
    returns=dict,
)
async def get_segment_content(
    requester: RequesterOf, scope: Scope, id: WorkflowId, index: SegmentIndex
) -> Response[bytes]:
    """Get the content of a segment, as the pipeline stored it: text, tables, and more in JSON."""
    segment = await requester.hf.documents.segment(id, index, tenant=requester.tenant)
    uri = _uri(segment.s3_key, index, "content")
    if is_known(scope, tag := uri_tag(uri)):
        return not_modified(tag)
    data = await _read(requester, uri)
    is_json = _is_json_object(data)
    kind = _JSON if is_json else "application/octet-stream"
    return content_response(data, kind, tag=tag, inline=is_json)


async def _read(requester: Requester, uri: str) -> bytes:
    return await requester.hf.documents.files.read_blob(uri, tenant=requester.tenant)


def _uri(uri: str | None, index: int, what: str) -> str:
    """Return the address of a part of a segment.

    Raises:
        SegmentNotFound: the segment has no such part.
    """
    if not uri:
        raise SegmentNotFound(f"segment {index} has no {what}")
    if not uri.startswith("blob:"):
        raise StoredFileNotFound(f"the {what} of segment {index} is not in this store")
    return uri


def _is_json_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


DOCUMENT_WORKFLOWS = (
    list_workflows_of_project,
    list_workflows_of_document,
    list_document_workflows,
    count_document_workflows,
    get_document_workflow,
    list_document_steps,
    retry_document_workflow,
    list_segments,
    get_segment,
    get_segment_image,
    get_segment_content,
)
