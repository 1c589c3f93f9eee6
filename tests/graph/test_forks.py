"""Forks: what is wrong with them is known when the graph is built."""

from __future__ import annotations

from typing import Any, Optional, TypedDict

import pytest

from holdfast.errors import InvalidGraph, InvalidResult
from holdfast.graph import END, Graph, escalate, restart
from holdfast.model.decision import Returned
from holdfast.model.execution import Execution
from holdfast.model.fold import folded


class Doc(TypedDict, total=False):
    text: str
    pages: list[str]
    page: str
    notes: list[str]
    score: int
    best: int


class Notes(TypedDict, total=False):
    notes: list[str]


class Score(TypedDict):
    score: int


def nothing(state: Any) -> None: ...


def unknown(state: Any) -> Any: ...


def graph_of(*names: str, kind: Any = Doc, **options: Any) -> Graph:
    """Return a graph with nodes that write nothing."""
    graph = Graph("g", kind, **options)
    for name in names:
        graph.node(name=name)(nothing)
    return graph


def diamond(**writes: Any) -> Graph:
    """Return first → left, right → join, where left and right may write something."""
    graph = graph_of("first")
    for name in ("left", "right"):
        graph.node(name=name, writes=writes.get(name, []))(unknown)
    graph.node(name="join")(nothing)
    graph.fork("first", ["left", "right"], join="join")
    return graph


def faults(graph: Graph) -> list[str]:
    with pytest.raises(InvalidGraph) as caught:
        graph.check()
    assert all(fault in str(caught.value) for fault in caught.value.faults)
    return list(caught.value.faults)


def fault(graph: Graph) -> str:
    (only,) = faults(graph)
    return only


# --- what is no fork ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"branches": ["left"]}, "at least two branches"),
        ({"branches": []}, "at least two branches"),
        ({"join": END}, "END cannot be"),
        ({"branches": ["left", END]}, "END cannot be"),
        ({"node": END}, "END cannot be"),
        ({"branches": ["left", 5]}, "its function or its name"),
        ({"join": None}, "its function or its name"),
        ({"on_failure": "ignore"}, "'cancel' or 'spare'"),
    ],
    ids=str,
)
def test_what_is_no_fork_is_refused_at_once(changes: Any, reason: str) -> None:
    said = {"node": "first", "branches": ["left", "right"], "join": "join", **changes}
    with pytest.raises(InvalidGraph, match=reason):
        graph_of("first").fork(**said)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"over": ""}, "over and into"),
        ({"into": 5}, "over and into"),
        ({"branch": END}, "END cannot be"),
        ({"on_failure": None}, "'cancel' or 'spare'"),
        *(({"concurrency": n}, "an integer from 1, got") for n in (0, -1, 1.5, True, "2")),
    ],
    ids=str,
)
def test_what_is_no_fork_over_items_is_refused_at_once(changes: Any, reason: str) -> None:
    said = {"node": "first", "branch": "left", "over": "pages", "into": "page", "join": "join"}
    with pytest.raises(InvalidGraph, match=reason):
        graph_of("first").each(**{**said, **changes})


def test_a_fork_of_unknown_nodes() -> None:
    graph = graph_of("first")
    graph.fork("first", ["left", "right"], join="join")
    assert faults(graph) == [
        f"the fork at 'first' leads to {name!r}, but the graph has no such node"
        for name in ("left", "right", "join")
    ]
    graph = graph_of("first", "left", "right", "join")
    graph.fork("gone", ["left", "right"], join="join")
    assert "a fork starts at 'gone', but the graph has no such node" in faults(graph)


def test_a_node_has_one_way_out() -> None:
    graph = diamond()
    graph.route("first", "join")
    assert any(
        "'first' must have one route, choice or fork, got 2" in fault for fault in faults(graph)
    )


def test_branches_begin_with_nodes_of_their_own() -> None:
    graph = graph_of("first", "left", "join")
    graph.fork("first", ["left", "left"], join="join")
    assert "two branches of the fork after 'first' start with the same node" in faults(graph)


