"""What a user writes: nodes, routes and choices, and what is said when they make no sense."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict

import pytest

import holdfast.graph
from holdfast.errors import InvalidGraph, InvalidRequest
from holdfast.graph import END, Graph, escalate, fail, restart
from holdfast.model.policy import ONCE, OnStale, Retry


class Warranty(TypedDict, total=False):
    uri: str
    text: str
    approved: bool


def nothing(state: Any) -> None:
    """A node that does nothing."""


def graph_of(*names: str, **options: Any) -> Graph:
    graph = Graph("test", dict, **options)
    for name in names:
        graph.node(name=name)(lambda state: None)
    return graph


def faults(graph: Graph) -> tuple[str, ...]:
    with pytest.raises(InvalidGraph) as caught:
        graph.check()
    for fault in caught.value.faults:
        assert fault in str(caught.value)
    return caught.value.faults


def only_fault(graph: Graph) -> str:
    (fault,) = faults(graph)
    return fault


def test_the_example_of_the_architecture() -> None:
    graph = Graph("warranty", Warranty, version=2)

    @graph.node(retry=Retry(attempts=3))
    async def read(state: Warranty, ctx: Any) -> Warranty:
        return {"text": "text"}

    @graph.node(pausable="blocking", timeout=5, max_pause=timedelta(days=7), on_stale=restart(read))
    async def review(state: Warranty, ctx: Any) -> Warranty:
        return {"approved": True}

    @graph.node
    def remind(state: Warranty) -> None: ...

    graph.route(read, review)
    graph.choose(review, lambda state: remind if state["approved"] else END)

    assert graph.check() is graph
    assert (graph.name, graph.version, graph.state_type) == ("warranty", 2, Warranty)
    assert list(graph.nodes) == ["read", "review", "remind"]
    first, second, third = graph.nodes.values()
    assert (first.function, first.is_sync, first.takes_context) == (read, False, True)
    assert (first.pausable, first.retry.attempts, first.timeout_ms) == ("yes", 3, None)
    assert (second.pausable, second.retry, second.timeout_ms) == ("blocking", ONCE, 5000)
    assert second.max_pause_ms == 7 * 24 * 3600 * 1000
    assert second.on_stale == OnStale("restart", "read")
    assert (third.is_sync, third.takes_context) == (True, False)


async def test_a_node_stays_the_function_that_it_was() -> None:
    graph = Graph("test", dict)

    async def read(state: Any) -> dict[str, str]:
        return {"text": state["uri"]}

    assert graph.node(read) is read
    assert graph.node(name="again")(read) is read
    assert await read({"uri": "x"}) == {"text": "x"}


class AsyncCallable:
    async def __call__(self, state: Any) -> None: ...

    async def method(self, state: Any, ctx: Any) -> None: ...


class PlainCallable:
    def __call__(self, state: Any, ctx: Any) -> None: ...


async def with_extra(extra: int, state: Any, ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "plain", "takes_context"),
    [
        (nothing, True, False),
        (lambda state, ctx: None, True, True),
        (lambda state, ctx=None: None, True, True),
        (lambda *args: None, True, True),
        (AsyncCallable(), False, False),
        (AsyncCallable().method, False, True),
        (PlainCallable(), True, True),
        (functools.partial(with_extra, 1), False, True),
        (functools.partial(functools.partial(with_extra, 1), ctx=2), False, False),
        (functools.partial(AsyncCallable()), False, False),
    ],
    ids=map(str, itertools.count()),
)
def test_what_is_called_and_how(function: Any, plain: bool, takes_context: bool) -> None:
    graph = Graph("test", dict)
    graph.node(name="node")(function)
    node = graph.check().nodes["node"]
    assert (node.is_sync, node.takes_context) == (plain, takes_context)


def test_the_first_node_is_the_start_unless_another_is_named() -> None:
    graph = graph_of("a", "b")
    graph.route("a", "b")
    assert graph.start({}, "seed").node == "a"
    graph = graph_of("a", "b", start="b")
    graph.route("b", "a")
    assert graph.start({}, "seed").node == "b"


def test_a_node_can_be_registered_after_the_route_that_names_it() -> None:
    graph = Graph("test", dict)
    graph.route("first", nothing, END)
    graph.node(name="first")(lambda state: None)
    graph.node(nothing)
    graph.check()


def test_methods_are_named_by_looking_at_them_again() -> None:
    nodes = AsyncCallable()
    graph = Graph("test", dict)
    graph.node(nothing)
    graph.node(nodes.method)
    graph.route(nothing, nodes.method)
    graph.choose(nodes.method, lambda state: nodes.method, to=[nodes.method])
    assert list(graph.check().nodes) == ["nothing", "method"]


def test_what_is_checked_cannot_be_changed() -> None:
    graph = graph_of("a").check()
    assert graph.check() is graph
    for change in (
        lambda: graph.node(nothing),
        lambda: graph.route("a", "a"),
        lambda: graph.choose("a", lambda state: END),
    ):
        with pytest.raises(InvalidGraph, match="cannot be changed any more"):
            change()


def test_a_graph_that_failed_its_check_can_be_mended() -> None:
    graph = graph_of("a")
    graph.route("a", "b")
    assert "'b'" in only_fault(graph)
    graph.node(name="b")(nothing)
    graph.check()


def test_everything_wrong_is_said_at_once() -> None:
    graph = Graph("no good", Warranty, version=0)
    graph.node(name="a", pausable="no", max_pause=1)(nothing)
    graph.node(name="b", on_stale=escalate("gone"))(nothing)
    graph.node(name="c", on_stale=fail())(lambda: None)
    graph.route("a", "lost")
    found = "\n".join(faults(graph))
    assert len(found.splitlines()) == 11
    for part in (
        "'_', '-' or '.', got 'no good'",
        "version must be an integer from 1, got 0",
        "node 'c': a node must take (state) or (state, ctx), got ()",
        "the route at 'a' leads to 'lost'",
        "node 'a' has max_pause but no on_stale",
        "node 'a' has max_pause but pausable='no'",
        "on_stale of node 'b' names 'gone'",
        "node 'b' has on_stale but no max_pause",
        "node 'b' cannot be reached",
        "node 'c' has on_stale but no max_pause",
        "node 'c' cannot be reached",
    ):
        assert part in found


@pytest.mark.parametrize(
    "function", [lambda ctx: None, lambda ctx, state: None], ids=["alone", "first"]
)
def test_the_state_comes_first(function: Any) -> None:
    graph = Graph("g", dict)
    graph.node(name="a")(function)
    assert "node 'a': a node must take the state first and ctx second, got (ctx" in only_fault(
        graph
    )


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None])
def test_versions(version: Any) -> None:
    assert "version" in only_fault(graph_of("a", version=version))


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a/b", "é", "a\n", "END", 5, None])
def test_names_of_graphs(name: Any) -> None:
    graph = Graph(name, dict)
    graph.node(nothing)
    assert only_fault(graph).startswith("the name of the graph")


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "a/b", "é", "<lambda>", "a\n", "END"])
def test_names_of_nodes(name: str) -> None:
    assert only_fault(graph_of(name)).startswith("the name of a node")


@pytest.mark.parametrize("name", ["a", "A-9_.z", "a" * 64, "end"])
def test_names_that_are_names(name: str) -> None:
    graph = Graph(name, dict)
    graph.node(name=name)(nothing)
    graph.check()


def test_a_graph_needs_a_node() -> None:
    assert only_fault(Graph("test", dict)) == "the graph has no nodes"


def test_a_start_that_is_not_there() -> None:
    assert "start names 'b'" in only_fault(graph_of("a", start="b"))


def test_two_nodes_of_one_name() -> None:
    assert only_fault(graph_of("a", "a")) == "two nodes have the name 'a'"


def generator(state: Any) -> Any:
    yield


async def async_generator(state: Any) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (generator, "generator"),
        (async_generator, "generator"),
        (functools.partial(generator), "generator"),
        (lambda: None, "(state) or (state, ctx), got ()"),
        (lambda a, b, c: None, "got (a, b, c)"),
        (lambda state, *, needed: None, "got (state, *, needed)"),
        (min, "signature of the function cannot be read"),
    ],
    ids=map(str, itertools.count()),
)
def test_functions_that_are_no_nodes(function: Any, reason: str) -> None:
    graph = Graph("test", dict)
    graph.node(name="node")(function)
    fault = only_fault(graph)
    assert fault.startswith("node 'node': ")
    assert reason in fault


@pytest.mark.parametrize(
    "misuse",
    [
        lambda graph: graph.node(5),
        lambda graph: graph.node(name="a")(5),
        lambda graph: graph.node(functools.partial(nothing)),
        lambda graph: graph.node(name=5)(nothing),
        lambda graph: graph.node(pausable="maybe")(nothing),
        lambda graph: graph.node(retry=3)(nothing),
        lambda graph: graph.node(on_stale="fail")(nothing),
        lambda graph: graph.node(timeout=0)(nothing),
        lambda graph: graph.node(max_pause=0)(nothing),
        lambda graph: graph.route("a"),
        lambda graph: graph.route("a", 5),
        lambda graph: graph.route("a", END, "b"),
        lambda graph: graph.choose("a", "b"),
        lambda graph: graph.choose("a", AsyncCallable()),
        lambda graph: graph.choose(END, nothing),
        lambda graph: graph.choose("a", nothing, to=[5]),
        lambda graph: restart(5),
        lambda graph: escalate(functools.partial(nothing)),
    ],
    ids=map(str, itertools.count()),
)
def test_misuse_is_refused_at_once(misuse: Callable[[Graph], Any]) -> None:
    with pytest.raises(InvalidGraph):
        misuse(Graph("test", dict))


@pytest.mark.parametrize("duration", [-1, "5", True, 1e30])
def test_durations_that_are_none(duration: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout"):
        Graph("test", dict).node(timeout=duration)(nothing)


def test_routes_and_choices_to_and_from_what_is_not_there() -> None:
    graph = graph_of("a")
    graph.choose("a", lambda state: END, to=[END, "b"])
    graph.route("c", "a")
    assert faults(graph) == (
        "the choice at 'a' leads to 'b', but the graph has no such node",
        "a route starts at 'c', but the graph has no such node",
    )


def test_a_function_that_is_not_registered() -> None:
    graph = graph_of("a")
    graph.route("a", nothing)
    assert (
        only_fault(graph) == "the route at 'a' leads to 'nothing', but the graph has no such node"
    )


def test_a_function_that_has_only_the_name_of_a_node() -> None:
    graph = graph_of("a", "nothing")
    graph.route("a", nothing)
    assert "'nothing' is registered with another function" in only_fault(graph)


def test_a_function_that_is_two_nodes() -> None:
    graph = Graph("test", dict)
    graph.node(name="a")(nothing)
    graph.node(name="b")(nothing)
    graph.route("a", "b")
    graph.check()
    graph = Graph("test", dict)
    graph.node(name="a")(nothing)
    graph.node(name="b")(nothing)
    graph.route(nothing, "b")
    assert "is registered as several nodes" in only_fault(graph)


def test_one_way_out() -> None:
    graph = graph_of("a", "b", "c")
    graph.route("a", "b")
    graph.route("a", "b")  # said twice is not two ways
    graph.route("b", "c")
    graph.check()

    graph = graph_of("a", "b", "c")
    graph.route("a", "b")
    graph.route("a", "c")
    assert only_fault(graph).startswith("node 'a' must have one route, choice or fork, got 2")

    graph = graph_of("a", "b", "c")
    graph.route("a", "b")
    graph.choose("a", lambda state: "c", to=["c"])
    graph.choose("a", lambda state: END, to=[END])
    assert only_fault(graph).startswith("node 'a' must have one route, choice or fork, got 3")


def test_a_node_that_only_staleness_leads_to_is_reached() -> None:
    graph = Graph("test", dict)
    graph.node(name="a", max_pause=1, on_stale=escalate("b"))(nothing)
    graph.node(name="b")(nothing)
    graph.check()


@pytest.mark.parametrize(("pausable", "stops"), [("yes", True), ("blocking", True), ("no", False)])
def test_a_run_can_stop_somewhere_in_every_loop(pausable: Any, stops: bool) -> None:
    graph = Graph("test", dict)
    graph.node(name="a")(nothing)
    graph.node(name="b", pausable="no")(nothing)
    graph.node(name="c", pausable=pausable)(nothing)
    graph.route("a", "b", "c", "b")
    if stops:
        graph.check()
    else:
        assert only_fault(graph).startswith("the loop of 'b', 'c' has no node")


def test_a_node_that_leads_to_itself_is_a_loop() -> None:
    graph = Graph("test", dict)
    graph.node(name="a", pausable="no")(nothing)
    graph.choose("a", lambda state: "a" if state else END)
    assert only_fault(graph).startswith("the loop of 'a'")


@pytest.mark.parametrize(
    "state_type", [int, "dict", None, dict[int, str], list, dict[str, complex]], ids=repr
)
def test_types_that_are_no_states(state_type: Any) -> None:
    graph = Graph("test", state_type)
    graph.node(nothing)
    assert "state" in only_fault(graph)


def test_the_package_exports_what_it_says() -> None:
    exported = holdfast.graph.__all__
    assert exported == sorted(exported)
    assert all(getattr(holdfast.graph, name).__doc__ for name in exported)


def test_the_end_is_one_and_says_so() -> None:
    assert repr(END) == str(END) == "END"
    assert copy.deepcopy(END) is END
    assert pickle.loads(pickle.dumps(END)) is END
