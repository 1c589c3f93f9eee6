"""The maps of a `FakeContext`: the items run one after the other, in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.engine.execution.mapped_results import MapResults
from holdfast.engine.execution.visit import ItemFacts
from holdfast.engine.execution.visit_maps import VisitMaps, checked_cursor, map_failed
from holdfast.engine.runs.map_starting import MapRequest
from holdfast.graph.node import is_sync_function, name_of, takes_context
from holdfast.model.failure import failure_of
from holdfast.model.map import Mapped, MappedItem
from holdfast.model.program import Program
from holdfast.records.codec import unpack_value
from holdfast.testing.fake_visit import FakeVisit

__all__ = ["FakeMaps"]


class ItemContext(Protocol):
    """The context of the node, which also is that of the items."""

    async def run(self, graph: Any, input: Any) -> Any:
        """Return the result of a child."""
        ...

    def call_item(self, function: Callable[..., Any], value: Any, *, with_context: bool) -> Any:
        """Call a plain item function in a thread, or a coroutine function."""
        ...


class FakeMaps(VisitMaps):
    """Calls item functions in the test's process, and keeps their results."""

    def __init__(
        self,
        visit: FakeVisit,
        waits: Any,
        context: ItemContext,
        results: dict[str, list[MappedItem]],
    ) -> None:
        """``results`` has those of earlier nodes by the id of the map, and gets further ones."""
        super().__init__(visit, waits)  # pyright: ignore[reportArgumentType]
        self._fake = visit
        self._context = context
        self._results = results

    async def run(
        self,
        item: Any,
        count_or_items: Any,
        *,
        chunk: int,
        concurrency: int,
        tolerate: float,
        given: Mapping[str, Any] | None,
    ) -> Mapped:
        """Call the item function for each item, in order."""
        request = self.request(
            item,
            count_or_items,
            chunk=chunk,
            concurrency=concurrency,
            tolerate=tolerate,
            given=given,
        )
        entries = self._results[request.map] = list[MappedItem]()
        values: Sequence[Any] = range(request.total) if request.values is None else request.values
        failed = 0
        for index, value in enumerate(values):
            entry = await self._entry(item, request, index, value)
            failed += not entry.ok
            entries.append(entry)
            if failed > request.tolerated:
                report = {
                    "failed": failed, "total": request.total, "tolerated": request.tolerated
                }  # fmt: skip
                raise map_failed(self._fake.claimed.head.key.id, request.map, request.item, report)
        return Mapped(
            run=self._fake.claimed.head.key.id,
            map=request.map,
            total=request.total,
            succeeded=request.total - failed,
            failed=failed,
            chunk=request.chunk,
        )

    def results(self, cursor: Any) -> MapResults:
        """Return the results of a map of this node, or of one that the test provides."""
        mapped = checked_cursor(cursor)
        if mapped.map not in self._results:
            raise self._fake.provided.refuse(
                f"the node reads map {mapped.map!r}, and the test provides no results of it: pass "
                f"FakeContext(maps={{{mapped.map!r}: [result, …]}})"
            )

        async def read() -> AsyncIterator[MappedItem]:
            for entry in self._results[mapped.map]:
                yield entry

        return MapResults(read)

    async def _entry(self, item: Any, request: MapRequest, index: int, value: Any) -> MappedItem:
        visit: Any = self._fake
        given: Any = unpack_value(request.given) if request.given else {}
        try:
            if isinstance(item, Program):
                wrapped = request.values is not None or item.wraps_values
                input = value if wrapped else {"index": index, **given}
                return MappedItem(index, await self._context.run(item, input))
            visit.item = ItemFacts(index, given)
            with_context = takes_context(item)
            result = self._context.call_item(item, value, with_context=with_context)
            return MappedItem(index, await result)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if self._fake.provided.missing is not None:
                raise
            return MappedItem(index, None, failure_of(error))
        finally:
            visit.item = None

    def _item_name(self, item: Any) -> tuple[str, bool]:
        if isinstance(item, Program):
            return item.check().name, True
        is_sync_function(item)
        return name_of(item), False
