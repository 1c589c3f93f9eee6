"""What a graph decides, outcome by outcome."""

from __future__ import annotations

import datetime
from typing import Any, TypedDict

import msgspec
import pytest

from holdfast.errors import InvalidGraph, InvalidInput, InvalidResult, InvalidState, UnknownNode
from holdfast.graph import END, Graph, escalate, fail, restart
from holdfast.model.decision import Decision, Raised, Returned, WentStale
from holdfast.model.event import (
    AttemptFailed,
    Failed,
    Failure,
    Finished,
    NodeFinished,
    Rerouted,
    TimerFired,
)
from holdfast.model.execution import Execution
from holdfast.model.fold import folded
from holdfast.model.policy import Retry
from holdfast.model.program import Program, RunNode

NOW_MS = 1_700_000_000_000
FAILURE = Failure("ValueError", "no")
RETRY = Retry(attempts=3, backoff=10, jitter=0.5)


class Order(TypedDict, total=False):
    due: datetime.date
    paid: bool


def nothing(state: Any) -> None: ...


def order_graph() -> Graph:
    graph = Graph("order", Order, version=3)
    graph.node(name="first", retry=RETRY)(nothing)
    graph.node(name="quick", pausable="no")(nothing)
    graph.node(name="wait", pausable="blocking", max_pause=5, on_stale=restart("first"))(nothing)
    graph.node(name="last", max_pause=5, on_stale=escalate("help"))(nothing)
    graph.node(name="help", max_pause=5, on_stale=fail())(nothing)
    graph.route("first", "quick", "wait", "last")
    graph.route("help", END)
    return graph.check()


def at(node: str, **fields: Any) -> Execution:
    return Execution(**{"state": {}, "seed": "seed", "node": node, "visit": 7, **fields})


def choosing(chooser: Any, **options: Any) -> Graph:
    graph = Graph("choosing", Order)
    graph.node(name="first")(lambda state: None)
    graph.node(nothing)
    graph.choose("first", chooser, **options)
    return graph


def test_a_graph_is_a_program() -> None:
    program: Program = order_graph()
    assert (program.name, program.version) == ("order", 3)


def test_a_run_begins_at_the_start_with_its_input() -> None:
    execution = order_graph().start({"due": datetime.date(2026, 1, 2)}, "seed")
    assert execution == Execution(state={"due": "2026-01-02"}, seed="seed", node="first")
    with pytest.raises(InvalidInput, match="paid"):
        order_graph().start({"paid": "yes"}, "seed")


def test_what_is_outstanding() -> None:
    graph = order_graph()
    rules = {"pausable": "blocking", "max_pause_ms": 5000}
    assert graph.outstanding(at("first")) == (RunNode("first", 7, 0),)
    assert graph.outstanding(at("wait", retry_at_ms=5)) == (RunNode("wait", 7, 5, **rules),)
    assert graph.outstanding(at("wait", ending="failed")) == ()
    assert graph.outstanding(at("gone", ending="finished")) == ()
    with pytest.raises(UnknownNode, match="gone"):
        graph.outstanding(at("gone"))
    with pytest.raises(UnknownNode, match="gone"):
        graph.step(at("gone"), "", WentStale(), NOW_MS)


def test_the_first_use_checks_the_graph() -> None:
    graph = Graph("order", Order)
    for use in (
        lambda: graph.start({}, "seed"),
        lambda: graph.outstanding(at("first")),
        lambda: graph.step(at("first"), "", WentStale(), NOW_MS),
        lambda: graph.enter(at("first")),
        lambda: graph.delta(at("first"), "", None),
    ):
        with pytest.raises(InvalidGraph, match="the graph has no nodes"):
            use()


def test_entering_and_leaving_a_node() -> None:
    graph = order_graph()
    execution = at("first", state={"due": "2026-01-02"})
    assert graph.enter(execution) == {"due": datetime.date(2026, 1, 2)}
    assert graph.delta(execution, "", {"due": datetime.date(2026, 1, 2), "paid": True}) == {
        "paid": True
    }
    with pytest.raises(InvalidResult, match="due"):
        graph.delta(execution, "", {"due": "2026-01-02"})
    with pytest.raises(InvalidState, match="due"):
        graph.enter(at("first", state={"due": 5}))


@pytest.mark.parametrize(
    ("node", "to", "answered", "checkpoint"),
    [
        ("first", "quick", False, True),
        ("quick", "wait", False, False),
        ("quick", "wait", True, False),
        ("wait", "last", False, False),
        ("wait", "last", True, True),
    ],
)
def test_a_node_returned(node: str, to: str, answered: bool, checkpoint: bool) -> None:
    answers = {"0": TimerFired(NOW_MS, node, 7, "0")} if answered else {}
    decision = order_graph().step(
        at(node, answers=answers), "", Returned({"paid": True}, spent_ms=3), NOW_MS
    )
    event = NodeFinished(NOW_MS, node, 7, {"paid": True}, to, 3)
    assert decision == Decision((event,), checkpoint=checkpoint)


@pytest.mark.parametrize("pausable", ["yes", "no", "blocking"])
@pytest.mark.parametrize("leaf", [True, False])
def test_the_end_is_always_durable(pausable: Any, leaf: bool) -> None:
    graph = Graph("end", dict)
    graph.node(name="only", pausable=pausable)(nothing)
    if not leaf:
        graph.route("only", END)
    decision = graph.step(at("only"), "", Returned({}), NOW_MS)
    assert decision == Decision(
        (NodeFinished(NOW_MS, "only", 7, {}, None), Finished(NOW_MS)), checkpoint=True
    )


