"""What `Context.mapped` returns: the results of a map, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from holdfast.model.map import MappedItem

__all__ = ["MapResults"]

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