def test_a_branch_does_not_begin_with_the_join() -> None:
    graph = graph_of("first", "left", "join")
    graph.fork("first", ["left", "join"], join="join")
    assert fault(graph) == "a branch of the fork after 'first' starts with the join 'join'"
    graph = graph_of("first", "join")
    graph.each("first", "join", over="pages", into="page", join="join")
    assert fault(graph) == "a branch of the fork after 'first' starts with the join 'join'"


def test_a_fork_inside_a_branch_has_a_join_of_its_own() -> None:
    graph = graph_of("first", "left", "right", "a", "b", "join")
    graph.fork("first", ["left", "right"], join="join")
    graph.fork("left", ["a", "b"], join="join")
    assert fault(graph) == (
        "the fork after 'left' is inside a branch that ends at 'join': give the inner fork another "
        "join, inside of that branch"
    )


# --- regions --------------------------------------------------------------------------------------


def test_a_node_is_in_one_branch() -> None:
    graph = graph_of("first", "left", "right", "both", "join")
    graph.fork("first", ["left", "right"], join="join")
    graph.route("left", "both")
    graph.route("right", "both")
    assert fault(graph).startswith("node 'both' must belong to one branch or to none")


@pytest.mark.parametrize("way", ["route", "choice", "stale"])
def test_a_branch_does_not_lead_out_but_to_the_join(way: str) -> None:
    graph = graph_of("first", "right", "join", "after")
    if way == "stale":
        graph.node(name="left", max_pause=5, on_stale=restart("first"))(nothing)
    else:
        graph.node(name="left")(nothing)
    graph.fork("first", ["left", "right"], join="join")
    graph.route("join", "after")
    if way == "route":
        graph.route("left", "after")
    if way == "choice":
        graph.choose("left", lambda state: "after", to=["after", "join"])
    assert any("must belong to one branch or to none" in f for f in faults(graph))


def test_nothing_leads_into_a_branch_from_outside() -> None:
    graph = graph_of("first", "left", "right", "join")
    graph.fork("first", ["left", "right"], join="join")
    graph.choose("join", lambda state: "left", to=["left", END])
    assert "'left' must belong to one branch or to none" in fault(graph)


def test_a_loop_from_the_join_to_before_the_fork_is_fine() -> None:
    graph = graph_of("first", "left", "right", "join")
    graph.fork("first", ["left", "right"], join="join")
    graph.choose("join", lambda state: "first", to=["first", END])
    graph.check()


def test_a_loop_inside_a_branch_is_fine_if_a_run_can_stop_in_it() -> None:
    graph = graph_of("first", "right", "join")
    for name in ("left", "again"):
        graph.node(name=name, pausable="no")(nothing)
    graph.fork("first", ["left", "right"], join="join")
    graph.route("left", "again")
    graph.choose("again", lambda state: "left", to=["left", "join"])
    assert "has no node at which a run can pause" in fault(graph)


def test_the_loop_of_a_fork_needs_a_node_in_which_a_run_can_stop() -> None:
    graph = Graph("g", Doc)
    for name in ("first", "left", "right", "join"):
        graph.node(name=name, pausable="no")(nothing)
    graph.fork("first", ["left", "right"], join="join")
    graph.route("join", "first")
    assert "has no node at which a run can pause" in fault(graph)


def test_it_is_enough_that_a_run_can_stop_in_one_of_the_branches() -> None:
    def made(pausable: Any, way: str) -> Graph:
        graph = Graph("g", Doc)
        for name in ("first", "left", "join"):
            graph.node(name=name, pausable="no")(nothing)
        graph.node(name="right", pausable=pausable)(nothing)
        if way == "fork":
            graph.fork("first", ["left", "right"], join="join")
        else:
            graph.route("first", "left")
            graph.each("left", "right", over="pages", into="page", join="join")
        graph.choose("join", lambda state: "first", to=["first", END])
        return graph

    made("yes", "fork").check()
    made("blocking", "fork").check()
    assert "has no node at which a run can pause" in fault(made("no", "fork"))
    # There may be no item, and then no branch.
    assert "has no node at which a run can pause" in fault(made("yes", "each"))


