"""How a node maps: the part of the context that begins maps and reads their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.engine.effects.begun_requests import BegunRequests, tracked
from holdfast.engine.execution.map_signatures import typed_map
from holdfast.engine.execution.mapped_results import MapResults
from holdfast.engine.execution.visit_facts import VisitFacts
from holdfast.engine.execution.visit_maps import VisitMaps
from holdfast.model.map import Mapped

__all__ = ["MapContext"]


class MapContext(VisitFacts):
    """Begins maps for a node, and reads their results."""

    _maps: VisitMaps
    _requests: BegunRequests

    @typed_map
    @tracked
    async def map(
        self,
        item: Any,
        count_or_items: Any,
        *,
        chunk: int = 100,
        concurrency: int = 10,
        tolerate: float = 0,
        given: Mapping[str, Any] | None = None,
    ) -> Mapped:
        """Call an item function for many items, in chunks that all workers run, and wait for all.

        ``item`` is a function of ``@graph.item``, or another graph: then each item is a child run.
        ``count_or_items`` is the number of items, or a list of their values. A ``chunk`` of items
        is one run. At most ``concurrency`` items run at a time, in all workers together. Up to
        ``tolerate`` items may fail, a share from 0 to 1 or a number. Every item finds ``given`` in
        ``ctx.given``. The result is a small cursor: `mapped` reads the results.

        A node that runs again finds the map that it began, as it began. After a retry of the run,
        only items without a result run again.

        Raises:
            MapFailed: more items failed than the map tolerates; the others were cancelled.
            InvalidRequest: an argument has an invalid value, or ``item`` is not of this graph.
            PayloadTooLarge: ``given`` has more than 8 KB.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        return await self._maps.run(
            item,
            count_or_items,
            chunk=chunk,
            concurrency=concurrency,
            tolerate=tolerate,
            given=given,
        )

    def mapped(self, cursor: Mapped | Mapping[str, Any]) -> MapResults:
        """Return the results of a map, in the order of the items: ``async for entry in …``.

        One chunk is in memory at a time. The map may be of an earlier node: a state can hold the
        cursor.

        Raises:
            InvalidRequest: this is not what `map` returned.
        """
        return self._maps.results(cursor)
