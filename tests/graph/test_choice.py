"""Where a choice leads, as far as its function tells."""

from __future__ import annotations

import enum
import functools
import itertools
import sys
from typing import Any, Literal

import pytest

from holdfast.errors import InvalidGraph
from holdfast.graph import END, Graph


def one(state: Any) -> None: ...
def two(state: Any) -> None: ...
def other(state: Any) -> None: ...


ONE = "one"
this = sys.modules[__name__]


def graph_with(chooser: Any, **options: Any) -> Graph:
    graph = Graph("test", dict)
    graph.node(name="choice")(lambda state: None)
    graph.node(one)
    graph.node(two)
    graph.choose("choice", chooser, **options)
    return graph


def by_statements(state: Any) -> Any:
    if state["x"]:
        return one
    chosen = "two"
    return chosen


def by_a_table(state: Any) -> Any:
    return {"low": one, "high": two}[state["risk"]]


def by_an_inner_function(state: Any) -> Any:
    def inner() -> Any:
        return one if state else two

    return inner()


class Chooser:
    def choose(self, state: Any) -> Any:
        return one if state else two


def by_default(state: Any, first: Any = one, *, second: Any = two) -> Any:
    return first if state else second


def chosen_of(state: Any, first: Any, second: Any) -> Any:
    return first if state else second


def chosen_from(first: Any, second: Any, state: Any) -> Any:
    return first if state else second


@pytest.mark.parametrize(
    "chooser",
    [
        lambda state: one if state else two,
        lambda state: "one" if state else "two",
        lambda state: ONE if state else two,
        lambda state: this.one if state else this.two,
        lambda state: [one, two][state["x"]],
        lambda state: ("one", "two")[state["x"]],
        by_statements,
        by_a_table,
        by_an_inner_function,
        Chooser().choose,
        by_default,
        functools.partial(chosen_from, one, two),
    ],
    ids=map(str, itertools.count()),
)
def test_both_targets_are_found(chooser: Any) -> None:
    graph = graph_with(chooser).check()
    assert graph.draw().count("-.->") == 2


def test_what_a_partial_was_given_is_found() -> None:
    graph_with(functools.partial(chosen_of, first=two, second=one)).check()


def test_the_end_is_found() -> None:
    graph = graph_with(lambda state: END if state else [one, two][0]).check()
    assert "n0 -.-> finish" in graph.draw()


def test_a_closure_is_looked_into() -> None:
    first, second = one, two
    graph_with(lambda state: first if state else second).check()


def test_a_closure_that_is_filled_later() -> None:
    graph = graph_with(lambda state: late if state else one)
    with pytest.raises(InvalidGraph, match="'two' cannot be reached"):
        graph.check()
    late = two
    graph.check()


def test_texts_that_are_keys_or_compared_do_not_count() -> None:
    graph = graph_with(lambda state: two if state["one"] or state["risk"] == "one" else END)
    with pytest.raises(InvalidGraph) as caught:
        graph.check()
    assert caught.value.faults == ("node 'one' cannot be reached from the start node 'choice'",)


def test_what_is_not_a_node_does_not_count() -> None:
    graph_with(lambda state: other if len(state) else (one, two, "three")[0]).check()


@pytest.mark.parametrize(
    "chooser",
    [
        lambda state: state["next"],
        functools.partial(max),
        type("C", (), {"__call__": by_default})(),
    ],
)
def test_where_nothing_can_be_told_it_has_to_be_said(chooser: Any) -> None:
    with pytest.raises(InvalidGraph, match=r"pass to=\[\.\.\.\]"):
        graph_with(chooser).check()
    if not isinstance(chooser, functools.partial):
        graph_with(chooser, to=[one, "two", END]).check()


def test_nothing_declared_is_a_fault() -> None:
    with pytest.raises(InvalidGraph, match="to must name at least one node"):
        graph_with(by_statements, to=[]).check()


@pytest.mark.parametrize("chooser", [lambda: one, lambda state, ctx: one], ids=["none", "two"])
def test_a_chooser_takes_the_state_alone(chooser: Any) -> None:
    with pytest.raises(InvalidGraph, match="must take one argument, the state"):
        graph_with(chooser, to=[one, two]).check()


class Step(str, enum.Enum):  # noqa: UP042
    ONE = "one"
    TWO = "twoo"


TWOO = "twoo"


def by_annotation(state: Any) -> Literal["one", "twoo"] | None:
    return state["next"]


def by_returns(state: Any) -> Any:
    if state["x"] > 3:
        return one
    if state["x"]:
        return "two"
    return "twoo"


def by_match(state: Any) -> Any:
    match state["x"]:
        case 1:
            return "twoo"
        case _:
            return ("one", "two")[0]


class Misleading:
    def choose(self, state: Any) -> Any:
        return one if state else "twoo"


@pytest.mark.parametrize(
    "chooser",
    [
        lambda state: "twoo" if state else "one",
        lambda state: "one" if state else "twoo",
        lambda state: state.get("next") or "twoo",
        lambda state: TWOO if state else two,
        lambda state: this.TWOO if state else two,
        lambda state: Step.ONE if state else Step.TWO,
        by_annotation,
        by_returns,
        by_match,
        Misleading().choose,
        functools.partial(by_returns),
    ],
    ids=map(str, itertools.count()),
)
@pytest.mark.parametrize("declared", [False, True])
def test_a_chooser_that_returns_an_unknown_name_is_refused(chooser: Any, declared: bool) -> None:
    graph = graph_with(chooser, **({"to": [one, two]} if declared else {}))
    with pytest.raises(InvalidGraph) as caught:
        graph.check()
    name = getattr(chooser, "__qualname__", "by_returns")
    assert (
        f"the chooser {name!r} at 'choice' returns 'twoo', but the graph has no such node; "
        "did you mean 'two'?"
    ) in caught.value.faults


def test_a_name_that_is_like_none_has_no_suggestion() -> None:
    with pytest.raises(InvalidGraph, match=r"returns 'xyzzy', but the graph has no such node$"):
        graph_with(lambda state: "xyzzy" if state else (one, two)[0]).check()


def with_a_reason(state: Any) -> Any:
    reason = "much too large"
    state["reasons"] = ["too large", reason, f"{reason} 'twoo'"]
    if "refused" in state:
        raise ValueError("refused")
    return two if reason == "small" else one


def with_an_inner_text(state: Any) -> Any:
    def shown() -> str:
        return "no node"

    return {"no node": one}.get(shown(), two)


@pytest.mark.parametrize("chooser", [with_a_reason, with_an_inner_text])
def test_texts_that_are_not_returned_are_no_names(chooser: Any) -> None:
    graph_with(chooser).check()