def test_a_loop_around_a_graph_inside_is_as_good_as_the_nodes_of_that() -> None:
    def made(pausable: Any) -> Graph:
        inner = Graph("inner", Doc)
        inner.node(name="a", pausable="no")(nothing)
        inner.node(name="b", pausable=pausable)(nothing)
        inner.choose("a", lambda state: "b", to=["b"])
        graph = Graph("g", Doc)
        graph.include(inner)
        graph.choose("inner", lambda state: "inner", to=["inner", END])
        return graph

    made("yes").check()
    assert "the loop of 'inner', 'inner:end' has no node" in fault(made("no"))


@pytest.mark.parametrize("rule", [restart("join"), escalate("join")], ids=str)
def test_what_went_stale_does_not_lead_to_the_join(rule: Any) -> None:
    graph = graph_of("first", "right", "join")
    graph.node(name="left", max_pause=5, on_stale=rule)(nothing)
    graph.fork("first", ["left", "right"], join="join")
    assert fault(graph) == (
        "on_stale of node 'left' must name a node inside of its branch, got the join 'join'"
    )


def test_what_went_stale_may_lead_to_another_node_of_the_branch() -> None:
    graph = graph_of("first", "right", "join", "other")
    graph.node(name="left", max_pause=5, on_stale=escalate("other"))(nothing)
    graph.fork("first", ["left", "right"], join="join")
    graph.check()


def test_a_branch_may_end_by_a_choice_a_route_the_end_or_nowhere() -> None:
    graph = graph_of("first", "a", "b", "c", "d", "join")
    graph.fork("first", ["a", "b", "c", "d"], join="join")
    graph.choose("a", lambda state: END, to=[END, "join"])
    graph.route("b", "join")
    graph.route("c", END)
    graph.check()


@pytest.mark.parametrize(("over", "into", "name"), [("gone", "page", "gone"), ("pages", "x", "x")])
def test_items_come_from_a_field_and_go_into_one(over: str, into: str, name: str) -> None:
    graph = graph_of("first", "left", "join")
    graph.each("first", "left", over=over, into=into, join="join")
    assert fault(graph) == f"the fork after 'first' names {name!r}, but the state has no such field"


# --- writers --------------------------------------------------------------------------------------


def test_two_branches_do_not_write_one_field() -> None:
    assert fault(diamond(left=["notes", "score"], right=["text", "score"])) == (
        "after 'first', 'left' and 'right' may write field 'score' at the same time: give it a "
        "reducer, or declare what the nodes write with writes=[...]"
    )
    diamond(left=["notes"], right=["score"]).check()


def test_they_do_if_it_has_a_reducer() -> None:
    graph = Graph("g", Doc, reducers={"notes": "append", "score": "last"})
    graph.node(name="first")(nothing)
    for name in ("left", "right"):
        graph.node(name=name, writes=["notes", "score"])(unknown)
    graph.node(name="join")(nothing)
    graph.fork("first", ["left", "right"], join="join")
    assert graph.check().reducers == {"notes": "append", "score": "last"}


def test_a_node_that_does_not_say_what_it_writes_may_write_anything() -> None:
    graph = graph_of("first", "join")
    graph.node(name="left")(unknown)
    graph.node(name="right", writes=["score"])(unknown)
    graph.fork("first", ["left", "right"], join="join")
    assert "'left' and 'right' may write field 'score'" in fault(graph)


def test_a_second_node_of_a_branch_counts() -> None:
    graph = diamond(left=["notes"])
    graph.node(name="more", writes=["notes"])(unknown)
    graph.route("right", "more", "join")
    assert "'left' and 'right' may write field 'notes'" in fault(graph)


def test_a_result_that_may_be_none_names_its_fields_too() -> None:
    def either(state: Any) -> Score | None: ...

    def optional(state: Any) -> Optional[Score]: ...  # noqa: UP045

    def whole_or_part(state: Any) -> Doc | Score | None: ...

    graph = Graph("g", Doc)
    for function in (either, optional, whole_or_part):
        graph.node(function)
    written = [graph.nodes[name].writes for name in ("either", "optional", "whole_or_part")]
    assert written == [{"score"}, {"score"}, None]


