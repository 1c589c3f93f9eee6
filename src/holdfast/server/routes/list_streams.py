"""Routes that follow a list of runs: server-sent events and WebSockets."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import WebSocket, websocket
from litestar.params import HeaderParameter, QueryParameter

from holdfast.errors import InvalidQuery
from holdfast.model.run import Status
from holdfast.records.run_filter import RunFilter
from holdfast.server.caller import Requester, RequesterOf
from holdfast.server.routing import route
from holdfast.server.services import Services, ServicesOf
from holdfast.server.streams.event_stream import EventStream
from holdfast.server.streams.list_poller import parse_list_cursor
from holdfast.server.streams.registry import OpenStream
from holdfast.server.streams.sockets import check_origin, serve_socket

__all__ = ["LIST_STREAMS"]

_Statuses = Annotated[
    list[Status] | None,
    QueryParameter(max_items=10, description="Statuses of which a run has one."),
]
_Graph = Annotated[str | None, QueryParameter(max_length=128, description="The graph's name.")]
_Labels = Annotated[
    list[str] | None,
    QueryParameter(max_items=10, description="Labels that a run has, each as name=value."),
]
_Reason = Annotated[str | None, QueryParameter(max_length=64, description="Why the run is paused.")]
_Node = Annotated[
    str | None, QueryParameter(max_length=1024, description="The node at which the run is.")
]
_Moment = Annotated[
    str | None, QueryParameter(max_length=64, description="A time: 2026-11-01T09:30:00Z.")
]
_Dollars = Annotated[float | None, QueryParameter(ge=0, description="An amount of dollars.")]
_Limit = Annotated[
    int, QueryParameter(ge=1, le=1000, description="How many runs, at most: the newest ones.")
]
_After = Annotated[
    str | None,
    QueryParameter(max_length=64, description="The id of the last message that the caller has."),
]
_LastEventId = Annotated[
    str | None,
    HeaderParameter(
        name="Last-Event-ID",
        max_length=64,
        description="As `after`, from a browser that connects again. It takes precedence.",
    ),
]


@route(
    "GET",
    "/v1/streams/runs",
    role="viewer",
    tag="streams",
    media_type="text/event-stream",
    returns=str,
)
async def follow_runs(
    requester: RequesterOf,
    services: ServicesOf,
    status: _Statuses = None,
    graph: _Graph = None,
    label: _Labels = None,
    since: _Moment = None,
    until: _Moment = None,
    reason: _Reason = None,
    node: _Node = None,
    updated_since: _Moment = None,
    updated_until: _Moment = None,
    cost_usd_min: _Dollars = None,
    cost_usd_max: _Dollars = None,
    limit: _Limit = 100,
    after: _After = None,
    last_event_id: _LastEventId = None,
) -> EventStream:
    """Follow a list of runs as server-sent events: the runs that match, then each change."""
    run_filter = RunFilter(
        status,
        graph=graph,
        labels=_labels_of(label or []),
        since=since,
        until=until,
        reason=reason,
        node=node,
        updated_since=updated_since,
        updated_until=updated_until,
        cost_usd_min=cost_usd_min,
        cost_usd_max=cost_usd_max,
    )
    stream = await _open_list(
        requester, services, run_filter, limit=limit, after=last_event_id or after
    )
    return EventStream(stream, lambda: services.still_valid(requester))


@websocket("/v1/streams/runs/ws", opt={"role": "viewer"})
async def follow_runs_over_socket(
    socket: WebSocket[Any, Any, Any],
    requester: RequesterOf,
    services: ServicesOf,
    status: _Statuses = None,
    graph: _Graph = None,
    label: _Labels = None,
    since: _Moment = None,
    until: _Moment = None,
    reason: _Reason = None,
    node: _Node = None,
    updated_since: _Moment = None,
    updated_until: _Moment = None,
    cost_usd_min: _Dollars = None,
    cost_usd_max: _Dollars = None,
    limit: _Limit = 100,
    after: _After = None,
) -> None:
    """Follow a list of runs over a WebSocket."""
    check_origin(socket, services.options.cors_origins)
    run_filter = RunFilter(
        status,
        graph=graph,
        labels=_labels_of(label or []),
        since=since,
        until=until,
        reason=reason,
        node=node,
        updated_since=updated_since,
        updated_until=updated_until,
        cost_usd_min=cost_usd_min,
        cost_usd_max=cost_usd_max,
    )
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


def _labels_of(given: list[str]) -> dict[str, str] | None:
    """Return labels that are written as ``name=value``.

    Raises:
        InvalidQuery: one is not, or two of them have one name.
    """
    labels: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name in labels:
            raise InvalidQuery(
                f"label must be name=value, with each name once, got {text!r:.80}", field="label"
            )
        labels[name] = value
    return labels or None


LIST_STREAMS = (follow_runs, follow_runs_over_socket)
