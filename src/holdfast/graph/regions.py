"""Assigns nodes to branches, and checks that parallel branches do not conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.graph.wiring import ForkEdge, Wiring

__all__ = ["Region", "region_faults", "regions_of"]


class Region(msgspec.Struct, frozen=True):
    """The nodes of one branch of a fork; without a fork, the nodes outside of all branches."""

    fork: str | None = None
    """The node after which the branch starts."""
    number: int = 0
    join: str | None = None
    """The node that ends the branch."""

    def __str__(self) -> str:
        if self.fork is None:
            return "outside of all branches"
        return f"branch {self.number} of the fork after {self.fork!r}"


def regions_of(wiring: Wiring) -> tuple[dict[str, Region], list[str]]:
    """Return the region of each reachable node, and the faults that were found."""
    found: dict[str, Region] = {}
    faults: list[str] = []
    left = [(wiring.start, Region())]
    while left:
        name, region = left.pop()
        if name not in wiring.nodes or name == region.join:
            continue
        if name in found:
            known = found[name]
            if known != region:
                faults.append(
                    f"node {name!r} must belong to one branch or to none, but it is reached from "
                    f"{known} and from {region}"
                )
            continue
        found[name] = region
        left += [(to, region) for to in wiring.next_nodes(name) if to is not None]
        edge = wiring.edges.get(name)
        if isinstance(edge, ForkEdge):
            left += [(to, Region(name, n, edge.join)) for n, to in enumerate(edge.starts)]
    return found, list(dict.fromkeys(faults))


def region_faults(
    wiring: Wiring,
    regions: Mapping[str, Region],
    fields: Mapping[str, frozenset[str] | None],
    reducers: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    """Yield what is wrong with the forks. ``fields`` and ``reducers`` are by scope of the graph.

    Two branches may write the same field only if the field has a reducer.
    """
    members: dict[tuple[str, int], list[str]] = {}
    for name, region in regions.items():
        if region.fork is not None:
            members.setdefault((region.fork, region.number), []).append(name)
    for name, region in regions.items():
        stale = wiring.nodes[name].on_stale
        if stale is not None and stale.node and stale.node == region.join:
            yield (
                f"on_stale of node {name!r} must name a node inside of its branch, "
                f"got the join {stale.node!r}"
            )
    for fork, edge in wiring.edges.items():
        if not isinstance(edge, ForkEdge) or fork not in wiring.nodes:
            continue
        scope = wiring.scope_of(fork)
        known = fields.get(scope)
        if len(set(edge.starts)) < len(edge.starts):
            yield f"two branches of the fork after {fork!r} start with the same node"
        if edge.join in edge.starts:
            yield f"a branch of the fork after {fork!r} starts with the join {edge.join!r}"
        around = regions.get(fork)
        if around is not None and edge.join == around.join:
            yield (
                f"the fork after {fork!r} is inside a branch that ends at {edge.join!r}: give the "
                "inner fork another join, inside of that branch"
            )
        for name in (edge.over, edge.into):
            if name and known is not None and name not in known:
                yield f"the fork after {fork!r} names {name!r}, but the state has no such field"
        if edge.takes is not None:
            continue  # an included graph is the only branch
        writers: dict[str, list[str]] = {}
        for number, _ in enumerate(edge.starts):
            inside = members.get((fork, number), [])
            written = _WrittenFields(wiring, members, known).of(inside)
            if isinstance(written, str):
                yield (
                    f"node {written!r} runs in parallel with others, but the fields that it writes "
                    "are not known: declare them with writes=[...]"
                )
                continue
            for name in written:
                writers.setdefault(name, []).append(edge.starts[number])
        for name, starts in sorted(writers.items()):
            many = len(starts) > 1 or bool(edge.over)
            if many and name != edge.into and name not in reducers.get(scope, {}):
                who = "every branch" if edge.over else " and ".join(map(repr, starts))
                yield (
                    f"after {fork!r}, {who} may write field {name!r} at the same time: give it "
                    "a reducer, or declare what the nodes write with writes=[...]"
                )


class _WrittenFields:
    """Finds the fields that nodes and the branches below them write."""

    def __init__(
        self,
        wiring: Wiring,
        members: Mapping[tuple[str, int], list[str]],
        fields: frozenset[str] | None,
    ) -> None:
        self._wiring = wiring
        self._members = members
        self._fields = fields

    def of(self, names: list[str]) -> set[str] | str:
        """Return the fields, or the name of a node whose fields are not known."""
        written: set[str] = set()
        for name in names:
            edge = self._wiring.edges.get(name)
            if isinstance(edge, ForkEdge) and edge.takes is not None:
                written |= set(edge.gives)
                continue
            writes = self._wiring.nodes[name].writes
            if writes is None and self._fields is None:
                return name
            written |= (self._fields or frozenset()) if writes is None else writes
            if isinstance(edge, ForkEdge):
                for number, _ in enumerate(edge.starts):
                    inner = self.of(self._members.get((name, number), []))
                    if isinstance(inner, str):
                        return inner
                    written |= inner
        return written
