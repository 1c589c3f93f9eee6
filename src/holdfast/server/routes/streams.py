"""Routes that follow a run: server-sent events and WebSockets."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import WebSocket, websocket
from litestar.params import QueryParameter

from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.parameters import After, LastEventId, RunId
from holdfast.server.routing import route
from holdfast.server.services import Services, ServicesOf
from holdfast.server.streams.cursor import parse_stream_cursor
from holdfast.server.streams.event_stream import EventStream
from holdfast.server.streams.follower import Wanted
from holdfast.server.streams.registry import OpenStream
from holdfast.server.streams.sockets import check_origin, serve_socket

__all__ = ["STREAMS"]

Events = Annotated[bool, QueryParameter(description="Whether to send recorded events.")]
Text = Annotated[bool, QueryParameter(description="Whether to send the text of answers.")]
Ephemeral = Annotated[bool, QueryParameter(description="Whether to send unrecorded events.")]
Follow = Annotated[
    bool, QueryParameter(description="Whether to go on after what exists, until the run ends.")
]


@route(
    "GET",
    "/v1/runs/{id:str}/stream",
    role="viewer",
    tag="streams",
    media_type="text/event-stream",
    returns=str,
)
async def follow_run(
    requester: RequesterOf,
    services: ServicesOf,
    id: RunId,
    after: After = None,
    last_event_id: LastEventId = None,
    events: Events = True,
    text: Text = True,
    ephemeral: Ephemeral = True,
    follow: Follow = True,
) -> EventStream:
    """Follow a run as server-sent events: its row, its events, and its text as it arrives."""
    wanted = Wanted(events=events, text=text, ephemeral=ephemeral, follow=follow)
    stream = await _open_run(requester, services, id, last_event_id or after, wanted)
    return EventStream(stream, lambda: services.still_valid(requester))


@websocket("/v1/runs/{id:str}/ws", opt={"role": "viewer"})
async def follow_run_over_socket(
    socket: WebSocket[Any, Any, Any],
    requester: RequesterOf,
    services: ServicesOf,
    id: RunId,
    after: After = None,
    events: Events = True,
    text: Text = True,
    ephemeral: Ephemeral = True,
    follow: Follow = True,
) -> None:
    """Follow a run over a WebSocket."""
    check_origin(socket, services.options.cors_origins)
    wanted = Wanted(events=events, text=text, ephemeral=ephemeral, follow=follow)
    stream = await _open_run(requester, services, id, after, wanted)
    await serve_socket(socket, stream, lambda: services.still_valid(requester))


async def _open_run(
    requester: Requester, services: Services, id: str, after: str | None, wanted: Wanted
) -> OpenStream:
    cursor = parse_stream_cursor(after, field="after")
    return await services.streams.follow_run(requester.run(id), cursor, wanted)


STREAMS = (follow_run, follow_run_over_socket)
