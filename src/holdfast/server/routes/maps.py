"""Routes for the maps of a run: how far they are, their items, and retries of single items."""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from holdfast.model.map import ITEMS_MAX, MapItemRetry, MapPage, MappedItemPage, MapProgress
from holdfast.server.caller import RequesterOf
from holdfast.server.parameters import Cursor, Limit, RunId
from holdfast.server.routing import route

__all__ = ["MAPS"]

_MapId = Annotated[
    str, PathParameter(description="The id of the map in its run.", min_length=1, max_length=128)
]
_Index = Annotated[int, PathParameter(description="The index of the item.", ge=0, le=ITEMS_MAX)]
_Failed = Annotated[bool, QueryParameter(description="Only the items that failed.")]


@route("GET", "/v1/runs/{id:str}/maps", role="viewer", tag="runs", etag=True)
async def list_maps(requester: RequesterOf, id: RunId) -> MapPage:
    """List the maps that a run has begun, and how far they are."""
    return MapPage(await requester.run(id).maps())


@route("GET", "/v1/runs/{id:str}/maps/{map:str}", role="viewer", tag="runs", etag=True)
async def get_map(requester: RequesterOf, id: RunId, map: _MapId) -> MapProgress:
    """Get how far a map of a run is."""
    return await requester.run(id).map(map).progress()


@route("GET", "/v1/runs/{id:str}/maps/{map:str}/items", role="viewer", tag="runs", etag=True)
async def list_map_items(
    requester: RequesterOf,
    id: RunId,
    map: _MapId,
    failed: _Failed = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> MappedItemPage:
    """Get a page of the items of a map that have ended, in the order of their index."""
    return await requester.run(id).map(map).page(limit=limit, cursor=cursor, failed=failed)


@route(
    "POST",
    "/v1/runs/{id:str}/maps/{map:str}/items/{index:int}/retry",
    role="operator",
    tag="runs",
    status=202,
    conflicts=True,
)
async def retry_map_item(
    requester: RequesterOf, id: RunId, map: _MapId, index: _Index
) -> MapItemRetry:
    """Run one failed item of a map again, also after the run of the map has ended."""
    return MapItemRetry(await requester.run(id).map(map).retry(index))


MAPS = (list_maps, get_map, list_map_items, retry_map_item)
