"""Checks a declared graph, and builds the plan by which it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from holdfast.errors import InvalidGraph
from holdfast.graph.declaration import GraphDeclaration, SubgraphDeclaration, known_fields
from holdfast.graph.edge_resolution import resolved_wiring
from holdfast.graph.node import function_fault, name_fault
from holdfast.graph.plan import Plan, build_plan
from holdfast.graph.regions import region_faults, regions_of
from holdfast.graph.state_codec import StateCodec, state_faults
from holdfast.graph.subgraphs import Subgraph, with_subgraphs
from holdfast.graph.wiring import Wiring, wiring_faults
from holdfast.graph.writes import reducer_faults
from holdfast.model.policy import Durability

__all__ = ["checked_plan", "declared_wiring"]


def checked_plan(declaration: GraphDeclaration) -> Plan:
    """Return the plan of a graph. The first call builds it; after that the graph cannot change.

    Raises:
        InvalidGraph: the graph cannot run. The error lists everything that is wrong with it.
    """
    if declaration.plan is None:
        plan, faults = _build_plan(declaration)
        if plan is None:
            raise InvalidGraph(
                f"graph {declaration.name!r:.80} cannot be run: " + "; ".join(faults), faults=faults
            )
        declaration.plan = plan
    return declaration.plan


def declared_wiring(declaration: GraphDeclaration) -> tuple[Wiring, list[str]]:
    """Return the nodes and edges of a graph by name, and what could not be resolved."""
    wiring, faults = resolved_wiring(declaration.nodes, declaration.edges, declaration.start)
    included = [
        Subgraph(name, declared_wiring(part.graph)[0], *part.field_mappings(declaration.state_type))
        for name, part in declaration.subgraphs.items()
    ]
    return with_subgraphs(wiring, included), faults


def _build_plan(declaration: GraphDeclaration) -> tuple[Plan | None, list[str]]:
    """Return the plan of a graph, or everything that is wrong with it."""
    wiring, faults = declared_wiring(declaration)
    state_type, reducers = declaration.state_type, declaration.reducers
    faults = [*_declaration_faults(declaration), *faults, *state_faults(state_type)]
    for name, part in declaration.subgraphs.items():
        faults += _subgraph_faults(name, part, state_type, reducers)
    if faults:
        return None, [*faults, *wiring_faults(wiring)]
    codecs = {"": StateCodec(state_type)}
    reducers_by_scope: dict[str, Mapping[str, str]] = {"": reducers}
    for name, part in declaration.subgraphs.items():
        inner = checked_plan(part.graph)
        codecs |= {f"{name}/{scope}": codec for scope, codec in inner.codecs.items()}
        reducers_by_scope |= {f"{name}/{scope}": ops for scope, ops in inner.reducers.items()}
    regions, faults = regions_of(wiring)
    faults += wiring_faults(wiring)
    fields = {scope: codec.fields for scope, codec in codecs.items()}
    faults += region_faults(wiring, regions, fields, reducers_by_scope)
    faults += reducer_faults(reducers, fields[""])
    if faults:
        return None, faults
    return build_plan(wiring, regions, codecs, reducers_by_scope), []


def _declaration_faults(declaration: GraphDeclaration) -> Iterator[str]:
    """Yield what is wrong with the graph's own options and with each node by itself."""
    if fault := name_fault(declaration.name):
        yield f"the name of the graph: {fault}"
    if type(declaration.version) is not int or declaration.version < 1:
        yield f"version must be an integer from 1, got {declaration.version!r:.80}"
    if declaration.durability not in get_args(Durability):
        yield f"durability must be 'every_node' or 'on_pause', got {declaration.durability!r:.80}"
    for name in declaration.duplicates:
        yield f"two nodes have the name {name!r:.80}"
    if not declaration.nodes:
        yield "the graph has no nodes"
    for node in declaration.nodes.values():
        if fault := name_fault(node.name):
            yield f"the name of a node: {fault}"
        if fault := function_fault(node.function):
            yield f"node {node.name!r:.80}: {fault}"


def _subgraph_faults(
    name: str, part: SubgraphDeclaration, outer: Any, reducers: Mapping[str, str]
) -> Iterator[str]:
    """Yield what is wrong with an included graph and with the fields that are copied."""
    try:
        checked_plan(part.graph)
    except InvalidGraph as invalid:
        yield from (f"in {name!r:.80}: {fault}" for fault in invalid.faults)
        return
    takes, gives = part.field_mappings(outer)
    inner_fields, outer_fields = known_fields(part.graph.state_type), known_fields(outer)
    copies = [*takes.items(), *((own, there) for there, own in gives.items())]
    for own, there in copies:
        for fields, field, whose in (
            (inner_fields, own, "the included graph"),
            (outer_fields, there, "this graph"),
        ):
            if fields and field not in fields:
                yield (
                    f"takes or gives of {name!r:.80} names {field!r:.80}, "
                    f"but the state of {whose} has no such field"
                )
    for there, own in gives.items():
        if reducers.get(there) != part.graph.reducers.get(own):
            yield (
                f"{name!r:.80} gives {own!r:.80} to {there!r:.80}, but the two fields have "
                "different reducers"
            )