def test_each_branch_over_items_writes_what_the_others_do() -> None:
    def made(**options: Any) -> Graph:
        graph = Graph("g", Doc, **options)
        graph.node(name="first")(nothing)
        graph.node(name="read", writes=["page", "score"])(unknown)  # its item is its own
        graph.node(name="join")(nothing)
        graph.each("first", "read", over="pages", into="page", join="join")
        return graph

    assert fault(made()) == (
        "after 'first', every branch may write field 'score' at the same time: give it a "
        "reducer, or declare what the nodes write with writes=[...]"
    )
    made(reducers={"score": "max"}).check()


def test_what_is_written_inside_an_inner_fork_is_written_by_the_outer_branch() -> None:
    graph = graph_of("first", "left", "inner_join", "join")
    graph.node(name="right", writes=["notes"])(unknown)
    graph.node(name="a", writes=["notes"])(unknown)
    graph.node(name="b", writes=["score"])(unknown)
    graph.fork("first", ["left", "right"], join="join")
    graph.fork("left", ["a", "b"], join="inner_join")
    assert "'left' and 'right' may write field 'notes'" in fault(graph)


def test_what_a_dict_holds_is_not_known() -> None:
    graph = graph_of("first", "right", "join", kind=dict)
    graph.node(name="left")(unknown)
    graph.fork("first", ["left", "right"], join="join")
    assert fault(graph) == (
        "node 'left' runs in parallel with others, but the fields that it writes are not known: "
        "declare them with writes=[...]"
    )
    graph = graph_of("first", "left", "right", "end", "join", kind=dict)
    graph.node(name="a")(unknown)
    graph.fork("first", ["left", "right"], join="join")
    graph.fork("left", ["a", "b"], join="end")
    graph.node(name="b", writes=[])(unknown)
    assert any("node 'a' runs in parallel with others" in fault for fault in faults(graph))


def test_what_a_graph_inside_gives_is_what_it_writes() -> None:
    inner = Graph("inner", Doc, reducers={"notes": "append"})
    inner.node(name="only")(unknown)

    def made(gives: dict[str, str]) -> Graph:
        graph = Graph("g", Doc, reducers={"notes": "append"})
        graph.node(name="first")(nothing)
        graph.include(inner, gives=gives)
        graph.node(name="right", writes=["score", "notes"])(unknown)
        graph.node(name="join")(nothing)
        graph.fork("first", ["inner", "right"], join="join")
        return graph

    assert "'inner' and 'right' may write field 'score'" in fault(made({"score": "best"}))
    made({"best": "score", "notes": "notes"}).check()


def test_forks_inside_a_graph_inside_are_checked_with_its_own_state() -> None:
    inner = graph_of("split", "end", kind=Doc)
    inner.node(name="a", writes=["score"])(unknown)
    inner.node(name="b", writes=["score"])(unknown)
    inner.fork("split", ["a", "b"], join="end")
    graph = Graph("g", Doc, reducers={"score": "add"})
    graph.include(inner, name="part")
    found = faults(graph)
    assert len(found) == 1
    assert found[0].startswith("in 'part': ")
    assert "may write field 'score'" in found[0]


def test_reducers_are_known_names_for_known_fields() -> None:
    graph: Any = Graph("g", Doc, reducers={"notes": "concat", "gone": "add"})  # type: ignore[dict-item]
    graph.node(name="only")(nothing)
    assert faults(graph) == [
        "the reducer of 'notes' must be one of append, add, merge, union, max, min, last, "
        "got 'concat'",
        "reducers names 'gone', but the state has no such field",
    ]


# --- what a node writes ---------------------------------------------------------------------------


def some_notes(state: Any) -> Notes:
    return {"notes": ["a"]}


def some_score(state: Any) -> Score:
    return {"score": 1}


def whole(state: Any) -> Doc:
    return {}


def unresolved(state: Any) -> Gone:  # type: ignore[name-defined]  # noqa: F821
    ...


