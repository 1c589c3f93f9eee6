"""The route that searches the segments of documents."""

from __future__ import annotations

from typing import Annotated

from litestar.params import QueryParameter

from holdfast.documents.search import required_search
from holdfast.model.json_form import JsonForm
from holdfast.model.segment_search import SegmentHit
from holdfast.server.caller import RequesterOf
from holdfast.server.routing import route

__all__ = ["SEARCH"]

Words = Annotated[
    str, QueryParameter(min_length=1, max_length=1000, description="Words, or a question.")
]
InProject = Annotated[
    str | None, QueryParameter(min_length=1, max_length=128, description="Only in this project.")
]
InDocument = Annotated[
    str | None, QueryParameter(min_length=1, max_length=128, description="Only in this document.")
]
Hits = Annotated[int, QueryParameter(ge=1, le=100, description="How many, at most.")]


class SegmentHits(JsonForm, frozen=True):
    """The segments that fit a question, the best first."""

    hits: list[SegmentHit]


@route("GET", "/v1/search", role="viewer", tag="documents", conflicts=True)
async def search_segments(
    requester: RequesterOf,
    q: Words,
    project: InProject = None,
    document: InDocument = None,
    limit: Hits = 20,
) -> SegmentHits:
    """Search the segments of documents for words; snippets are plain text, with marks."""
    found = await required_search(requester.hf.documents.search).search(
        requester.tenant, q, project=project, document=document, limit=limit
    )
    return SegmentHits([*found])


SEARCH = (search_segments,)
