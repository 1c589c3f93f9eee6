"""What a graph decides for branches, outcome by outcome."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.errors import UnknownNode
from holdfast.graph import END, Graph, restart
from holdfast.graph.transitions import BRANCHES_MAX
from holdfast.model.decision import Outcome, Raised, Returned, WentStale
from holdfast.model.event import (
    AttemptFailed,
    BranchFailed,
    Event,
    Failed,
    Failure,
    Finished,
    Fork,
    NodeFinished,
    Rerouted,
    SignalTaken,
)
from holdfast.model.execution import Execution, nodes_summary
from holdfast.model.fold import folded
from holdfast.model.policy import Retry
from holdfast.model.program import RunNode

NOW_MS = 1_700_000_000_000
FAILURE = Failure("ValueError", "no")
GIVEN_UP = Raised(FAILURE)


def nothing(state: Any) -> Any: ...


def nested(*, outer: Any = "cancel", inner: Any = "cancel") -> Graph:
    """Return first → (left → [a, b] → inner_join), right → join."""
    graph = Graph("g", dict, reducers={"log": "append"})
    for name in ("first", "left", "a", "b", "inner_join", "right", "join"):
        graph.node(name=name, writes=["log"], retry=Retry(attempts=2, jitter=0.5))(nothing)
    graph.fork("first", ["left", "right"], join="join", on_failure=outer)
    graph.fork("left", ["a", "b"], join="inner_join", on_failure=inner)
    return graph.check()


def over_items(**options: Any) -> Graph:
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first", writes=["items"])(nothing)
    graph.node(name="read", writes=["log", "item"])(nothing)
    graph.node(name="join")(nothing)
    graph.each("first", "read", over="items", into="item", join="join", **options)
    return graph.check()


class Walk:
    """A run that is taken step by step."""

    def __init__(self, graph: Graph, input: Any = None) -> None:
        self.graph = graph
        self.execution = graph.start(input or {}, "seed")

    def step(self, branch: str = "", outcome: Outcome | None = None) -> Event:
        """Carry out an outcome in a branch; return the first event."""
        outcome = Returned({"log": [branch]}) if outcome is None else outcome
        decision = self.graph.step(self.execution, branch, outcome, NOW_MS)
        self.execution = folded(self.execution, decision.events)
        return decision.events[0]

    @property
    def stands(self) -> dict[str, str]:
        """The nodes to be run, by their branches."""
        return {effect.branch: effect.node for effect in self.graph.outstanding(self.execution)}


def test_a_fork_is_part_of_what_its_node_finished() -> None:
    walk = Walk(nested())
    assert walk.step("", Returned({})) == NodeFinished(
        NOW_MS, "first", 0, {}, "join", fork=Fork(("left", "right"))
    )
    assert walk.graph.outstanding(walk.execution) == (
        RunNode("left", 0, 0, "0.0"),
        RunNode("right", 0, 0, "0.1"),
    )
    assert nodes_summary(walk.execution) == "left, right"


def test_branches_of_branches_until_all_are_joined() -> None:
    walk = Walk(nested())
    walk.step()
    walk.step("0.0")
    assert walk.stands == {"0.1": "right", "0.0/0.0": "a", "0.0/0.1": "b"}
    assert list(walk.execution.strands_after("0.0")) == ["0.0/0.0", "0.0/0.1"]
    walk.step("0.0/0.1")
    assert list(walk.execution.strands_after("0.0/0.1")) == []
    assert walk.execution.visible_state("0.0/0.0") == {"log": ["", "0.0"]}
    walk.step("0.0/0.0")
    assert list(walk.execution.strands_after("0.0/0.0")) == ["0.0"]
    assert walk.stands == {"0.0": "inner_join", "0.1": "right"}
    assert walk.execution.visible_state("0.0") == {"log": ["", "0.0", "0.0/0.0", "0.0/0.1"]}
    assert walk.execution.visible_state("0.1") == {"log": [""]}
    last = walk.step("0.0")
    assert isinstance(last, NodeFinished)
    assert (last.to, last.visit, last.branch) == (None, 1, "0.0")
    walk.step("0.1")
    assert list(walk.execution.strands_after("0.1")) == [""]
    assert walk.stands == {"": "join"}
    assert walk.execution.state == {"log": ["", "0.0", "0.0/0.0", "0.0/0.1", "0.0", "0.1"]}
    assert walk.step() == NodeFinished(NOW_MS, "join", 1, {"log": [""]}, None, ops=APPENDS)
    assert walk.execution.ending == "finished"
    assert not walk.execution.branches


APPENDS = {"log": "append"}


def test_only_the_end_of_the_run_is_the_end_of_the_run() -> None:
    walk = Walk(nested())
    walk.step()
    decision = walk.graph.step(walk.execution, "0.1", Returned({}), NOW_MS)
    assert not any(isinstance(event, Finished) for event in decision.events)
    assert decision.checkpoint


@pytest.mark.parametrize("items", [[], [1], list("abc")])
def test_a_branch_for_each_item(items: list[Any]) -> None:
    walk = Walk(over_items(concurrency=7), {"items": [None]})
    finished = walk.step("", Returned({"items": items}))
    assert isinstance(finished, NodeFinished)
    assert finished.fork == Fork(("read",), "items", "item", len(items), concurrency=7)
    assert walk.stands == {f"0.{n}": "read" for n in range(len(items))} or walk.stands == {
        "": "join"
    }
    for number, item in enumerate(items):
        assert walk.execution.visible_state(f"0.{number}")["item"] == item
        assert walk.execution.max_concurrent_branches(f"0.{number}") == 7
        walk.step(f"0.{number}", Returned({"item": "changed", "log": [item]}))
    assert walk.stands == {"": "join"}
    assert walk.execution.state == {"items": items, **({"log": items} if items else {})}


def test_a_loop_over_a_fork_gives_new_names() -> None:
    graph = Graph("g", dict)
    for name in ("first", "left", "right", "join"):
        graph.node(name=name, writes=[])(nothing)
    graph.fork("first", ["left", "right"], join="join")
    graph.route("join", "first")
    walk = Walk(graph)
    names: list[str] = []
    for _ in range(3):
        walk.step("", Returned({}))
        names += walk.stands
        for branch in walk.stands:
            walk.step(branch, Returned({}))
        walk.step("", Returned({}))
    assert names == ["0.0", "0.1", "2.0", "2.1", "4.0", "4.1"]


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ({}, "got nothing"),
        ({"items": "abc"}, "got 'abc'"),
        ({"items": {}}, "got {}"),
        ({"items": None}, "got None"),
    ],
    ids=str,
)
def test_what_is_no_list_cannot_be_gone_over(over: Any, told: str) -> None:
    failed = Walk(over_items(), over).step("", Returned({}))
    assert isinstance(failed, Failed)
    assert failed.failure.type == "InvalidResult"
    assert "'items' must be a list" in failed.failure.message
    assert failed.failure.message.endswith(told)


def test_a_fork_has_so_many_branches_and_no_more() -> None:
    items = list(range(BRANCHES_MAX + 1))
    failed = Walk(over_items(), {"items": items}).step("", Returned({}))
    assert isinstance(failed, Failed)
    assert failed.failure.type == "InvalidResult"
    assert "10,001 branches; the maximum is 10,000" in failed.failure.message
    walk = Walk(over_items(), {"items": items[1:]})
    assert isinstance(walk.step("", Returned({})), NodeFinished)
    assert len(walk.stands) == BRANCHES_MAX


def test_a_branch_is_over_wherever_its_choice_says_so() -> None:
    for chosen in (END, "join"):
        graph = Graph("g", dict)
        for name in ("first", "left", "more", "right", "join"):
            graph.node(name=name, writes=[])(nothing)
        graph.fork("first", ["left", "right"], join="join")
        graph.choose("left", lambda state, chosen=chosen: chosen, to=["more", "join", END])
        walk = Walk(graph)
        walk.step("", Returned({}))
        finished = walk.step("0.0", Returned({}))
        assert isinstance(finished, NodeFinished)
        assert finished.to is None
        assert walk.stands == {"0.1": "right"}


def test_a_choice_in_a_branch_sees_the_state_of_the_branch() -> None:
    graph = Graph("g", dict, reducers={"log": "append"})
    for name in ("first", "left", "more", "right", "join"):
        graph.node(name=name, writes=["log"])(nothing)
    graph.fork("first", ["left", "right"], join="join")
    graph.choose(
        "left", lambda state: "more" if state["log"] == ["x", "y"] else END, to=["more", END]
    )
    walk = Walk(graph, {"log": ["x"]})
    walk.step("", Returned({}))
    walk.step("0.1", Returned({"log": ["of another"]}))
    walk.step("0.0", Returned({"log": ["y"]}))
    assert walk.stands == {"0.0": "more"}


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("cancel", "cancel", Failed(NOW_MS, FAILURE, "a", "0.0/0.0")),
        ("spare", "cancel", BranchFailed(NOW_MS, "0.0", "a", FAILURE)),
        ("cancel", "spare", BranchFailed(NOW_MS, "0.0/0.0", "a", FAILURE)),
        ("spare", "spare", BranchFailed(NOW_MS, "0.0/0.0", "a", FAILURE)),
    ],
)
def test_who_fails_with_a_branch(outer: str, inner: str, expected: Event) -> None:
    walk = Walk(nested(outer=outer, inner=inner))
    walk.step()
    walk.step("0.0")
    assert walk.step("0.0/0.0", GIVEN_UP) == expected
    if isinstance(expected, Failed):
        assert walk.execution.ending == "failed"
        assert walk.stands == {}
        return
    if expected.branch == "0.0":
        assert walk.stands == {"0.1": "right"}
        walk.step("0.1")
        assert walk.execution.state["log"] == ["", "0.1"]
        assert walk.execution.failures == (expected,)
        return
    assert walk.stands == {"0.0/0.1": "b", "0.1": "right"}
    walk.step("0.0/0.1")
    strand = walk.execution.strand("0.0")
    assert strand is not None
    assert strand.failures == (expected,)
    walk.step("0.0")
    walk.step("0.1")
    assert walk.execution.failures == ()
    assert walk.execution.state["log"] == ["", "0.0", "0.0/0.1", "0.0", "0.1"]


def test_failures_are_those_of_the_join_and_gone_after_it() -> None:
    graph = over_items(on_failure="spare")
    walk = Walk(graph, {"items": [1, 2, 3]})
    walk.step("", Returned({}))
    walk.step("0.2", GIVEN_UP)
    walk.step("0.0", GIVEN_UP)
    walk.step("0.1")
    assert [failed.branch for failed in walk.execution.failures] == ["0.0", "0.2"]
    walk.step("", Returned({}))
    assert walk.execution.failures == ()


def test_attempts_are_counted_by_branch_and_their_pauses_drawn_by_it() -> None:
    walk = Walk(nested())
    walk.step()
    walk.step("0.0")
    pauses = {
        branch: walk.step(branch, Raised(FAILURE, Exception()))
        for branch in ("0.1", "0.0/0.0", "0.0/0.1")
    }
    assert all(isinstance(event, AttemptFailed) for event in pauses.values())
    assert (
        len({event.retry_at_ms for event in pauses.values() if isinstance(event, AttemptFailed)})
        == 3
    )
    strand = walk.execution.strand("0.0/0.1")
    assert strand is not None
    assert (strand.failed_attempts, walk.execution.failed_attempts) == (1, 0)
    assert isinstance(walk.step("0.1", Raised(FAILURE, Exception())), Failed)


def test_a_stale_branch_goes_where_its_rule_says_and_leaves_the_others() -> None:
    graph = Graph("g", dict, reducers={"log": "append"})
    graph.node(name="first")(nothing)
    graph.node(name="ask", writes=["log"], max_pause=5, on_stale=restart("early"))(nothing)
    for name in ("early", "right"):
        graph.node(name=name, writes=["log"])(nothing)
    graph.node(name="join")(nothing)
    graph.fork("first", ["early", "right"], join="join")
    graph.route("early", "ask")
    walk = Walk(graph)
    walk.step("", Returned({}))
    walk.step("0.0")
    assert walk.step("0.0", WentStale()) == Rerouted(NOW_MS, "early", "stale", branch="0.0")
    assert walk.stands == {"0.0": "early", "0.1": "right"}
    strand = walk.execution.strand("0.0")
    assert strand is not None
    assert strand.visit == 2
    assert walk.execution.visible_state("0.0") == {"log": ["0.0"]}


def test_a_branch_that_is_not_there_is_no_branch() -> None:
    walk = Walk(nested())
    for use in (
        lambda: walk.step("0.0"),
        lambda: walk.graph.effect(walk.execution, "0.0"),
    ):
        with pytest.raises(UnknownNode, match=r"no branch '0\.0'"):
            use()


# --- retries --------------------------------------------------------------------------------------


def failed_inside() -> Walk:
    """Return a run that failed in a while b had waited, and right was over."""
    walk = Walk(nested())
    walk.step()
    walk.step("0.0")
    walk.step("0.1")
    taken = SignalTaken(NOW_MS, "b", 0, "go#1", "go", "s1", None, "0.0/0.1")
    walk.execution = folded(walk.execution, [taken])
    walk.step("0.0/0.0", Raised(FAILURE, Exception()))
    assert isinstance(walk.step("0.0/0.0", GIVEN_UP), Failed)
    return walk


def retried(walk: Walk, node: str | None) -> tuple[Event, ...]:
    events = walk.graph.retried(walk.execution, node, "request", NOW_MS)
    walk.execution = folded(walk.execution, events)
    assert walk.execution.retried == "request"
    return events


def test_a_retry_goes_on_in_all_branches_where_they_were() -> None:
    walk = failed_inside()
    assert retried(walk, None) == (Rerouted(NOW_MS, None, "retried", "request"),)
    assert walk.stands == {"0.0/0.0": "a", "0.0/0.1": "b"}
    strand, waited = walk.execution.strand("0.0/0.0"), walk.execution.strand("0.0/0.1")
    assert strand is not None
    assert waited is not None
    assert (strand.failed_attempts, strand.visit, strand.failure) == (0, 0, None)
    assert "go#1" in waited.answers


def test_a_retry_from_outside_gives_the_branches_up() -> None:
    walk = failed_inside()
    assert retried(walk, "first") == (Rerouted(NOW_MS, "first", "retried", "request"),)
    assert walk.stands == {"": "first"}
    assert walk.execution.state == {"log": [""]}
    walk.step()
    assert walk.stands == {"2.0": "left", "2.1": "right"}


def test_a_retry_from_inside_sends_the_branches_back_that_are_there() -> None:
    walk = failed_inside()
    retried(walk, "b")
    assert walk.stands == {"0.0/0.0": "a", "0.0/0.1": "b"}
    strand = walk.execution.strand("0.0/0.1")
    assert strand is not None
    assert (strand.visit, strand.answers) == (1, {})
    walk = failed_inside()
    retried(walk, "left")  # whose own branches are given up with it
    assert walk.stands == {"0.0": "left"}
    walk.step("0.0")
    assert walk.stands == {"0.0/2.0": "a", "0.0/2.1": "b"}


def test_a_retry_from_a_branch_that_is_over_fails() -> None:
    walk = failed_inside()
    events = retried(walk, "right")
    assert walk.execution.ending == "failed"
    assert isinstance(events[-1], Failed)
    assert events[-1].failure == Failure(
        "NotRetryable",
        "the run cannot continue at 'right': no open branch has this node",
    )


def test_a_retry_from_a_node_over_items_sends_all_back_that_are_not_over() -> None:
    walk = Walk(over_items(), {"items": [1, 2, 3]})
    walk.step("", Returned({}))
    walk.step("0.1")
    walk.step("0.0", GIVEN_UP)
    retried(walk, "read")
    assert walk.stands == {"0.0": "read", "0.2": "read"}
    assert {effect.visit for effect in walk.graph.outstanding(walk.execution)} == {1}


def test_where_a_run_stands_is_told_shortly() -> None:
    walk = Walk(over_items(), {"items": list(range(12))})
    assert nodes_summary(walk.execution) == "first"
    walk.step("", Returned({}))
    walk.step("0.3")
    assert nodes_summary(walk.execution) == "read x11"
    many = {f"0.{n}": f"node{n}" for n in range(100)}
    execution = Execution(seed="s", state={}, node="n", fork=Fork(tuple(many.values())))
    branch = walk.execution.branches["0.0"]
    branches = {path: msgspec.structs.replace(branch, node=node) for path, node in many.items()}
    execution = msgspec.structs.replace(execution, branches=branches)
    assert len(nodes_summary(execution)) == 200
    assert nodes_summary(execution).endswith("…")
