"""The item of a graph's version: what processes without the graph know of it.

Workers write the item, and nothing depends on it: without it, signals are sent unchecked. Schemas
accumulate, because workers with different code may serve one version. The names that the graph
declares are those of the worker that started last. Its entry in the due index under ``GRAPHS``
makes it part of the list of all graphs; items of older releases get theirs when a worker starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.records import codec
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.index_keys import IndexKey
from holdfast.records.keys import graph_key
from holdfast.storage import Absent, Equals, Update

__all__ = ["GraphFacts", "graph_facts_of", "graph_facts_write", "merged_facts"]

# The item stays small: it is written seldom, but read by every process that sends signals.
_SCHEMAS_PER_SIGNAL_MAX = 4
_SCHEMAS_BYTES_MAX = 64 * 1024
_INPUT_BYTES_MAX = 32 * 1024
_DRAWING_CHARS_MAX = 32 * 1024
_POOLS_MAX = 100


class GraphFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the item of a graph's version says."""

    declared: tuple[str, ...] | None = None
    """The names of all signals that runs take; None if they take signals of any name."""
    schemas: dict[str, dict[str, dict[str, Any]]] = {}
    """The schemas of payloads: by name of the signal, then by digest, the newest last."""
    input_schema: dict[str, Any] | None = None
    drawing: str = ""
    """A Mermaid flowchart."""
    revision: int = 0
    """Grows with each write; 0 if there is no item."""
    pools: tuple[str | None, ...] = ()
    """The pools whose workers have served it; None is the pool without a name."""
    published_ms: int = 0
    """When the facts changed last; 0 if an older release wrote them."""
    listed: bool = False
    """Whether the item is in the list of all graphs."""


def graph_facts_of(item: Mapping[str, Any]) -> GraphFacts:
    """Return the facts in an item.

    Raises:
        JournalDamaged: the item cannot be read.
    """
    try:
        return GraphFacts(
            declared=msgspec.convert(item.get("declared"), tuple[str, ...] | None),
            schemas=_unpacked(item, "signals", dict[str, dict[str, dict[str, Any]]]) or {},
            input_schema=_unpacked(item, "input", dict[str, Any]),
            drawing=msgspec.convert(item.get("drawing", ""), str),
            revision=typed_attribute(item, "revision", int),
            pools=msgspec.convert(item.get("pools", ()), tuple[str | None, ...]),
            published_ms=msgspec.convert(item.get("published_ms", 0), int),
            listed="GSI1PK" in item,
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the item of a graph", error) from error


def merged_facts(stored: GraphFacts, facts: GraphFacts) -> GraphFacts:
    """Return the facts of a worker, with the schemas and the pools that other workers stored.

    Facts that are too large for the item are left out.
    """
    schemas: dict[str, dict[str, dict[str, Any]]] = {}
    for name in (*facts.schemas, *(name for name in stored.schemas if name not in facts.schemas)):
        known, own = stored.schemas.get(name, {}), facts.schemas.get(name, {})
        # Known ones keep their places, so that two workers do not rewrite the item in turn.
        merged = {**known, **{digest: own[digest] for digest in own if digest not in known}}
        kept = [digest for digest in merged if digest not in own]
        kept = kept[max(0, len(merged) - _SCHEMAS_PER_SIGNAL_MAX) :]
        schemas[name] = {each: merged[each] for each in merged if each in own or each in kept}
    return msgspec.structs.replace(
        facts,
        schemas=_fitting(schemas),
        input_schema=facts.input_schema
        if facts.input_schema is None or len(codec.pack(facts.input_schema)) <= _INPUT_BYTES_MAX
        else None,
        drawing=facts.drawing if len(facts.drawing) <= _DRAWING_CHARS_MAX else "",
        revision=stored.revision,
        pools=tuple(dict.fromkeys((*stored.pools, *facts.pools)))[:_POOLS_MAX],
        published_ms=stored.published_ms,
        listed=True,
    )


def graph_facts_write(
    name: str, version: int, facts: GraphFacts, *, now_ms: int, token: str
) -> Update:
    """Return the write of new facts. It fails if another process has written the item."""
    index_key = IndexKey.graph(name, version)
    changes: dict[str, Any] = {
        "GSI1PK": index_key.pk,
        "GSI1SK": index_key.sk,
        "published_ms": now_ms,
        "pools": list(facts.pools) or None,
        "revision": facts.revision + 1,
        "declared": None if facts.declared is None else list(facts.declared),
        "signals": codec.pack(facts.schemas) if facts.schemas else None,
        "input": None if facts.input_schema is None else codec.pack(facts.input_schema),
        "drawing": facts.drawing or None,
    }
    return Update(
        key=graph_key(name, version),
        set={name: value for name, value in changes.items() if value is not None},
        remove=tuple(name for name, value in changes.items() if value is None),
        condition=Equals("revision", facts.revision) if facts.revision else Absent("PK"),
        token=token,
    )


def _fitting(
    schemas: dict[str, dict[str, dict[str, Any]]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the schemas that fit into the item, the first ones."""
    fitting: dict[str, dict[str, dict[str, Any]]] = {}
    size = 0
    for name, by_digest in schemas.items():
        size += len(codec.pack(by_digest)) + len(name)
        if size > _SCHEMAS_BYTES_MAX:
            break
        fitting[name] = by_digest
    return fitting


def _unpacked(item: Mapping[str, Any], name: str, kind: Any) -> Any:
    if name not in item:
        return None
    return msgspec.convert(codec.unpack_value(typed_attribute(item, name, bytes)), kind)
