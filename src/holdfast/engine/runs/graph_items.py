"""Reads and writes the items of graphs: the signals that a graph takes, its input, its drawing.

Items of graphs are advice. If the store fails here, starts, the worker and its runs go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.display import get_logger
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.kernel.known_graphs import KnownGraph
from holdfast.errors import (
    ConditionFailed,
    HoldfastError,
    InvalidRequest,
    JournalDamaged,
    StoreClosed,
)
from holdfast.graph.schemas import schema_of
from holdfast.graph.signal_types import SignalType, signal_type_of
from holdfast.model.program import Program
from holdfast.records.graph_item import (
    GraphFacts,
    graph_facts_of,
    graph_facts_write,
    merged_facts,
)
from holdfast.records.keys import graph_key

__all__ = ["publish_declared", "publish_program", "publish_type", "read_graph"]

_log = get_logger("holdfast.worker")

_WRITE_ATTEMPTS_MAX = 5


async def publish_program(
    kernel: Kernel, program: Program, *, pools: Iterable[str | None] = ()
) -> None:
    """Store what other processes should know of a program; log if that fails.

    ``pools`` are those from which a worker of this process claims its runs.
    """
    known = kernel.known_graphs.get(program.name, program.version)
    known.learn_program(program)
    known.offered = program
    facts = msgspec.structs.replace(_facts_of(program), pools=tuple(pools))
    if await _try_publish(kernel, known, lambda stored: merged_facts(stored, facts)):
        known.published |= {
            (name, digest) for name, schemas in facts.schemas.items() for digest in schemas
        }


async def publish_declared(kernel: Kernel, program: Program) -> None:
    """Store a program that declares its signals before its first run starts, once in a process.

    Then other processes check the signals of the run before there is a worker.
    """
    known = kernel.known_graphs.get(program.name, program.version)
    known.learn_program(program)
    if known.offered is not program and not program.takes_other_signals:
        with suppress(StoreClosed):  # the start reports it
            await publish_program(kernel, program)


async def publish_type(
    kernel: Kernel, known: KnownGraph, name: str, signal_type: SignalType
) -> None:
    """Store a type that a node waits for, unless this process stored it; log if that fails."""
    digest = signal_type.digest
    if not digest or (name, digest) in known.published:
        return
    known.learn_type(name, signal_type)
    schemas = {name: {digest: dict(signal_type.schema)}}
    if await _try_publish(
        kernel,
        known,
        lambda stored: merged_facts(stored, msgspec.structs.replace(stored, schemas=schemas)),
    ):
        known.published.add((name, digest))


async def read_graph(kernel: Kernel, known: KnownGraph, *, eventual: bool = False) -> None:
    """Read the item of a graph. An item that cannot be read counts as absent.

    Raises:
        StoreError: the store cannot be read.
    """
    item = await kernel.graph_items.get(graph_key(known.name, known.version), eventual=eventual)
    facts = GraphFacts()
    if item is not None:
        with suppress(JournalDamaged):
            facts = graph_facts_of(item)
    known.learn_facts(facts, kernel.clock.monotonic())


def _facts_of(program: Program) -> GraphFacts:
    schemas: dict[str, dict[str, dict[str, Any]]] = {}
    for name, kind in program.signals.items():
        with suppress(InvalidRequest):
            found = None if kind is msgspec.UNSET else signal_type_of(kind)
            if found is not None and found.digest:
                schemas[name] = {found.digest: dict(found.schema)}
    input_schema = None
    if program.input_type is not msgspec.UNSET:
        with suppress(InvalidRequest):  # JSON cannot express it
            input_schema = schema_of(program.input_type)
    return GraphFacts(
        declared=None if program.takes_other_signals else tuple(sorted(program.signals)),
        schemas=schemas,
        input_schema=input_schema,
        drawing=program.draw(),
    )


async def _try_publish(
    kernel: Kernel, known: KnownGraph, change: Callable[[GraphFacts], GraphFacts]
) -> bool:
    """Change the facts in the item; return whether it has them now."""
    try:
        for _ in range(_WRITE_ATTEMPTS_MAX):
            if await _write_facts(kernel, known, change):
                return True
    except StoreClosed:
        raise
    except HoldfastError as error:
        _log.info("the item of graph %s could not be written: %s", known.name, error)
    return False


async def _write_facts(
    kernel: Kernel, known: KnownGraph, change: Callable[[GraphFacts], GraphFacts]
) -> bool:
    """Change the facts in the item; return False if another process wrote it meanwhile."""
    key = graph_key(known.name, known.version)
    item = await kernel.graph_items.get(key)
    stored = GraphFacts() if item is None else graph_facts_of(item)
    changed = change(stored)
    if changed != stored:
        write = graph_facts_write(
            known.name,
            known.version,
            changed,
            now_ms=kernel.clock.now_ms(),
            token=kernel.ids.new(),
        )
        try:
            await kernel.graph_items.write(write)
        except ConditionFailed:
            return False
        changed = msgspec.structs.replace(changed, revision=changed.revision + 1)
    known.learn_facts(changed, kernel.clock.monotonic())
    return True
