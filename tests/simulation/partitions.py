"""One partition of the table or of an index: its items in order, and as they were a while ago."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TypeAlias

from holdfast.storage.item import Item, item_bytes
from holdfast.storage.ranges import All, At, Between, From, Prefix, Range, UpTo

__all__ = ["Partition", "Place", "Since"]

Place: TypeAlias = tuple[str, ...]
"""Where an item stands in its partition: (SK,), or in an index (index SK, PK, SK)."""

Since: TypeAlias = Callable[[Place], float]
"""From which moment on the changes at a place are not to be seen."""

_first = itemgetter(0)


class Partition:
    """Items by their places. Strings compare by code point, which is the order of UTF-8 as well."""

    __slots__ = ("_places", "_recent", "_weights", "items")

    def __init__(self, items: dict[Place, Item] | None = None) -> None:
        self.items: dict[Place, Item] = items or {}
        self._places: list[Place] = sorted(self.items)
        self._weights: dict[Place, int] = {}
        self._recent: deque[tuple[float, Place, Item | None]] = deque()
        """When a place changed, and what stood there before; the oldest first."""

    @property
    def is_bare(self) -> bool:
        """Whether nothing stands here, and nothing did for as long as is remembered."""
        return not self._places and not self._recent

    def store(self, place: Place, item: Item | None, *, at: float, forget_before: float) -> None:
        """Put an item at a place, or nothing, and remember what stood there."""
        old = self.items.get(place)
        if item is None:
            if old is None:
                return
            del self.items[place]
            del self._places[bisect_left(self._places, place)]
        else:
            if old is None:
                insort(self._places, place)
            self.items[place] = item
        self._weights.pop(place, None)
        recent = self._recent
        recent.append((at, place, old))
        while recent[0][0] < forget_before:
            recent.popleft()

    def item_as_of(self, place: Place, since: float) -> Item | None:
        """Return what stood at a place at that moment."""
        item = self.items.get(place)
        for at, changed, old in reversed(self._recent):
            if at <= since:
                break
            if changed == place:
                item = old
        return item

    def as_of(self, since: Since) -> Partition:
        """Return the partition without the changes that are not to be seen."""
        items = dict(self.items)
        for at, place, old in reversed(self._recent):
            if at <= since(place):
                continue
            if old is None:
                items.pop(place, None)
            else:
                items[place] = old
        return Partition(items)

    def walk(
        self, where: Range, after: Place | None, *, forward: bool
    ) -> Iterator[tuple[Item, int]]:
        """Yield the items of a range, from behind a place on, each with what it weighs."""
        low, high = self._span(where)
        if after is not None and forward:
            low = max(low, bisect_right(self._places, after))
        elif after is not None:
            high = min(high, bisect_left(self._places, after))
        steps = range(low, high) if forward else range(high - 1, low - 1, -1)
        for step in steps:
            place = self._places[step]
            item = self.items[place]
            # To weigh an item takes longer than all else here, and most are read many times.
            weight = self._weights.get(place)
            if weight is None:
                weight = self._weights[place] = item_bytes(item)
            yield item, weight

    def _span(self, where: Range) -> tuple[int, int]:
        places = self._places
        match where:
            case UpTo(sk):
                return 0, bisect_right(places, sk, key=_first)
            case All():
                return 0, len(places)
            case At(sk):
                return self._between(sk, sk)
            case From(sk):
                return bisect_left(places, (sk,)), len(places)
            case Between(first, last):
                return self._between(first, last)
            case Prefix(sk):
                # What is cut to the prefix' length stands in the same order.
                end = bisect_right(places, sk, key=lambda place: place[0][: len(sk)])
                return bisect_left(places, (sk,)), end

    def _between(self, first: str, last: str) -> tuple[int, int]:
        return bisect_left(self._places, (first,)), bisect_right(self._places, last, key=_first)
