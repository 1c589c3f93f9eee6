"""Runs one item of a chunk: the item function of the graph, or a child run of another program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.execution.visit import ItemFacts, Visit
from holdfast.engine.runs.map_chunks import read_map
from holdfast.engine.runs.map_results import MapPlace, load_values
from holdfast.errors import JournalDamaged, UnknownItem
from holdfast.graph.function_program import FunctionProgram
from holdfast.graph.items import ItemFunction
from holdfast.model.map import MapSpec
from holdfast.model.program import Program
from holdfast.records.codec import unpack_value
from holdfast.records.keys import RunKey

__all__ = ["ChunkInputs", "child_input", "item_function", "items_of_program", "load_inputs"]


class ChunkInputs(msgspec.Struct, frozen=True):
    """What the items of a chunk are given."""

    spec: MapSpec
    first: int
    given: Any
    values: Sequence[Any] | None
    """The values of the items of the chunk; None if the map has only their number."""

    def facts(self, index: int) -> ItemFacts:
        """Return what an item knows of the map."""
        return ItemFacts(index, self.given)

    def value(self, index: int) -> Any:
        """Return the value of an item; its index if it has none."""
        return index if self.values is None else self.values[index - self.first]


async def load_inputs(visit: Visit) -> ChunkInputs:
    """Return what the items of the chunk of a visit are given; it is read once."""
    claimed = visit.claimed
    if claimed.chunk_inputs is None:
        # Several items begin together: the first one reads for all.
        claimed.chunk_inputs = asyncio.ensure_future(_load_inputs(visit))
    reading = claimed.chunk_inputs
    try:
        return await asyncio.shield(reading)
    except BaseException:
        if reading.done():
            claimed.chunk_inputs = None
        raise


async def _load_inputs(visit: Visit) -> ChunkInputs:
    claimed = visit.claimed
    head, kernel = claimed.head, claimed.kernel
    chunk, parent = head.chunk, head.parent
    assert chunk is not None
    assert parent is not None
    run = RunKey(head.key.tenant, parent.id)
    spec = await claimed.claim.retry_store_errors(
        lambda: read_map(kernel, run, parent.generation, chunk.map)
    )
    if spec is None:
        raise JournalDamaged(f"map {chunk.map!r} of run {parent.id!r} is not stored any more")
    values = None
    if spec.is_list:
        place = MapPlace(run, parent.generation, spec)
        values = await claimed.claim.retry_store_errors(
            lambda: load_values(kernel, place, chunk.number)
        )
    given: Any = unpack_value(spec.given) if spec.given else {}
    return ChunkInputs(spec, chunk.number * spec.chunk, given, values)


def items_of_program(program: Program | None) -> Mapping[str, ItemFunction[Any]]:
    """Return the item functions of a program, by name; only graphs have some."""
    return program.items if isinstance(program, FunctionProgram) else {}


def item_function(program: Program | None, name: str) -> ItemFunction[Any]:
    """Return an item function of a graph.

    Raises:
        UnknownItem: this version of the graph does not have it.
    """
    items = items_of_program(program)
    if name not in items:
        raise UnknownItem(
            f"the map calls item {name!r:.80}, which this version of the graph does not have; its "
            f"items are: {', '.join(map(repr, items)) or 'none'}"
        )
    return items[name]


def child_input(program: Program, inputs: ChunkInputs, index: int) -> Any:
    """Return the input of the child run of one item."""
    if inputs.values is not None:
        return inputs.value(index)
    if program.wraps_values:
        return index
    return {"index": index, **inputs.given}
