"""The maps of one visit of a node: it begins them, waits for their end, and reads their results."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, cast

import msgspec

from holdfast.engine.execution.chunk_items import items_of_program
from holdfast.engine.execution.mapped_results import MapResults
from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.engine.runs.map_chunks import read_map
from holdfast.engine.runs.map_reading import read_items
from holdfast.engine.runs.map_results import MapPlace
from holdfast.engine.runs.map_starting import MapRequest
from holdfast.engine.runs.rows import read_row
from holdfast.errors import (
    InvalidRequest,
    InvalidResult,
    MapFailed,
    PayloadTooLarge,
    RunNotFound,
    StoreError,
)
from holdfast.graph.items import find_item
from holdfast.graph.mismatch import Mismatch, TooLarge
from holdfast.graph.values import durable
from holdfast.model.event import ProgramEvent, SignalTaken, TimerFired
from holdfast.model.map import (
    CHUNK_ITEMS_MAX,
    CONCURRENCY_MAX,
    GIVEN_BYTES_MAX,
    ITEMS_MAX,
    Mapped,
    MappedItem,
)
from holdfast.model.program import Program
from holdfast.model.wait import MapWait, Wait, signal_kind
from holdfast.records.codec import compress, encode
from holdfast.records.keys import RunKey

__all__ = ["VisitMaps", "checked_cursor", "map_failed", "tolerated_items"]


class VisitMaps:
    """Begins and awaits the maps of one visit of a node."""

    def __init__(self, visit: Visit, waits: VisitWaits) -> None:
        self._visit = visit
        self._waits = waits
        self._counts: Counter[int] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}

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
        """Begin a map, unless it has begun, and return its results; pause the run until it ends."""
        request = self.request(
            item,
            count_or_items,
            chunk=chunk,
            concurrency=concurrency,
            tolerate=tolerate,
            given=given,
        )
        answer = await self._end_of(request)
        report: dict[str, Any] = answer.payload if isinstance(answer, SignalTaken) else {}
        run = self._visit.claimed.head.key.id
        if report["status"] != "finished":
            raise map_failed(run, request.map, request.item, report)
        return Mapped(
            run=run,
            map=request.map,
            total=report["total"],
            succeeded=report["succeeded"],
            failed=report["failed"],
            chunk=report["chunk"],
        )

    def request(
        self,
        item: Any,
        count_or_items: Any,
        *,
        chunk: int,
        concurrency: int,
        tolerate: float,
        given: Mapping[str, Any] | None,
    ) -> MapRequest:
        """Return the checked request for a map.

        Raises:
            InvalidRequest, PayloadTooLarge: as `Context.map` does.
        """
        visit = self._visit
        visit.check_open()
        name, is_graph = self._item_name(item)
        values, total = _items(count_or_items)
        return MapRequest(
            map=self._next_id(),
            item=name,
            is_graph=is_graph,
            values=values,
            total=total,
            chunk=_checked_int(chunk, "chunk", CHUNK_ITEMS_MAX),
            concurrency=_checked_int(concurrency, "concurrency", CONCURRENCY_MAX),
            tolerated=tolerated_items(tolerate, total),
            given=_packed_given(given),
            node=visit.node,
            branch=visit.branch,
            visit=visit.visit,
        )

    def results(self, cursor: Any) -> MapResults:
        """Return the results of a map that has ended."""
        mapped = checked_cursor(cursor)
        return MapResults(lambda: self._read(mapped))

    # --- the end ----------------------------------------------------------------------------------

    async def _end_of(self, request: MapRequest) -> SignalTaken | TimerFired:
        """Return the report of the end of a map; begin the map first, unless it was begun."""
        visit, map = self._visit, request.map
        async with self._locks.setdefault(map, asyncio.Lock()):
            known = self._known_end(map)
            if known is not None:
                return known
            if map not in visit.strand.notes:
                await self._begin(request)
            kind = MapWait.of(map, visit.strand.notes[map])
            wait = await self._waits.begin(kind, None)
            await self._poll(map, kind, wait)
            answer = await self._waits.resolve(wait)
            payload: dict[str, Any] = answer.payload if isinstance(answer, SignalTaken) else {}
            told = {name: payload[name] for name in ("status", "succeeded", "failed", "total")}
            await self._note("MapEnded", map, told, {})
            return answer

    def _known_end(self, map: str) -> SignalTaken | None:
        """Return the report that an earlier execution of the visit got, in whichever round."""
        for answer in self._visit.strand.answers.values():
            if isinstance(answer, SignalTaken):
                kind = signal_kind(answer.name)
                if isinstance(kind, MapWait) and kind.map == map:
                    return answer
        return None

    async def _begin(self, request: MapRequest) -> None:
        visit = self._visit
        with visit.remember_loss():
            await visit.claimed.journal.wait_durable()  # its values may be results of calls
            spec = await visit.external.start_map(request)
        told = {
            "item": spec.item,
            "total": spec.total,
            "chunk": spec.chunk,
            "concurrency": spec.concurrency,
            "tolerated": spec.tolerated,
        }
        await self._note("MapStarted", request.map, told, {request.map: spec.round})

    async def _note(self, kind: str, map: str, told: dict[str, Any], notes: dict[str, Any]) -> None:
        visit = self._visit
        data = {"map": map, "node": visit.node, **told}
        # It need not be durable: a node that runs again finds the map in the store.
        await visit.record(
            ProgramEvent(visit.now_ms(), kind, data, visit.branch, notes), durable=False
        )

    async def _poll(self, map: str, kind: MapWait, wait: Wait) -> None:
        """Ask whether a map has ended, unless its signal is here or is sure to come."""
        visit = self._visit
        if any(signal.name == kind.signal for signal in visit.claimed.inbox.untaken()):
            return
        if wait in visit.claimed.known_waits(visit.branch):
            return
        with visit.remember_loss():
            await visit.external.deliver_map_end(map)

    # --- results ----------------------------------------------------------------------------------

    async def _read(self, mapped: Mapped) -> AsyncIterator[MappedItem]:
        visit = self._visit
        visit.check_open()
        head, kernel = visit.claimed.head, visit.claimed.kernel
        run, generation = head.key, head.generation
        if mapped.run != run.id:
            run = RunKey(head.key.tenant, mapped.run)
            other = await visit.claimed.claim.retry_store_errors(lambda: read_row(kernel, run))
            generation = other.generation
        spec = await visit.claimed.claim.retry_store_errors(
            lambda: read_map(kernel, run, generation, mapped.map)
        )
        if spec is None:
            raise RunNotFound(f"run {mapped.run!r} has no map {mapped.map!r}, or not any more")
        program = visit.external.program
        typed = program.typed_item if run == head.key and not spec.is_graph else None
        async for entry in self._items(MapPlace(run, generation, spec)):
            visit.check_open()
            if typed is not None and entry.ok:
                entry = msgspec.structs.replace(entry, result=typed(spec.item, entry.result))
            yield entry

    async def _items(self, place: MapPlace) -> AsyncIterator[MappedItem]:
        """Yield the items of a map; what the store fails to return is read again."""
        claimed = self._visit.claimed
        after, source = -1, read_items(claimed.kernel, place)

        def read_on() -> Awaitable[MappedItem | None]:
            nonlocal source
            source = read_items(claimed.kernel, place, after=after)  # one that failed has ended
            return anext(source, None)

        while True:
            try:
                entry = await anext(source, None)
            except StoreError:
                entry = await claimed.claim.retry_store_errors(read_on)
            if entry is None:
                return
            after = entry.index
            yield entry

    # --- arguments --------------------------------------------------------------------------------

    def _next_id(self) -> str:
        offset = self._visit.call_ids.number_offset()
        self._counts[offset] += 1
        return f"{self._visit.path}.{offset + self._counts[offset]}".replace("/", "-")

    def _item_name(self, item: Any) -> tuple[str, bool]:
        """Return the name of what a map calls, and whether it is a graph."""
        if isinstance(item, Program):
            return cast("Program[Any, Any]", item).check().name, True
        program = self._visit.external.program
        items = items_of_program(program)
        name = item if isinstance(item, str) and item in items else find_item(items, item)
        if name is None:
            raise InvalidRequest(
                f"item must be a function of @graph.item of graph {program.name!r:.80}, a Graph or "
                f"a @workflow, got {item!r:.80}; the items of the graph are: "
                f"{', '.join(map(repr, items)) or 'none'}",
                field="item",
            )
        return name, False


def tolerated_items(tolerate: Any, total: int) -> int:
    """Return how many of a number of items may fail.

    Raises:
        InvalidRequest: ``tolerate`` is neither a number of items nor a share.
    """
    if type(tolerate) is int and tolerate >= 0:
        return tolerate
    if type(tolerate) is float and 0 <= tolerate <= 1:
        return math.floor(tolerate * total + 1e-9)
    raise InvalidRequest(
        "tolerate must be a number of items (an integer from 0) or a share (a float from 0 to 1), "
        f"got {tolerate!r:.80}",
        field="tolerate",
    )


def _items(given: Any) -> tuple[list[Any] | None, int]:
    """Return the values of the items, if there are any, and their number."""
    if type(given) is int:
        if not 0 <= given <= ITEMS_MAX:
            raise InvalidRequest(
                f"the number of items must be from 0 to {ITEMS_MAX:,}, got {given}",
                field="count_or_items",
            )
        return None, given
    if not isinstance(given, list | tuple):
        raise InvalidRequest(
            "count_or_items must be the number of items or a list of their values, got "
            f"{given!r:.80}",
            field="count_or_items",
        )
    values: list[Any] = []
    for index, value in enumerate(cast("list[Any]", given)):
        try:
            values.append(durable(value))
        except (Mismatch, InvalidResult) as error:
            raise InvalidRequest(
                f"item {index} cannot be stored: {error}", field="count_or_items"
            ) from None
    return values, len(values)


def _checked_int(value: Any, name: str, largest: int) -> int:
    if type(value) is not int or not 1 <= value <= largest:
        raise InvalidRequest(
            f"{name} must be an integer from 1 to {largest:,}, got {value!r:.80}", field=name
        )
    return value


def _packed_given(given: Any) -> bytes:
    if given is None:
        return b""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"given must be a dict, got {given!r:.80}", field="given")
    try:
        plain = encode(durable(given, bytes_max=GIVEN_BYTES_MAX))
    except TooLarge:
        plain = b"0" * (GIVEN_BYTES_MAX + 1)
    except (Mismatch, InvalidResult) as error:
        raise InvalidRequest(f"given cannot be stored: {error}", field="given") from None
    if len(plain) > GIVEN_BYTES_MAX:
        raise PayloadTooLarge(
            f"given has more than {GIVEN_BYTES_MAX:,} bytes: put the rest into a blob or the "
            "store, and give every item its address",
            field="given",
            size=len(plain),
            limit=GIVEN_BYTES_MAX,
        )
    return compress(plain)


def checked_cursor(cursor: Any) -> Mapped:
    """Return a cursor that `Context.map` returned, perhaps in its stored form.

    Raises:
        InvalidRequest: it is something else.
    """
    if isinstance(cursor, Mapped):
        return cursor
    if not isinstance(cursor, Mapping):
        raise InvalidRequest(
            f"the cursor must be the Mapped that ctx.map returned, got {cursor!r:.80}",
            field="cursor",
        )
    try:
        return msgspec.convert(cursor, Mapped)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"the cursor must be what ctx.map returned, got {cursor!r:.80}: {error}",
            field="cursor",
        ) from None


def map_failed(run: str, map: str, item: str, report: Mapping[str, Any]) -> MapFailed:
    """Return the error for a map of which more items failed than it tolerates."""
    return MapFailed(
        f"at least {report['failed']:,} of {report['total']:,} items of map {map!r} ({item}) "
        f"failed, and {report['tolerated']:,} may; the others were cancelled. "
        f"`holdfast run map {run} {map} --failed` shows them",
        map=map,
        failed=report["failed"],
        total=report["total"],
        tolerated=report["tolerated"],
    )
