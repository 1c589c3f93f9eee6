"""Routes of documents: how they come in, their files, and what becomes of them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from litestar.exceptions import ClientException
from litestar.response import Stream
from litestar.types import Scope

from holdfast.errors import (
    FileTooLarge,
    HoldfastError,
    LengthRequired,
    UploadGone,
    UploadNotFound,
)
from holdfast.model.document import Document, DocumentPage
from holdfast.model.upload import Upload
from holdfast.server.bodies import BodyReader
from holdfast.server.body_limits import is_too_deep
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.document_parameters import (
    DocumentId,
    FileName,
    ProcessBody,
    ProjectId,
    SourceBody,
)
from holdfast.server.downloads import download
from holdfast.server.encoding import JsonResponse
from holdfast.server.parameters import Cursor, IdempotencyKey, Limit, address, key_digest
from holdfast.server.request_body import RequestBody, body_of, is_head
from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["DOCUMENTS"]

_JSON = "application/json"
_OCTETS = "application/octet-stream"
_SOURCE_BYTES_MAX = 64 * 1024
_SOURCE = BodyReader(SourceBody, is_optional=False)


@route("GET", "/v1/projects/{id:str}/documents", role="viewer", tag="documents", etag=True)
async def list_documents(
    requester: RequesterOf, id: ProjectId, limit: Limit = 100, cursor: Cursor = None
) -> DocumentPage:
    """List the documents of a project, in the order of their ids."""
    return await requester.hf.documents.list(
        id, limit=limit, cursor=cursor, tenant=requester.tenant
    )


@route(
    "POST",
    "/v1/projects/{id:str}/documents",
    role="operator",
    tag="documents",
    status=201,
    conflicts=True,
    located=True,
    fails=(410, 411),
    also={200: Upload},
    reads=(_JSON, _OCTETS),
    returns=Upload,
)
async def add_document(
    requester: RequesterOf,
    services: ServicesOf,
    scope: Scope,
    id: ProjectId,
    name: FileName = None,
    idempotency_key: IdempotencyKey = None,
) -> JsonResponse[Upload]:
    """Add a document and start its pipeline: the body is the file, or JSON that says where it is.

    A file needs a Content-Length and its name in the query. JSON has an address of the web, or a
    uri of S3. Repeated with the same Idempotency-Key, the request adds nothing, and is answered
    with 200. For files that may be cut on the way, see the routes of uploads.
    """
    upload_id = key_digest(
        idempotency_key, None, field="id", bound_to=f"{requester.tenant}\0documents\0{id}"
    )
    known = await _known(requester, upload_id)
    body = body_of(scope)
    if _media_type(scope) == _JSON:
        depth_max = services.options.json_depth_max
        source = await _read_source(body, depth_max)
        upload = await requester.hf.documents.uploads.add_source(
            id,
            address=source.address,
            uri=source.uri,
            name=source.name or name,
            id=upload_id,
            tenant=requester.tenant,
        )
    else:
        upload = await _receive(requester, body, id, name=name, upload_id=upload_id)
    return JsonResponse(
        upload,
        status_code=200 if known else 201,
        headers={"Location": address(scope, "documents", upload.document)},
    )


@route("GET", "/v1/documents/{id:str}", role="viewer", tag="documents", etag=True)
async def get_document(requester: RequesterOf, id: DocumentId) -> Document:
    """Get a document: what is known of it, and its newest workflow."""
    return await requester.hf.documents.get(id, tenant=requester.tenant)


@route("DELETE", "/v1/documents/{id:str}", role="operator", tag="documents", status=204)
async def delete_document(requester: RequesterOf, id: DocumentId) -> None:
    """Delete a document with its file, workflows and segments. It can be repeated if it was cut."""
    await requester.hf.documents.delete(id, tenant=requester.tenant)


@route(
    "GET",
    "/v1/documents/{id:str}/file",
    role="viewer",
    tag="documents",
    media_type=_OCTETS,
    returns=bytes,
)
async def download_document(requester: RequesterOf, scope: Scope, id: DocumentId) -> Stream:
    """Download the file of a document. A document of the web has none: 404."""
    documents = requester.hf.documents
    document = await documents.get(id, tenant=requester.tenant)
    file = await documents.files.get(document.file_uri, tenant=requester.tenant)
    return download(
        documents.files.read(document.file_uri, tenant=requester.tenant),
        name=document.file_name,
        size=file.bytes,
        headers_only=is_head(scope),
    )


@route(
    "POST",
    "/v1/documents/{id:str}/document-workflows",
    role="operator",
    tag="documents",
    status=201,
    conflicts=True,
    located=True,
    fails=(410,),
    returns=Upload,
)
async def process_document(
    requester: RequesterOf,
    scope: Scope,
    id: DocumentId,
    data: ProcessBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> JsonResponse[Upload]:
    """Process a document again: begin another workflow, and start its run."""
    upload = await requester.hf.documents.uploads.process_again(
        id,
        id=key_digest(
            idempotency_key, None, field="id", bound_to=f"{requester.tenant}\0process\0{id}"
        ),
        tenant=requester.tenant,
    )
    location = address(scope, "document-workflows", upload.workflow)
    return JsonResponse(upload, status_code=201, headers={"Location": location})


async def _known(requester: Requester, upload_id: str | None) -> bool:
    """Return whether a request was made before; one that was cut in the middle is forgotten."""
    if upload_id is None:
        return False
    uploads = requester.hf.documents.uploads
    try:
        upload = await uploads.get(upload_id, tenant=requester.tenant)
    except UploadNotFound:
        return False
    except UploadGone:
        await uploads.terminate(upload_id, tenant=requester.tenant)
        return False
    if upload.status == "open":
        # The request sends the file from its beginning again.
        await uploads.terminate(upload_id, tenant=requester.tenant)
    return upload.status in ("complete", "processed")


async def _receive(
    requester: Requester,
    body: RequestBody,
    project: str,
    *,
    name: str | None,
    upload_id: str | None,
) -> Upload:
    """Store the body of a request as a file, and start its pipeline.

    Raises:
        LengthRequired: the request does not say how many bytes there are.
        UploadInterrupted: the bytes stopped arriving; nothing is kept.
    """
    if name is None:
        raise ClientException("the query must have name=…, the name of the file")
    if body.size is None:
        raise LengthRequired
    uploads, tenant = requester.hf.documents.uploads, requester.tenant
    made = await uploads.create(project, name=name, length=body.size, id=upload_id, tenant=tenant)
    if made.status != "open":
        return await uploads.append(made.id, b"", offset=made.offset, tenant=tenant)
    try:
        upload = await uploads.append(made.id, body.chunks(), offset=0, tenant=tenant)
        if upload.status == "open":
            raise FileTooLarge(f"the body ended after {upload.offset:,} of {body.size:,} bytes")
    except HoldfastError:
        # The body is lost, so the rest cannot follow.
        with suppress(HoldfastError):
            await uploads.terminate(made.id, tenant=tenant)
        raise
    return upload


async def _read_source(body: RequestBody, depth_max: int) -> SourceBody:
    data = await body.read(bytes_max=_SOURCE_BYTES_MAX)
    if is_too_deep(data, depth_max):
        raise ClientException(f"the body must be nested at most {depth_max} deep")
    source: Any = _SOURCE.read(data)
    return msgspec.convert(source, SourceBody)


def _media_type(scope: Scope) -> str:
    found = [value for key, value in scope["headers"] if key.lower() == b"content-type"]
    return found[0].decode("latin-1").partition(";")[0].strip().lower() if found else ""


DOCUMENTS = (
    list_documents,
    add_document,
    get_document,
    delete_document,
    download_document,
    process_document,
)
