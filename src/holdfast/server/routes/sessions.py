"""Routes that list what belongs to a tenant as a whole: session queues and ambiguous calls."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from holdfast.engine.runs.ambiguity import cursor_of
from holdfast.model.run import AmbiguousCall, SessionQueueEntry
from holdfast.model.service import AmbiguousCallPage, SessionQueuePage
from holdfast.server.caller import RequesterOf
from holdfast.server.parameters import Cursor, Limit, paged
from holdfast.server.routing import route

__all__ = ["SESSIONS"]

_Session = Annotated[
    str, PathParameter(description="The name of a session.", min_length=1, max_length=128)
]
_User = Annotated[
    str | None,
    QueryParameter(min_length=1, max_length=1024, description="The user of the session."),
]


@route("GET", "/v1/sessions/{session:str}/queue", role="viewer", tag="sessions", etag=True)
async def get_session_queue(
    requester: RequesterOf,
    session: _Session,
    user: _User = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> SessionQueuePage:
    """List the runs of a session that have not ended, in the order of their starts."""
    found = await requester.hf.session_queue(session, user=user, tenant=requester.tenant)
    return SessionQueuePage(*paged(found, _number, limit=limit, cursor=cursor))


@route("GET", "/v1/ambiguous", role="viewer", tag="runs", etag=True)
async def list_ambiguous(
    requester: RequesterOf, limit: Limit = 100, cursor: Cursor = None
) -> AmbiguousCallPage:
    """List the at-most-once calls that may have been made, until they are resolved."""
    page: list[AmbiguousCall] = []
    async with aclosing(requester.hf.ambiguous(tenant=requester.tenant, after=cursor)) as calls:
        async for call in calls:
            if len(page) == limit:
                return AmbiguousCallPage(page, cursor_of(page[-1]))
            page.append(call)
    return AmbiguousCallPage(page, None)


def _number(entry: SessionQueueEntry) -> str:
    return f"{entry.number:012d}"


SESSIONS = (get_session_queue, list_ambiguous)
