"""The graph of a document: what is gathered, how it is cut into parts, and what a query reads."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from documents.entities import EntityFacts, EntityGraph, facts_in, find_entity, part_of


def said(*names: str, relations: list[tuple[str, str, str]] | None = None) -> dict[str, Any]:
    return {
        "summary": "",
        "entities": [{"name": name, "kind": "organization"} for name in names],
        "relations": [
            {"source": source, "relation": relation, "target": target}
            for source, relation, target in relations or []
        ],
    }


def find(graph: EntityGraph, name: str) -> EntityFacts | None:
    parts = list(graph.parts())
    return facts_in(parts[part_of(name, len(parts))], name)


def test_an_entity_knows_its_segments_and_relations() -> None:
    graph = EntityGraph()
    graph.add(1, said("Elm Bank", "Fir Works", relations=[("Elm Bank", "pays", "Fir Works")]))
    graph.add(7, said("elm  bank"))
    found = find(graph, "ELM bank")
    assert found is not None
    assert (found.name, found.mentions, found.segments) == ("Elm Bank", 2, [1, 7])
    assert [(each.relation, each.target, each.segments) for each in found.relations] == [
        ("pays", "Fir Works", [1])
    ]
    # The other end knows the relation, too: a query reads one part.
    other = find(graph, "Fir Works")
    assert other is not None
    assert [each.source for each in other.relations] == ["Elm Bank"]
    assert find(graph, "Oak Bank") is None


def test_a_relation_may_name_what_the_model_did_not_list() -> None:
    graph = EntityGraph()
    graph.add(3, said(relations=[("Elm Bank", "owns", "Fir Works")]))
    found = find(graph, "Fir Works")
    assert found is not None
    assert (found.kind, found.mentions, len(found.relations)) == ("other", 0, 1)
    graph.add(4, said("Fir Works"))
    named = find(graph, "Fir Works")
    assert named is not None
    assert (named.kind, named.mentions) == ("organization", 1)


def test_a_graph_is_bounded_and_says_what_it_left_out() -> None:
    graph = EntityGraph(entities_max=2, relations_max=1)
    graph.add(1, said("A One", "B Two", "C Three"))
    graph.add(2, said(relations=[("A One", "pays", "B Two"), ("B Two", "pays", "A One")]))
    assert (graph.entities, graph.relations, graph.left_out) == (2, 1, 2)


@given(st.lists(st.lists(st.text(max_size=12), max_size=6), max_size=8))
def test_each_name_is_found_in_its_part(pages: list[list[str]]) -> None:
    graph = EntityGraph()
    for number, names in enumerate(pages, 1):
        graph.add(number, said(*names))
    for number, names in enumerate(pages, 1):
        for name in names:
            found = find(graph, name)
            if name.split():
                assert found is not None
                assert number in found.segments
            else:
                assert found is None


async def test_a_query_reads_two_blobs_of_a_large_graph() -> None:
    graph = EntityGraph()
    for number in range(5_000):
        graph.add(number + 1, said(f"Firm Number{number}"))
    blobs: dict[str, Any] = {f"part-{n}": part for n, part in enumerate(graph.parts())}
    blobs["index"] = {"parts": list(blobs)}
    assert len(blobs) == 11
    read: list[str] = []

    async def load(uri: str) -> Any:
        read.append(uri)
        return blobs[uri]

    found = await find_entity(load, "index", "firm number77")
    assert found is not None
    assert found.segments == [78]
    assert len(read) == 2