def test_what_a_node_writes_is_declared_or_told_by_what_it_returns() -> None:
    graph = Graph("g", Doc)
    graph.node(some_notes)
    graph.node(some_score)
    graph.node(whole)
    graph.node(unknown)
    graph.node(unresolved)
    graph.node(name="none")(nothing)
    graph.node(name="declared", writes=("text",))(some_score)
    assert {name: node.writes for name, node in graph.nodes.items()} == {
        "some_notes": {"notes"},
        "some_score": {"score"},
        "whole": None,
        "unknown": None,
        "unresolved": None,
        "none": frozenset(),
        "declared": {"text"},
    }
    assert [name for name, node in graph.nodes.items() if node.writes_declared] == ["declared"]


@pytest.mark.parametrize("writes", ["notes", [5]])
def test_writes_are_a_list_of_names(writes: Any) -> None:
    with pytest.raises(InvalidGraph, match="writes must be a list of field names"):
        Graph("g", Doc).node(name="only", writes=writes)(nothing)


def test_annotated_nodes_get_along_without_a_word() -> None:
    graph = graph_of("first", "join")
    graph.node(some_notes)
    graph.node(some_score)
    graph.fork("first", [some_notes, some_score], join="join")
    execution = entered(graph.check(), {})
    assert graph.delta(execution, "0.0", {"notes": ["a"]}) == {"notes": ["a"]}
    with pytest.raises(InvalidResult, match="'some_score' changed 'notes', which its `writes`"):
        graph.delta(execution, "0.1", {"notes": ["a"]})


def test_what_is_derived_binds_only_beside_others_and_what_is_declared_always() -> None:
    graph = Graph("g", Doc)
    graph.node(some_notes)
    graph.node(name="bound", writes=["notes"])(unknown)
    graph.route(some_notes, "bound")
    execution = graph.start({}, "seed")
    assert graph.delta(execution, "", {"score": 1}) == {"score": 1}
    execution = folded(execution, graph.step(execution, "", Returned({}), 0).events)
    with pytest.raises(InvalidResult, match="'bound' changed 'score', which its `writes`"):
        graph.delta(execution, "", {"score": 1, "notes": []})
    # What stays as it was is not written.
    execution = Execution(seed="s", state={"score": 1}, node="bound")
    assert graph.delta(execution, "", {"score": 1, "notes": []}) == {"notes": []}


def entered(graph: Graph, input: Any) -> Execution:
    """Return the execution after the first node."""
    execution = graph.start(input, "seed")
    return folded(execution, graph.step(execution, "", Returned({}), 0).events)


# --- graphs in graphs -----------------------------------------------------------------------------


def inner_graph(kind: Any = Doc, **options: Any) -> Graph:
    graph = Graph("inner", kind, **options)
    graph.node(name="only")(unknown)
    return graph


def test_a_graph_inside_shares_the_fields_of_the_same_name() -> None:
    graph = Graph("g", Doc)
    assert graph.include(inner_graph(Notes)) == "inner"
    execution = entered(graph.check(), {"text": "t", "notes": ["n"]})
    assert set(graph.nodes) == {"inner", "inner:end", "inner/only"}
    assert [effect.node for effect in graph.outstanding(execution)] == ["inner/only"]
    assert graph.enter(execution, "0.0") == {"notes": ["n"]}
    done = folded(execution, graph.step(execution, "0.0", Returned({"notes": ["m"]}), 0).events)
    assert (done.node, done.state) == ("inner:end", {"text": "t", "notes": ["m"]})


def test_a_graph_inside_takes_and_gives_what_it_is_told() -> None:
    graph = Graph("g", Doc)
    graph.include(inner_graph(), name="part", takes={"text": "page"}, gives={"best": "score"})
    execution = entered(graph.check(), {"text": "t", "page": "p", "score": 1})
    assert graph.enter(execution, "0.0") == {"text": "p"}
    finished = Returned({"score": 5, "text": "changed"})
    done = folded(execution, graph.step(execution, "0.0", finished, 0).events)
    assert done.state == {"text": "t", "page": "p", "score": 1, "best": 5}


