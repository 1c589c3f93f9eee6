"""Draws a graph as a Mermaid flowchart, which GitHub and most wikis render."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.graph.node import Node
from holdfast.graph.regions import Region, regions_of
from holdfast.graph.wiring import ChoiceEdge, ForkEdge, Wiring

__all__ = ["END_ID", "START_ID", "escaped", "flowchart"]

START_ID, END_ID = "start", "finish"

# Mermaid parses labels as Markdown and HTML, and has its own escapes for characters.
_ESCAPES = str.maketrans(
    {character: f"#{ord(character)};" for character in '"#&<>`\\[]{}()|;*~'}
    | dict.fromkeys("\r\n\t", " ")
)


def escaped(text: str) -> str:
    """Return a text as a label in which Mermaid finds no markup."""
    return text.translate(_ESCAPES)


def flowchart(wiring: Wiring) -> str:
    """Return the flowchart. Dotted arrows are choices and stale pauses, thick ones are forks."""
    ids = {name: f"n{number}" for number, name in enumerate(_names(wiring))}
    lines = ["flowchart TD", f"    {START_ID}((start))"]
    lines += [f'    {key}["{_label(name, wiring.nodes.get(name))}"]' for name, key in ids.items()]
    regions = regions_of(wiring)[0]
    edges = [edge for name in ids for edge in _edges(name, ids, wiring, regions)]
    if any(edge.endswith(f" {END_ID}") for edge in edges):
        lines.append(f"    {END_ID}(((END)))")
    if wiring.start in ids:
        lines.append(f"    {START_ID} --> {ids[wiring.start]}")
    return "\n".join([*lines, *edges]) + "\n"


def _names(wiring: Wiring) -> Iterator[str]:
    """Yield the names of registered nodes, then names that only edges mention."""
    named = dict.fromkeys(wiring.nodes)
    for name, node in wiring.nodes.items():
        if node.on_stale is not None and node.on_stale.node:
            named.setdefault(node.on_stale.node)
        named.update(dict.fromkeys(to for to in wiring.targets(name) if to is not None))
    for name in wiring.edges:
        named.setdefault(name)
        named.update(dict.fromkeys(to for to in wiring.targets(name) if to is not None))
    yield from named


def _label(name: str, node: Node | None) -> str:
    text = escaped(name)
    if node is None:
        return f"{text}<br/>missing"
    marks = {"yes": "", "no": "<br/>not pausable", "blocking": "<br/>may wait"}
    return text + marks[node.pausable]


def _edges(
    name: str, ids: dict[str, str], wiring: Wiring, regions: Mapping[str, Region]
) -> Iterator[str]:
    edge = wiring.edges.get(name)
    if isinstance(edge, ForkEdge):
        text = f'|"each of {escaped(edge.over)}"|' if edge.over else ""
        yield from (f"    {ids[name]} ==>{text} {ids[to]}" for to in edge.starts)
    elif name in wiring.nodes or name in wiring.edges:
        join = regions.get(name, Region()).join
        for target in wiring.targets(name):
            to = join if target is None else target  # the end of a branch leads to the join
            arrow = (
                "-.->" if isinstance(edge, ChoiceEdge) else "==>" if to and to == join else "-->"
            )
            yield f"    {ids[name]} {arrow} {END_ID if to is None else ids[to]}"
    node = wiring.nodes.get(name)
    if node is not None and node.on_stale is not None and node.on_stale.node:
        action = "restart" if node.on_stale.action == "restart" else "escalate"
        yield f'    {ids[name]} -. "stale: {action}" .-> {ids[node.on_stale.node]}'
