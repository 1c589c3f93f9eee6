"""`MapHandle`: what callers read of one map of a run, and how they retry an item of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from holdfast.engine.history.run_stream import RunStream
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs.argument_checks import validated_limit
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.map_reading import (
    find_place,
    progress_of,
    read_bad_items,
    read_items,
)
from holdfast.engine.runs.map_retrying import retry_item
from holdfast.errors import InvalidQuery
from holdfast.model.map import ITEMS_MAX, MappedItem, MappedItemPage, MapProgress
from holdfast.model.names import validated_name
from holdfast.model.program import Program
from holdfast.records.keys import RunKey

__all__ = ["MapHandle"]


class MapHandle:
    """One map of a run: returned by `RunHandle.map`.

    To make a handle reads nothing: an operation raises `RunNotFound` where there is no such map.
    """

    def __init__(
        self,
        kernel: Kernel,
        workers: LocalWorkers,
        run: RunKey,
        id: str,
        graph: Program | None,
    ) -> None:
        self._kernel = kernel
        self._workers = workers
        self._run = run
        self._id = validated_name(id, "map")
        self._graph = graph

    @property
    def id(self) -> str:
        """The id of the map in its run."""
        return self._id

    async def progress(self) -> MapProgress:
        """Return how far the map is.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
        """
        place, head = await find_place(self._kernel, self._run, self._id)
        return await progress_of(self._kernel, place, head)

    def items(self, *, after: int = -1, limit: int | None = None) -> RunStream[MappedItem]:
        """Yield the items that have ended, in the order of their index, after an index.

        Items of chunks that run now are not among them, so while the map runs there may be gaps.
        One chunk is in memory at a time.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``after`` is not an index, or ``limit`` is not a number from 1.
        """
        _check_page(after, limit)
        return RunStream(self._read(after, limit, failed=False))

    def failed(self, *, after: int = -1, limit: int | None = None) -> RunStream[MappedItem]:
        """Yield the items that failed, in the order of their index, after an index.

        Raises:
            RunNotFound: there is no such run, or no such map of it.
            InvalidQuery: ``after`` is not an index, or ``limit`` is not a number from 1.
        """
        _check_page(after, limit)
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
        limit, after = validated_limit(limit), _index_of_cursor(cursor)
        read = self.failed if failed else self.items
        items = [entry async for entry in read(after=after, limit=limit)]
        return MappedItemPage(items, str(items[-1].index) if len(items) == limit else None)

    async def retry(self, index: int) -> str:
        """Run one failed item again, also after the run of the map has ended; return the new run.

        Its result supersedes the old one. The run of the map does not notice: it goes on, or stays
        ended, as it is.

        Raises:
            RunNotFound: there is no such run or map, or its results are no longer stored.
            NotRetryable: the item has not failed, or it is being retried.
            InvalidRequest: the map has no item of that index.
        """
        return await retry_item(self._kernel, self._workers, self._run, self._id, index)

    async def _read(
        self, after: int, limit: int | None, *, failed: bool
    ) -> AsyncGenerator[MappedItem | None, None]:
        place, _ = await find_place(self._kernel, self._run, self._id)
        yield None  # it is open
        read = read_bad_items if failed else read_items
        graph = None if place.spec.is_graph else self._graph
        count = 0
        async for entry in read(self._kernel, place, after=after):
            if count == limit:
                return
            count += 1
            if graph is not None and entry.ok:
                typed = graph.check().typed_item(place.spec.item, entry.result)
                entry = msgspec.structs.replace(entry, result=typed)
            yield entry

    def __repr__(self) -> str:
        return f"<map {self._id!r} of run {self._run.id!r}>"


def _check_page(after: Any, limit: Any) -> None:
    if type(after) is not int or after < -1:
        raise InvalidQuery(f"after must be an integer from -1, got {after!r:.80}", field="after")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidQuery(f"limit must be an integer from 1, got {limit!r:.80}", field="limit")


def _index_of_cursor(cursor: str | None) -> int:
    if cursor is None:
        return -1
    if not isinstance(cursor, str) or not (cursor.isascii() and cursor.isdigit()):
        raise InvalidQuery(
            f"cursor must be one of a page of items, got {cursor!r:.80}", field="cursor"
        )
    return min(int(cursor[:20]), ITEMS_MAX)
