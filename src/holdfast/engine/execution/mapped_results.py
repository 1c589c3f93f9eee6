"""What `Context.mapped` returns: the results of a map, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.model.map import MappedItem

__all__ = ["BlockingMapResults", "MapResults"]

T = TypeVar("T")


class MapResults:
    """The results of a map, in the order of its items."""

    def __init__(self, read: Callable[[], AsyncIterator[MappedItem]]) -> None:
        self._read = read

    def __aiter__(self) -> AsyncIterator[MappedItem]:
        return self._read()

    async def fold(self, reducer: Callable[[T, MappedItem], T], initial: T) -> T:
        """Return the value after all items: ``reducer`` gets the value so far and one item."""
        value = initial
        async for entry in self:
            value = reducer(value, entry)
        return value


class BlockingMapResults:
    """The results of a map, in the order of its items, for a plain function."""

    def __init__(
        self, results: MapResults, run_blocking: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._results = results
        self._run_blocking = run_blocking

    def __iter__(self) -> Iterator[MappedItem]:
        source = aiter(self._results)
        while True:
            entry = self._run_blocking(_next_or_none(source))
            if entry is None:
                return
            yield entry

    def fold(self, reducer: Callable[[T, MappedItem], T], initial: T) -> T:
        """Do as `MapResults.fold` does."""
        value = initial
        for entry in self:
            value = reducer(value, entry)
        return value


async def _next_or_none(source: AsyncIterator[MappedItem]) -> MappedItem | None:
    return await anext(source, None)
