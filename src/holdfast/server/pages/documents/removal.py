"""Deletes a document, after a person has confirmed it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from litestar import Response

from holdfast.server.caller import RequesterOf
from holdfast.server.pages.documents.visitor import ItemId, document_response, posted_by
from holdfast.server.pages.page import PageRequest, page, redirected
from holdfast.server.services import ServicesOf

__all__ = ["REMOVAL"]


@page("GET", "/documents/{id:str}/delete", role="operator")
async def ask_to_delete(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Ask whether the document shall be deleted."""
    document = await requester.hf.documents.get(id, tenant=requester.tenant)
    context: dict[str, Any] = {"document": document, "path": quote(document.id, safe="~")}
    return await document_response(services, requester, request, "document_delete.html", context)


@page("POST", "/documents/{id:str}/delete", role="operator")
async def delete_document(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Delete the document with all that belongs to it, and show its project."""
    document = await requester.hf.documents.get(id, tenant=requester.tenant)
    await posted_by(services, requester, request)
    await requester.hf.documents.delete(document.id, tenant=requester.tenant)
    return redirected(request, f"/projects/{quote(document.project, safe='~')}")


REMOVAL = (ask_to_delete, delete_document)
