"""Routes of uploads, as tus 1.0.0 has them: a file in pieces, which any server continues."""

from __future__ import annotations

from typing import Annotated

from litestar import Response
from litestar.exceptions import ClientException, HTTPException
from litestar.params import PathParameter
from litestar.types import Scope

from holdfast.model.upload import Upload
from holdfast.server.caller import RequesterOf
from holdfast.server.encoding import JsonResponse
from holdfast.server.parameters import IdempotencyKey, address, key_digest
from holdfast.server.problems import TUS_VERSION
from holdfast.server.request_body import body_of, is_head
from holdfast.server.routing import route
from holdfast.server.tus import (
    TUS_TYPE,
    checksum_of,
    length_of,
    metadata_of,
    offset_of,
    require_tus,
    upload_headers,
)

__all__ = ["UPLOADS"]

UploadId = Annotated[
    str, PathParameter(description="The upload's id.", min_length=1, max_length=128)
]


@route(
    "POST",
    "/v1/uploads",
    role="operator",
    tag="uploads",
    status=201,
    conflicts=True,
    missing=True,
    located=True,
    fails=(410, 412, 460),
    reads=(TUS_TYPE,),
    returns=Upload,
)
async def create_upload(
    requester: RequesterOf, scope: Scope, idempotency_key: IdempotencyKey = None
) -> JsonResponse[Upload]:
    """Begin an upload (tus): Upload-Length and Upload-Metadata with project, filename, filetype.

    The Location of the answer takes the pieces. A body of the type application/offset+octet-stream
    is the first piece. The document is added, and its pipeline started, with the last piece.
    """
    require_tus(scope)
    told = metadata_of(scope)
    project, name = told.get("project", ""), told.get("filename", "")
    if not project or not name:
        raise ClientException("Upload-Metadata must have the keys project and filename")
    length, checksum = length_of(scope), checksum_of(scope)
    body = body_of(scope)
    has_piece = _content_type(scope) == TUS_TYPE
    if body.size and not has_piece:
        raise HTTPException(f"the body must be {TUS_TYPE}", status_code=415)
    uploads = requester.hf.documents.uploads
    upload = await uploads.create(
        project,
        name=name,
        length=length,
        file_type=told.get("filetype", ""),
        id=key_digest(idempotency_key, None, field="id", bound_to=f"{requester.tenant}\0uploads"),
        tenant=requester.tenant,
    )
    if has_piece and upload.offset == 0 and upload.status == "open":
        upload = await uploads.append(
            upload.id, body.chunks(), offset=0, checksum=checksum, tenant=requester.tenant
        )
    headers = {**upload_headers(upload), "Location": address(scope, "uploads", upload.id)}
    return JsonResponse(upload, headers=headers, status_code=201)


@route(
    "GET",
    "/v1/uploads/{id:str}",
    role="operator",
    tag="uploads",
    fails=(410, 412),
    returns=Upload,
)
async def get_upload(requester: RequesterOf, scope: Scope, id: UploadId) -> JsonResponse[Upload]:
    """Get an upload. HEAD (tus) tells in Upload-Offset where it goes on."""
    require_tus(scope, optional=not is_head(scope))
    upload = await requester.hf.documents.uploads.get(id, tenant=requester.tenant)
    return JsonResponse(upload, headers=upload_headers(upload))


@route(
    "PATCH",
    "/v1/uploads/{id:str}",
    role="operator",
    tag="uploads",
    status=204,
    conflicts=True,
    fails=(410, 412, 460),
    reads=(TUS_TYPE,),
)
async def continue_upload(requester: RequesterOf, scope: Scope, id: UploadId) -> Response[None]:
    """Add a piece to an upload (tus), at the offset that it has.

    What the answer acknowledges is durable. Of two requests at once, one counts and the other is
    answered with 409: ask for the offset, and send the rest. With Upload-Checksum, a piece counts
    whole or not at all.
    """
    require_tus(scope)
    offset, checksum = offset_of(scope), checksum_of(scope)
    if _content_type(scope) != TUS_TYPE:
        raise HTTPException(f"the body must be {TUS_TYPE}", status_code=415)
    body = body_of(scope)
    upload = await requester.hf.documents.uploads.append(
        id,
        body.chunks(),
        offset=offset,
        checksum=checksum,
        size=body.size,
        tenant=requester.tenant,
    )
    return Response(None, status_code=204, headers=upload_headers(upload))


@route(
    "DELETE",
    "/v1/uploads/{id:str}",
    role="operator",
    tag="uploads",
    status=204,
    conflicts=True,
    fails=(412,),
)
async def terminate_upload(requester: RequesterOf, scope: Scope, id: UploadId) -> Response[None]:
    """Remove an upload that is not complete, with all that it has stored (tus)."""
    require_tus(scope)
    await requester.hf.documents.uploads.terminate(id, tenant=requester.tenant)
    return Response(None, status_code=204, headers={"Tus-Resumable": TUS_VERSION})


def _content_type(scope: Scope) -> str:
    found = [value for key, value in scope["headers"] if key.lower() == b"content-type"]
    return found[0].decode("latin-1").partition(";")[0].strip().lower() if found else ""


UPLOADS = (create_upload, get_upload, continue_upload, terminate_upload)