def test_what_is_not_there_is_not_copied() -> None:
    graph = Graph("g", Doc)
    graph.include(inner_graph(), takes={"text": "page"}, gives={"best": "score"})
    execution = entered(graph.check(), {})
    assert graph.enter(execution, "0.0") == {}
    done = folded(execution, graph.step(execution, "0.0", Returned({}), 0).events)
    assert done.state == {}


@pytest.mark.parametrize(
    ("options", "whose"),
    [
        ({"takes": {"gone": "text"}}, "the included graph"),
        ({"takes": {"text": "gone"}}, "this graph"),
        ({"gives": {"gone": "text"}}, "this graph"),
        ({"gives": {"text": "gone"}}, "the included graph"),
    ],
)
def test_what_is_taken_and_given_are_fields(options: Any, whose: str) -> None:
    graph = Graph("g", Doc)
    graph.include(inner_graph(), **options)
    assert fault(graph) == (
        f"takes or gives of 'inner' names 'gone', but the state of {whose} has no such field"
    )


@pytest.mark.parametrize(("ours", "its"), [("append", None), (None, "append"), ("append", "union")])
def test_what_is_given_has_the_same_reducer_on_both_sides(ours: Any, its: Any) -> None:
    inner = inner_graph(reducers={"notes": its} if its else None)
    graph = Graph("g", Doc, reducers={"notes": ours} if ours else None)
    graph.include(inner, gives={"notes": "notes"})
    assert fault(graph) == (
        "'inner' gives 'notes' to 'notes', but the two fields have different reducers"
    )


def test_contributions_of_a_graph_inside_are_given_on_as_such() -> None:
    inner = inner_graph(reducers={"notes": "append"})
    graph = Graph("g", Doc, reducers={"notes": "append"})
    graph.include(inner)
    execution = entered(graph.check(), {"notes": ["a"]})
    assert graph.enter(execution, "0.0") == {"notes": ["a"]}
    delta = graph.delta(execution, "0.0", {"notes": ["b"]})
    done = folded(execution, graph.step(execution, "0.0", Returned(delta), 0).events)
    assert done.state == {"notes": ["a", "b"]}


def test_a_graph_does_not_include_itself() -> None:
    graph, middle, inner = (Graph(name, Doc) for name in ("a", "b", "c"))
    graph.include(middle)
    middle.include(inner)
    for outer, part in ((graph, graph), (inner, graph), (inner, middle), (middle, middle)):
        with pytest.raises(InvalidGraph, match="must not include itself"):
            outer.include(part)


@pytest.mark.parametrize("what", [None, "inner", nothing])
def test_only_a_graph_is_included(what: Any) -> None:
    with pytest.raises(InvalidGraph, match="include needs a Graph"):
        Graph("g", Doc).include(what)


def test_the_name_of_a_graph_inside_is_free() -> None:
    graph = graph_of("inner")
    graph.include(inner_graph())
    assert fault(graph) == "two nodes have the name 'inner'"


def test_a_graph_may_be_inside_twice_and_inside_one_that_is_inside() -> None:
    deepest = inner_graph()
    middle = Graph("middle", Doc)
    middle.include(deepest, name="x")
    middle.include(deepest, name="y")
    middle.route("x", "y")
    graph = Graph("g", Doc)
    graph.include(middle, name="m")
    graph.node(name="last")(nothing)
    graph.route("m", "last")
    execution = graph.start({"score": 0}, "seed")
    walked: list[tuple[str, str]] = []
    while effects := graph.outstanding(execution):
        (effect,) = effects
        walked.append((effect.branch, effect.node))
        score = execution.visible_state(effect.branch)["score"]
        delta = {"score": score + 1} if effect.node.endswith("only") else {}
        decision = graph.step(execution, effect.branch, Returned(delta), 0)
        execution = folded(execution, decision.events)
    assert walked == [
        ("", "m"),
        ("0.0", "m/x"),
        ("0.0/0.0", "m/x/only"),
        ("0.0", "m/x:end"),
        ("0.0", "m/y"),
        ("0.0/2.0", "m/y/only"),
        ("0.0", "m/y:end"),
        ("", "m:end"),
        ("", "last"),
    ]
    assert execution.state == {"score": 2}


