"""The item of a graph: what workers of one version write into it together."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import JournalDamaged
from holdfast.records.graph_item import (
    GraphFacts,
    graph_facts_of,
    graph_facts_write,
    merged_facts,
)
from holdfast.records.keys import graph_key

GRAPH = ("warranty", 3)
KEY = graph_key(*GRAPH)


def facts(**schemas: dict[str, Any]) -> GraphFacts:
    return GraphFacts(declared=tuple(sorted(schemas)), schemas=schemas)


def test_facts_come_back_as_they_were_written() -> None:
    made = GraphFacts(
        declared=("go",),
        schemas={"go": {"d1": {"type": "boolean"}}},
        input_schema={"type": "object"},
        drawing="flowchart TD",
    )
    write = graph_facts_write(*GRAPH, made, now_ms=7, token="t")
    item = {"PK": KEY.pk, "SK": KEY.sk, **write.set}
    assert (KEY.pk, KEY.sk) == ("GRAPH#warranty", "00000003")
    found = graph_facts_of(item)
    assert found.revision == 1
    assert merged_facts(found, made) == found  # so nothing is written again
    assert graph_facts_write(*GRAPH, found, now_ms=7, token="t").set["revision"] == 2


def test_schemas_accumulate_and_names_are_those_of_the_last_worker() -> None:
    one, two = facts(go={"d1": {}}, stop={}), facts(go={"d2": {}})
    merged = merged_facts(one, two)
    assert merged.declared == ("go",)
    assert merged.schemas["go"] == {"d1": {}, "d2": {}}
    for number in range(20):
        merged = merged_facts(merged, facts(go={f"e{number}": {}}))
    assert list(merged.schemas["go"]) == ["e16", "e17", "e18", "e19"]


def test_what_is_too_large_is_left_out() -> None:
    noise = {f"{number}": f"{number * 7919 % 104729}" for number in range(30_000)}
    large = GraphFacts(
        schemas={"go": {"d": {"type": "boolean"}}, "large": {"d": noise}},
        input_schema=noise,
        drawing="x" * 40_000,
    )
    kept = merged_facts(GraphFacts(), large)
    assert kept == GraphFacts(schemas={"go": {"d": {"type": "boolean"}}}, listed=True)


def test_the_pools_of_all_workers_are_kept_and_the_item_is_listed() -> None:
    first = merged_facts(GraphFacts(), GraphFacts(pools=(None,)))
    write = graph_facts_write(*GRAPH, first, now_ms=7, token="t")
    assert (write.set["GSI1PK"], write.set["GSI1SK"]) == ("GRAPHS", "warranty#00000003")
    stored = graph_facts_of({"PK": KEY.pk, "SK": KEY.sk, **write.set})
    assert (stored.pools, stored.published_ms, stored.listed) == ((None,), 7, True)
    assert merged_facts(stored, GraphFacts(pools=("gpu",))).pools == (None, "gpu")
    assert merged_facts(stored, GraphFacts()) == stored  # a client that only starts runs


def test_an_item_of_an_older_release_gets_its_entry() -> None:
    old = graph_facts_of({"PK": KEY.pk, "SK": KEY.sk, "revision": 1})
    assert not old.listed
    assert merged_facts(old, GraphFacts()) != old  # so it is written


@pytest.mark.parametrize(
    "attributes",
    [{}, {"revision": "1"}, {"revision": 1, "signals": "x"}, {"revision": 1, "declared": 3}],
)
def test_a_damaged_item_is_said_to_be_damaged(attributes: dict[str, Any]) -> None:
    with pytest.raises(JournalDamaged, match="the item of a graph"):
        graph_facts_of({"PK": KEY.pk, "SK": KEY.sk, **attributes})
