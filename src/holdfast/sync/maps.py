# Generated from src/holdfast/engine/client/map_handle.py by checks/blocking.py; do not edit.
# To write it anew: python -m checks.blocking --write
"""The blocking `MapHandle`; the async one is `holdfast.engine.client.map_handle.MapHandle`."""

from __future__ import annotations

from holdfast.engine.client.map_handle import MapHandle as AsyncMapHandle
from holdfast.model.map import MappedItem, MappedItemPage, MapProgress
from holdfast.portal import BlockingStream, Portal

__all__ = ["MapHandle"]


class MapHandle:
    """One map of a run: returned by `RunHandle.map`.

    To make a handle reads nothing: an operation raises `RunNotFound` where there is no such map.
    """

    def __init__(self, portal: Portal, map: AsyncMapHandle) -> None:
        self._portal = portal
        self._map = map

    @property
    def id(self) -> str:
        """The id of the map in its run."""
        return self._map.id

    def progress(self) -> MapProgress:
        """Return how far the map is.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
        """
        return self._portal.call(self._map.progress)

    def items(self, *, after: int = -1, limit: int | None = None) -> BlockingStream[MappedItem]:
        """Yield the items that have ended, in the order of their index, after an index.

        Items of chunks that run now are not among them, so while the map runs there may be gaps.
        One chunk is in memory at a time.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``after`` is not an index, or ``limit`` is not a number from 1.
        """
        return self._portal.open_stream(self._map.items, after=after, limit=limit)

    def failed(self, *, after: int = -1, limit: int | None = None) -> BlockingStream[MappedItem]:
        """Yield the items that failed, in the order of their index, after an index.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``after`` is not an index, or ``limit`` is not a number from 1.
        """
        return self._portal.open_stream(self._map.failed, after=after, limit=limit)

    def page(
        self, *, limit: int = 100, cursor: str | None = None, failed: bool = False
    ) -> MappedItemPage:
        """Return a page of the items that have ended, or with ``failed`` of those that failed.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``limit`` is not a number from 1 to 1,000, or ``cursor`` is not one of
                such a page.
        """
        return self._portal.call(self._map.page, limit=limit, cursor=cursor, failed=failed)

    def retry(self, index: int) -> str:
        """Run one failed item again, also after the run of the map has ended; return the new run.

        Its result supersedes the old one. The run of the map does not notice: it goes on, or stays
        ended, as it is.

        Raises:
            RunNotFound: there is no such run or map, or its results are no longer stored.
            NotRetryable: the item has not failed, or it is being retried.
            InvalidRequest: the map has no item of that index.
        """
        return self._portal.call(self._map.retry, index)

    def __repr__(self) -> str:
        return repr(self._map)
