"""`RemoteMap`: what callers read of one map of a run of a server, and how they retry an item."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from holdfast.client.reading import read
from holdfast.client.run_requests import RunRequests
from holdfast.engine.history.run_stream import RunStream
from holdfast.errors import InvalidQuery, InvalidRequest
from holdfast.model.map import MapItemRetry, MappedItem, MappedItemPage, MapProgress

__all__ = ["RemoteMap"]

_PAGE_MAX = 1_000


class RemoteMap:
    """One map of a run of a server: returned by `RemoteRun.map`.

    To make a handle reads nothing: an operation raises `RunNotFound` where there is no such map.
    """

    def __init__(
        self, requests: RunRequests, id: str, typed: Callable[[str, Any], Any] | None
    ) -> None:
        self._requests = requests
        self._id = id
        self._typed = typed

    @property
    def id(self) -> str:
        """The id of the map in its run."""
        return self._id

    async def progress(self) -> MapProgress:
        """Return how far the map is.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
        """
        return read(MapProgress, await self._requests.call("map", map=self._id))

    def items(self, *, after: int = -1, limit: int | None = None) -> RunStream[MappedItem]:
        """Yield the items that have ended, in the order of their index, after an index.

        Items of chunks that run now are not among them, so while the map runs there may be gaps.
        Results are in their stored form.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``after`` is not an index, or ``limit`` is not a number from 1.
        """
        return RunStream(self._read(after, limit, failed=False))

    def failed(self, *, after: int = -1, limit: int | None = None) -> RunStream[MappedItem]:
        """Yield the items that failed, in the order of their index, after an index.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``after`` is not an index, or ``limit`` is not a number from 1.
        """
        return RunStream(self._read(after, limit, failed=True))

    async def page(
        self, *, limit: int = 100, cursor: str | None = None, failed: bool = False
    ) -> MappedItemPage:
        """Return a page of the items that have ended, or with ``failed`` of those that failed.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``limit`` is not a number from 1 to 1,000, or ``cursor`` is not one of
                such a page.
        """
        query = {"limit": limit, "cursor": cursor, "failed": "true" if failed else None}
        shown = await self._requests.call("map_items", query=query, map=self._id)
        return read(MappedItemPage, shown)

    async def retry(self, index: int) -> str:
        """Run one failed item again, also after the run of the map has ended; return the new run.

        Its result supersedes the old one. The run of the map does not notice: it goes on, or stays
        ended, as it is.

        Raises:
            RunNotFound: there is no such run or map, or its results are no longer stored.
            NotRetryable: the item has not failed, or it is being retried.
            InvalidRequest: the map has no item of that index.
        """
        if type(index) is not int or index < 0:
            raise InvalidRequest(
                f"index must be an integer from 0, got {index!r:.80}", field="index"
            )
        shown = await self._requests.call("map_retry", map=self._id, index=str(index))
        return read(MapItemRetry, shown).run

    async def _read(
        self, after: int, limit: int | None, *, failed: bool
    ) -> AsyncGenerator[MappedItem | None, None]:
        if type(after) is not int or after < -1:
            raise InvalidQuery(
                f"after must be an integer from -1, got {after!r:.80}", field="after"
            )
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidQuery(f"limit must be an integer from 1, got {limit!r:.80}", field="limit")
        item = (await self.progress()).item if self._typed is not None else ""
        yield None  # it is open
        cursor = None if after < 0 else str(after)
        left = limit
        while left is None or left > 0:
            page_limit = _PAGE_MAX if left is None else min(left, _PAGE_MAX)
            page = await self.page(limit=page_limit, cursor=cursor, failed=failed)
            for entry in page.items:
                if self._typed is not None and entry.ok:
                    result = self._typed(item, entry.result)
                    yield msgspec.structs.replace(entry, result=result)
                else:
                    yield entry
            cursor = page.cursor
            left = None if left is None else left - len(page.items)
            if cursor is None:
                return

    def __repr__(self) -> str:
        return f"<map {self._id!r} of run {self._requests.id!r}>"
