"""Routes that describe the graphs of this server."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from litestar.params import PathParameter

from holdfast.errors import InvalidRequest
from holdfast.graph.schemas import schema_of
from holdfast.model.program import Program
from holdfast.model.service import GraphDescription, GraphPage
from holdfast.server.encoding import JsonResponse
from holdfast.server.parameters import Cursor, Limit, paged
from holdfast.server.routing import route
from holdfast.server.services import ServicesOf

__all__ = ["GRAPHS"]

GraphName = Annotated[
    str, PathParameter(description="The name of a graph.", min_length=1, max_length=128)
]
_MERMAID = "text/vnd.mermaid"


@route("GET", "/v1/graphs", role="viewer", tag="graphs", etag=True)
async def list_graphs(services: ServicesOf, limit: Limit = 100, cursor: Cursor = None) -> GraphPage:
    """List the graphs of this server, by name."""
    names = sorted({graph.name for graph in services.graphs})
    page, following = paged(names, str, limit=limit, cursor=cursor)
    return GraphPage([_description(services, name) for name in page], following)


@route("GET", "/v1/graphs/{name:str}", role="viewer", tag="graphs", etag=True)
async def get_graph(services: ServicesOf, name: GraphName) -> GraphDescription:
    """Get a graph: its versions, and the schemas of its input and its signals."""
    return _description(services, name)


@route(
    "GET",
    "/v1/graphs/{name:str}/drawing",
    role="viewer",
    tag="graphs",
    media_type=_MERMAID,
    returns=str,
    etag=True,
)
async def draw_graph(services: ServicesOf, name: GraphName) -> JsonResponse[bytes]:
    """Draw a graph as a Mermaid flowchart."""
    return JsonResponse(services.graph(name).draw().encode(), media_type=_MERMAID)


def _description(services: Any, name: str) -> GraphDescription:
    graph: Program = services.graph(name)
    versions = {each.version for each in services.graphs if each.name == name}
    return GraphDescription(
        name=graph.name,
        version=graph.version,
        versions=sorted(versions, reverse=True),
        input_schema=_schema_or_none(graph.input_type),
        signals={each: _schema_or_none(kind) for each, kind in sorted(graph.signals.items())},
        takes_other_signals=graph.takes_other_signals,
    )


def _schema_or_none(kind: Any) -> dict[str, Any] | None:
    if kind is not msgspec.UNSET:
        with suppress(InvalidRequest):  # JSON cannot express it
            return schema_of(kind)
    return None


GRAPHS = (list_graphs, get_graph, draw_graph)