def test_choices_inside_a_graph_inside_name_its_own_nodes() -> None:
    inner = Graph("inner", Doc)

    @inner.node
    def ask(state: Any) -> Any: ...

    @inner.node
    def more(state: Any) -> Any: ...

    inner.choose(ask, lambda state: more if state["score"] > 1 else END)
    inner.choose(more, lambda state: "ask", to=["ask", END])
    graph = Graph("g", Doc)
    graph.node(ask)  # the same function is another node here
    graph.include(inner)
    graph.route(ask, "inner")
    execution = graph.start({"score": 2}, "seed")
    walked: list[str] = []
    for _ in range(5):
        (effect,) = graph.outstanding(execution)
        walked.append(effect.node)
        decision = graph.step(execution, effect.branch, Returned({}), 0)
        execution = folded(execution, decision.events)
    assert walked == ["ask", "inner", "inner/ask", "inner/more", "inner/ask"]


def test_staleness_inside_a_graph_inside_leads_to_its_own_nodes() -> None:
    inner = Graph("inner", Doc)
    inner.node(name="first")(nothing)
    inner.node(name="asks", max_pause=5, on_stale=restart("first"))(nothing)
    inner.route("first", "asks")
    graph = Graph("g", Doc)
    graph.include(inner)
    rule = graph.check().nodes["inner/asks"].on_stale
    assert rule is not None
    assert rule.node == "inner/first"


def test_a_graph_in_use_does_not_change_nor_do_those_inside_it() -> None:
    inner = inner_graph()
    graph = Graph("g", Doc)
    graph.include(inner)
    graph.node(name="last")(nothing)
    graph.route("inner", "last")
    graph.check()
    for frozen in (graph, inner):
        for change in (
            lambda g: g.fork("a", ["b", "c"], join="d"),
            lambda g: g.each("a", "b", over="pages", into="page", join="d"),
            lambda g: g.include(inner_graph(), name="again"),
            lambda g: g.node(name="late")(nothing),
        ):
            with pytest.raises(InvalidGraph, match="cannot be changed any more"):
                change(frozen)


# --- drawing --------------------------------------------------------------------------------------


def test_forks_are_drawn_thick() -> None:
    graph = diamond()
    graph.node(name="deep")(nothing)
    graph.choose("left", lambda state: "deep", to=["deep", END])
    assert graph.draw() == (
        "flowchart TD\n"
        "    start((start))\n"
        '    n0["first"]\n'
        '    n1["left"]\n'
        '    n2["right"]\n'
        '    n3["join"]\n'
        '    n4["deep"]\n'
        "    finish(((END)))\n"
        "    start --> n0\n"
        "    n0 ==> n1\n"
        "    n0 ==> n2\n"
        "    n1 -.-> n4\n"
        "    n1 -.-> n3\n"
        "    n2 ==> n3\n"
        "    n3 --> finish\n"
        "    n4 ==> n3\n"
    )


def test_a_branch_for_each_item_is_drawn_with_what_it_goes_over() -> None:
    graph = graph_of("first", "read", "join")
    graph.each("first", "read", over="pages", into="page", join="join")
    assert '    n0 ==>|"each of pages"| n1\n    n1 ==> n2\n' in graph.draw()


def test_a_graph_inside_is_drawn_with_its_nodes() -> None:
    graph = Graph("g", Doc)
    graph.include(inner_graph(), name="part")
    graph.node(name="last")(nothing)
    graph.route("part", "last")
    assert graph.draw() == (
        "flowchart TD\n"
        "    start((start))\n"
        '    n0["part<br/>not pausable"]\n'
        '    n1["last"]\n'
        '    n2["part:end<br/>not pausable"]\n'
        '    n3["part/only"]\n'
        "    finish(((END)))\n"
        "    start --> n0\n"
        "    n0 ==> n3\n"
        "    n1 --> finish\n"
        "    n2 --> n1\n"
        "    n3 ==> n2\n"
    )
