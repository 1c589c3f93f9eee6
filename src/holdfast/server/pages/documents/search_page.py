"""The page that searches the segments of a project's documents."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Response

from holdfast.errors import DocumentNotFound, HoldfastError, InvalidRequest
from holdfast.model.segment_search import SegmentHit
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.pages.documents.visitor import ItemId, document_response
from holdfast.server.pages.page import PageRequest, page
from holdfast.server.problems import status_of
from holdfast.server.services import ServicesOf

__all__ = ["SEARCH_PAGE"]

_HITS_MAX = 50


class _Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that was found."""

    path: str
    document: str
    """The name of the document."""
    index: int
    title: str
    parts: list[tuple[str, bool]]
    """The text around what was found, in pieces: a text, and whether it was searched for."""


@page("GET", "/projects/{id:str}/search", role="viewer")
async def search_project(
    services: ServicesOf, requester: RequesterOf, request: PageRequest, id: ItemId
) -> Response[bytes]:
    """Show the segments in which words occur, the best first."""
    documents, tenant = requester.hf.documents, requester.tenant
    project = await documents.projects.get(id, tenant=tenant)
    text = request.query_params.get("q", "").strip()
    within = request.query_params.get("document", "") or None
    error: HoldfastError | None = None
    hits: list[SegmentHit] = []
    if text and requester.hf.documents.search is not None:
        try:
            hits = await requester.hf.documents.search.search(
                tenant, text, project=project.id, document=within, limit=_HITS_MAX
            )
        except InvalidRequest as refused:
            error = refused
    context: dict[str, Any] = {
        "project": project,
        "path": quote(project.id, safe="~"),
        "text": text,
        "within": within or "",
        "is_searchable": requester.hf.documents.search is not None,
        "hits": await _shown(requester, hits),
        "is_cut": len(hits) >= _HITS_MAX,
        "error": "" if error is None else str(error),
    }
    status = 200 if error is None else status_of(error)
    return await document_response(
        services, requester, request, "document_search.html", context, status=status
    )


async def _shown(requester: Requester, hits: list[SegmentHit]) -> list[_Hit]:
    """Return hits with the names of their documents; a document that is deleted is left out."""
    ids = sorted({hit.document for hit in hits})
    names = dict(zip(ids, await asyncio.gather(*(_name(requester, id) for id in ids)), strict=True))
    return [
        _Hit(
            path=_path(hit),
            document=name,
            index=hit.index,
            title=hit.title,
            parts=hit.parts(),
        )
        for hit in hits
        if (name := names[hit.document]) is not None
    ]


def _path(hit: SegmentHit) -> str:
    document, workflow = (quote(each, safe="~") for each in (hit.document, hit.workflow))
    return f"{document}/segments/{hit.index}?workflow={workflow}"


async def _name(requester: Requester, document: str) -> str | None:
    try:
        found = await requester.hf.documents.get(document, tenant=requester.tenant)
    except DocumentNotFound:
        return None
    return found.file_name


SEARCH_PAGE = (search_project,)
