"""Routes that follow the processing of a document: server-sent events and WebSockets."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import WebSocket, websocket
from litestar.params import PathParameter, QueryParameter

from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.parameters import After, LastEventId
from holdfast.server.routing import route
from holdfast.server.services import Services, ServicesOf
from holdfast.server.streams.event_stream import EventStream
from holdfast.server.streams.followed_workflow import FollowedWorkflow
from holdfast.server.streams.registry import OpenStream
from holdfast.server.streams.sockets import check_origin, serve_socket
from holdfast.server.streams.workflow_hub import parse_workflow_cursor

__all__ = ["DOCUMENT_STREAMS"]

_WorkflowId = Annotated[
    str, PathParameter(description="The id of a document workflow.", max_length=128)
]
_Follow = Annotated[
    bool, QueryParameter(description="Whether to go on until the document is processed.")
]


@route(
    "GET",
    "/v1/document-workflows/{id:str}/events",
    role="viewer",
    tag="streams",
    media_type="text/event-stream",
    returns=str,
)
async def follow_document(
    requester: RequesterOf,
    services: ServicesOf,
    id: _WorkflowId,
    after: After = None,
    last_event_id: LastEventId = None,
    follow: _Follow = True,
) -> EventStream:
    """Follow the processing of a document as server-sent events: its steps and segments."""
    after = last_event_id or after
    stream = await _open(requester, services, id, after=after, follow=follow, over="sse")
    return EventStream(stream, lambda: services.still_valid(requester))


@websocket("/v1/document-workflows/{id:str}/ws", opt={"role": "viewer"})
async def follow_document_over_socket(
    socket: WebSocket[Any, Any, Any],
    requester: RequesterOf,
    services: ServicesOf,
    id: _WorkflowId,
    after: After = None,
    follow: _Follow = True,
) -> None:
    """Follow the processing of a document over a WebSocket."""
    check_origin(socket, services.options.cors_origins)
    stream = await _open(requester, services, id, after=after, follow=follow, over="websocket")
    await serve_socket(socket, stream, lambda: services.still_valid(requester))


async def _open(
    requester: Requester,
    services: Services,
    id: str,
    *,
    after: str | None,
    follow: bool,
    over: str,
) -> OpenStream:
    cursor = parse_workflow_cursor(after, field="after")
    tenant, documents = requester.tenant, requester.hf.documents
    return await services.streams.follow_workflow(
        (tenant, id),
        FollowedWorkflow(documents, id, tenant=tenant),
        cursor,
        clock=requester.hf.clock,
        follow=follow,
        data={"over": over, "by": requester.identity.name},
    )


DOCUMENT_STREAMS = (follow_document, follow_document_over_socket)
