"""Routes that follow a list of runs: server-sent events and WebSockets."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import WebSocket, websocket
from litestar.params import QueryParameter

from holdfast.records.run_filter import RunFilter
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.filter_parameters import takes_filter
from holdfast.server.parameters import After, LastEventId
from holdfast.server.routing import route
from holdfast.server.services import Services, ServicesOf
from holdfast.server.streams.event_stream import EventStream
from holdfast.server.streams.list_poller import parse_list_cursor
from holdfast.server.streams.registry import OpenStream
from holdfast.server.streams.sockets import check_origin, serve_socket

__all__ = ["LIST_STREAMS"]

_Limit = Annotated[
    int, QueryParameter(ge=1, le=1000, description="How many runs, at most: the newest ones.")
]


@route(
    "GET",
    "/v1/streams/runs",
    role="viewer",
    tag="streams",
    media_type="text/event-stream",
    returns=str,
)
@takes_filter
async def follow_runs(
    requester: RequesterOf,
    services: ServicesOf,
    run_filter: RunFilter,
    limit: _Limit = 100,
    after: After = None,
    last_event_id: LastEventId = None,
) -> EventStream:
    """Follow a list of runs as server-sent events: the runs that match, then each change."""
    stream = await _open_list(
        requester, services, run_filter, limit=limit, after=last_event_id or after
    )
    return EventStream(stream, lambda: services.still_valid(requester))


@websocket("/v1/streams/runs/ws", opt={"role": "viewer"})
@takes_filter
async def follow_runs_over_socket(
    socket: WebSocket[Any, Any, Any],
    requester: RequesterOf,
    services: ServicesOf,
    run_filter: RunFilter,
    limit: _Limit = 100,
    after: After = None,
) -> None:
    """Follow a list of runs over a WebSocket."""
    check_origin(socket, services.options.cors_origins)
    stream = await _open_list(requester, services, run_filter, limit=limit, after=after)
    await serve_socket(socket, stream, lambda: services.still_valid(requester))


async def _open_list(
    requester: Requester,
    services: Services,
    run_filter: RunFilter,
    *,
    limit: int,
    after: str | None,
) -> OpenStream:
    cursor = parse_list_cursor(after, field="after")
    named = (requester.tenant, limit, msgspec.structs.asdict(run_filter))
    key = msgspec.json.encode(named, order="deterministic").decode()

    return await services.streams.follow_list(
        key,
        lambda: requester.hf.list(run_filter, tenant=requester.tenant, limit=limit),
        cursor,
    )


LIST_STREAMS = (follow_runs, follow_runs_over_socket)
