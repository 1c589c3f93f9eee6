"""A state that a node changes in place and does not return: a warning names the field."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any, TypedDict

import msgspec
import pytest

from holdfast import Graph, Holdfast
from holdfast.engine.execution import unreturned_changes
from tests.engine.support import House


class Typed(TypedDict, total=False):
    items: list[str]
    total: int


@dataclasses.dataclass
class Data:
    items: list[str] = dataclasses.field(default_factory=list)
    total: int = 0
    added_later: int = 7


class Packed(msgspec.Struct):
    items: list[str] = []
    total: int = 0


@pytest.fixture(autouse=True)
def _forgotten_visits() -> Iterator[None]:
    unreturned_changes._visits.clear()
    yield
    unreturned_changes._visits.clear()


def append_item(state: Any) -> None:
    state["items"].append("x")


def append_attribute(state: Any) -> None:
    state.items.append("x")


def set_item(state: Any) -> None:
    state["items"] = ["x"]


def set_attribute(state: Any) -> None:
    state.items = ["x"]


def add_item(state: Any) -> None:
    state["more"] = 1


async def warnings_of(
    house: House,
    hf: Holdfast,
    kind: Any,
    node: Any,
    caplog: pytest.LogCaptureFixture,
    runs: int = 3,
) -> list[str]:
    graph = Graph("g", kind)
    graph.node(name="node")(node)
    with caplog.at_level(logging.WARNING, "holdfast.nodes"):
        async with house.worker(hf, graph):
            for _ in range(runs):
                await (await hf.start(graph, {"items": ["a"]})).result(timeout=5)
    return [record.getMessage() for record in caplog.records if record.name == "holdfast.nodes"]


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        (dict, append_item, "items"),
        (dict, set_item, "items"),
        (dict, add_item, "more"),
        (Typed, append_item, "items"),
        (Typed, set_item, "items"),
        (Data, append_attribute, "items"),
        (Data, set_attribute, "items"),
        (Packed, append_attribute, "items"),
        (Packed, set_attribute, "items"),
    ],
)
@pytest.mark.parametrize("returned", [None, {"total": 5}])
async def test_a_change_that_is_not_returned_is_warned_of_once(
    house: House,
    hf: Holdfast,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    change: Any,
    field: str,
    returned: Any,
) -> None:
    async def node(state: Any) -> Any:
        change(state)
        return returned

    (told,) = await warnings_of(house, hf, kind, node, caplog)
    assert f": node 'node' of graph 'g' changed {field!r} of its state and did not" in told


def return_state(state: Any) -> Any:
    append_attribute(state)
    return state


def return_replaced(state: Any) -> Any:
    append_attribute(state)
    return dataclasses.replace(state, total=1)


def return_field(state: Any) -> Any:
    append_attribute(state)
    return {"items": state.items}


def return_old_field(state: Any) -> Any:
    state.items.append("x")
    return {"items": state.items[:-1]}


def return_nothing(state: Any) -> Any:
    return None


def break_state(state: Any) -> Any:
    state.items = object()


@pytest.mark.parametrize(
    "node",
    [return_state, return_replaced, return_field, return_old_field, return_nothing, break_state],
)
async def test_what_is_returned_or_unchanged_is_not_warned_of(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture, node: Any
) -> None:
    assert await warnings_of(house, hf, Data, node, caplog) == []


async def test_a_change_that_comes_late_is_found_by_a_sample(
    house: House, hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    visits: list[int] = []

    async def node(state: Any) -> Any:
        visits.append(1)
        if len(visits) > 20:
            state["items"].append("x")

    assert len(await warnings_of(house, hf, dict, node, caplog, runs=70)) == 1
