"""Takes a file from the form of a project's page, and lets it be processed."""

from __future__ import annotations

from contextlib import aclosing, suppress
from urllib.parse import quote

from litestar import Response

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.model.document import Project
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.pages.documents.file_form import FileForm
from holdfast.server.pages.documents.project_pages import project_response
from holdfast.server.pages.documents.visitor import ItemId, check_form_token
from holdfast.server.pages.page import PageRequest, page, redirected
from holdfast.server.pages.posted_form import check_site
from holdfast.server.problems import status_of
from holdfast.server.request_body import body_of
from holdfast.server.services import ServicesOf

__all__ = ["UPLOAD_PAGE"]

_DRAINED_BYTES_MAX = 64 * 1024**2


@page("POST", "/projects/{id:str}", role="operator")
async def upload_document(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Store the file of a form as it arrives, and show its document."""
    check_site(request, services, is_signed=False)
    project = await requester.hf.documents.projects.get(id, tenant=requester.tenant)
    form = FileForm(body_of(request.scope), request.headers.get("content-type", ""))
    await form.open()
    # The token is checked before the file is read.
    await check_form_token(services, requester, form.fields.get("form_token", ""))
    try:
        document = await _added(requester, project, form)
    except HoldfastError as error:
        status = status_of(error)
        if status >= 500:
            raise
        with suppress(HoldfastError):
            await form.drain(_DRAINED_BYTES_MAX)
        return await project_response(
            services, requester, request, project, error=str(error), status=status
        )
    return redirected(request, f"/documents/{quote(document, safe='~')}")


async def _added(requester: Requester, project: Project, form: FileForm) -> str:
    """Return the id of the document that was made of the file."""
    if not form.file_name:
        raise InvalidRequest("no file was chosen", field="file")
    uploads, tenant = requester.hf.documents.uploads, requester.tenant
    upload = await uploads.create(
        project.id,
        name=form.file_name,
        length=form.file_bytes,
        file_type=form.file_type,
        tenant=tenant,
    )
    try:
        async with aclosing(form.content()) as content:
            done = await uploads.append(upload.id, content, offset=0, tenant=tenant)
    except BaseException:
        # A form cannot go on where it was cut, as a client of uploads can.
        with suppress(HoldfastError):
            await uploads.terminate(upload.id, tenant=tenant)
        raise
    return done.document


UPLOAD_PAGE = (upload_document,)