def test_a_choice_sees_the_state_after_the_node_as_its_type_has_it() -> None:
    seen: list[Any] = []

    def choose(state: Order) -> Any:
        seen.append(state)
        return nothing

    graph = choosing(choose)
    execution = at("first", state={"due": "2026-01-02", "paid": False})
    (event,) = graph.step(execution, "", Returned({"paid": True}), NOW_MS).events
    assert isinstance(event, NodeFinished)
    assert event.to == "nothing"
    assert seen == [{"due": datetime.date(2026, 1, 2), "paid": True}]
    assert execution.state == {"due": "2026-01-02", "paid": False}


@pytest.mark.parametrize(
    ("chosen", "to"),
    [(nothing, "nothing"), ("nothing", "nothing"), ("first", "first"), (END, None)],
    ids=["function", "name", "itself", "end"],
)
def test_a_choice_returns_a_node_or_its_name_or_the_end(chosen: Any, to: str | None) -> None:
    graph = choosing(lambda state: chosen, to=["first", nothing, END])
    event, *more = graph.step(at("first"), "", Returned({}), NOW_MS).events
    assert isinstance(event, NodeFinished)
    assert event.to == to
    assert more == ([Finished(NOW_MS)] if to is None else [])


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ("first", "must return one of its declared targets: nothing; got 'first'"),
        (END, "declared targets: nothing; got END"),
        ("gone", "must return a node or END, got 'gone'"),
        (None, "must return a node or END, got None"),
        ([], "must return a node or END, got []"),
        (len, "must return a node or END, got 'len'"),
    ],
    ids=str,
)
def test_a_choice_of_what_was_not_declared_fails_the_run(chosen: Any, reason: str) -> None:
    graph = choosing(lambda state: chosen, to=[nothing])
    decision = graph.step(at("first"), "", Returned({}), NOW_MS)
    (event,) = decision.events
    assert isinstance(event, Failed)
    assert (event.at_ms, event.node, event.failure.type) == (NOW_MS, "first", "InvalidResult")
    assert reason in event.failure.message
    assert decision.checkpoint


def test_what_was_only_derived_does_not_bind() -> None:
    names = ["first"]
    graph = choosing(lambda state: names[0] if names else nothing)
    (event,) = graph.step(at("first"), "", Returned({}), NOW_MS).events
    assert isinstance(event, NodeFinished)
    assert event.to == "first"


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I will not say")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (KeyError("paid"), "KeyError", "'paid'"),
        (ValueError("\ud800" + "x" * 10_000), "ValueError", "\\ud800" + "x" * 1994),
        (Rude(), f"{__name__}.Rude", "(the error cannot be shown)"),
    ],
    ids=["ordinary", "unspeakable", "rude"],
)
def test_a_choice_that_raises_fails_the_run(error: Exception, kind: str, message: str) -> None:
    def choose(state: Any) -> Any:
        raise error

    graph = choosing(choose, to=[nothing])
    (event,) = graph.step(at("first"), "", Returned({}), NOW_MS).events
    assert isinstance(event, Failed)
    assert (event.failure.type, event.failure.message) == (kind, message)
    assert "in choose" in event.failure.trace or kind == "ValueError"
    assert len(msgspec.msgpack.encode(event)) < 20_000


def test_a_choice_over_a_state_that_does_not_fit_fails_the_run() -> None:
    graph = choosing(lambda state: nothing)
    (event,) = graph.step(at("first", state={"due": 5}), "", Returned({}), NOW_MS).events
    assert isinstance(event, Failed)
    assert event.failure.type == "InvalidState"


def test_a_node_that_raised_is_tried_again() -> None:
    graph = order_graph()
    execution = at("first")
    for failed in (1, 2):
        decision = graph.step(execution, "", Raised(FAILURE, Exception(), spent_ms=4), NOW_MS)
        pause_ms = RETRY.backoff_ms(failed, "seed#7")
        assert decision == Decision(
            (AttemptFailed(NOW_MS, "first", 7, FAILURE, NOW_MS + pause_ms, 4),), checkpoint=True
        )
        execution = folded(execution, decision.events)
        assert execution.retry_at_ms > NOW_MS
    decision = graph.step(execution, "", Raised(FAILURE, Exception()), NOW_MS)
    assert decision == Decision((Failed(NOW_MS, FAILURE, "first"),), checkpoint=True)


@pytest.mark.parametrize(("node", "covered"), [("first", False), ("quick", True)])
def test_a_node_that_raised_is_not_tried_again(node: str, covered: bool) -> None:
    decision = order_graph().step(
        at(node), "", Raised(FAILURE, Exception() if covered else None), NOW_MS
    )
    assert decision == Decision((Failed(NOW_MS, FAILURE, node),), checkpoint=True)


def test_a_pause_that_took_too_long() -> None:
    graph = order_graph()
    restarted = graph.step(at("wait"), "", WentStale(), NOW_MS)
    assert restarted == Decision((Rerouted(NOW_MS, "first", "stale"),), checkpoint=True)
    escalated = graph.step(at("last"), "", WentStale(), NOW_MS)
    assert escalated == Decision((Rerouted(NOW_MS, "help", "escalated"),), checkpoint=True)
    for node in ("help", "first"):
        (event,) = graph.step(at(node), "", WentStale(), NOW_MS).events
        assert isinstance(event, Failed)
        assert (event.failure.type, event.node) == ("Stale", node)
        assert f"'{node}' paused for longer" in event.failure.message
