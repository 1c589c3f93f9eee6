"""Whichever branch is faster, a run comes to the same: shown for forks of any shape."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.graph import Graph
from holdfast.model.decision import Outcome, Raised, Returned
from holdfast.model.event import (
    BranchFailed,
    Event,
    Failure,
    NodeFinished,
    SignalTaken,
    WaitsRecorded,
)
from holdfast.model.execution import Execution, is_within
from holdfast.model.fold import folded, restored, snapshot
from holdfast.model.policy import Retry
from holdfast.model.program import RunNode
from holdfast.model.reducers import REDUCERS, mismatch, reduced
from holdfast.model.wait import Wait

REDUCED = {
    "log": "append",
    "sum": "add",
    "top": "max",
    "low": "min",
    "tags": "union",
    "map": "merge",
    "last": "last",
}
FAILURE = Failure("ValueError", "no")


class Shape(msgspec.Struct, frozen=True):
    """A sequence of nodes, some of which fork."""

    steps: tuple[Fork | None, ...]


class Fork(msgspec.Struct, frozen=True):
    branches: tuple[Shape, ...]
    over: int = -1
    """How many items; -1 where there is a branch for each shape."""
    spares: bool = False
    inside: bool = False
    """Whether each branch begins with a graph of its own."""


def forks(shapes: st.SearchStrategy[Shape]) -> st.SearchStrategy[Fork]:
    several = st.tuples(shapes, shapes) | st.tuples(shapes, shapes, shapes)
    return st.builds(Fork, several, spares=st.booleans(), inside=st.booleans()) | st.builds(
        Fork, st.tuples(shapes), over=st.integers(0, 4), spares=st.booleans()
    )


def sequences(fork: st.SearchStrategy[Fork | None]) -> st.SearchStrategy[Shape]:
    return st.builds(Shape, st.lists(fork, min_size=1, max_size=3).map(tuple))


shapes = st.recursive(
    sequences(st.none()), lambda inner: sequences(st.none() | forks(inner)), max_leaves=12
)


def graph_of(shape: Shape, name: str = "g") -> Graph:
    graph = Graph(name, dict, reducers=REDUCED)  # type: ignore[arg-type]
    names = (f"n{number}" for number in range(1_000))

    def node(alone: bool) -> str:
        name = next(names)
        retry = Retry(attempts=2, backoff=1)
        # What is in no branch over items can have a field of its own.
        writes = [*REDUCED, name] if alone else [*REDUCED]
        graph.node(name=name, writes=writes, retry=retry)(lambda state: None)
        return name

    def built(shape: Shape, alone: bool) -> str:
        """Return the first node of a sequence."""
        first = last = node(alone)
        for step in shape.steps:
            join = node(alone)
            if step is None:
                graph.route(last, join)
            elif step.over >= 0:
                start = built(step.branches[0], alone=False)
                graph.each(
                    last,
                    start,
                    over=f"items{step.over}",
                    into="item",
                    join=join,
                    on_failure="spare" if step.spares else "cancel",
                )
            else:
                starts = [begun(branch, alone, step.inside) for branch in step.branches]
                spare = "spare" if step.spares else "cancel"
                graph.fork(last, starts, join=join, on_failure=spare)
            last = join
        return first

    def begun(shape: Shape, alone: bool, inside: bool) -> str:
        if not inside:
            return built(shape, alone)
        same = {field: field for field in (*REDUCED, *(f"items{n}" for n in range(5)))}
        gives = {field: field for field in REDUCED}
        return graph.include(graph_of(shape, next(names)), takes=same, gives=gives)

    built(shape, alone=True)
    return graph.check()


def outcome(graph: Graph, effect: RunNode, execution: Execution) -> Outcome:
    """Return what comes of a node: always the same for the same visit of the same branch."""
    draw = zlib.crc32(f"{effect.branch}#{effect.visit}#{effect.node}".encode())
    attempts = execution.strand(effect.branch)
    assert attempts is not None
    again = graph.nodes[effect.node].retry.attempts > 1
    if draw % 5 == 0 and again and attempts.failed_attempts == 0:
        return Raised(FAILURE, Exception(), spent_ms=3)
    if draw % 7 == 0 and effect.branch and execution.spares(effect.branch):
        return Raised(FAILURE)
    return Returned(delta_of(graph, effect, draw), spent_ms=draw % 10)


def delta_of(graph: Graph, effect: RunNode, draw: int) -> dict[str, Any]:
    if not graph.nodes[effect.node].writes or draw % 11 == 0:
        return {}
    own = {effect.node: draw} if effect.node in (graph.nodes[effect.node].writes or ()) else {}
    return {
        **own,
        "log": [f"{effect.branch}#{effect.visit}"],
        "sum": draw % 100,
        "top": draw % 1000,
        "low": draw % 1000,
        "tags": [draw % 4, draw % 3],
        "map": {f"k{draw % 5}": draw},
        "last": draw,
    }


START = {**{f"items{n}": list(range(n)) for n in range(5)}, "log": ["start"], "sum": 1}


def events_of(graph: Graph, execution: Execution, effect: RunNode) -> tuple[Event, ...]:
    """Return what one strand adds to the journal: perhaps it waited, and took a signal."""
    draw = zlib.crc32(effect.branch.encode()) + effect.visit
    before: tuple[Event, ...] = ()
    strand = execution.strand(effect.branch)
    assert strand is not None
    if draw % 3 == 0 and not strand.answers:
        wait = Wait(visit=effect.visit, key="go#1", branch=effect.branch, signal="go", since_ms=1)
        id = f"{effect.branch}#{effect.visit}"
        taken = SignalTaken(0, effect.node, effect.visit, "go#1", "go", id, None, effect.branch)
        before = (WaitsRecorded(0, (wait,)), taken)
        execution = folded(execution, before)
    decision = graph.step(execution, effect.branch, outcome(graph, effect, execution), 0)
    return (*before, *decision.events)


Choose = Callable[[int], int]


def run(graph: Graph, choose: Choose) -> Iterator[tuple[Execution, tuple[Event, ...]]]:
    """Yield what happens, and where the run stood before, until it ends."""
    execution = graph.start(START, "seed")
    while effects := graph.outstanding(execution):
        effect = effects[choose(len(effects))]
        events = events_of(graph, execution, effect)
        yield execution, events
        execution = folded(execution, events)
    yield execution, ()


def chooser(data: st.DataObject) -> Choose:
    return lambda count: data.draw(st.integers(0, count - 1)) if count > 1 else 0


def sorted_events(events: list[Event]) -> list[bytes]:
    return sorted(map(msgspec.msgpack.encode, events))


@settings(deadline=None, max_examples=200)
@given(shapes, st.data())
def test_the_order_of_branches_makes_no_difference(shape: Shape, data: st.DataObject) -> None:
    graph = graph_of(shape)
    one = list(run(graph, lambda count: 0))
    other = list(run(graph, chooser(data)))
    assert one[-1][0] == other[-1][0]
    assert one[-1][0].ending == "finished"
    assert not one[-1][0].branches
    # Nor do names and visits depend on it, nor anything else that is written down.
    ours, theirs = ([event for _, events in walk for event in events] for walk in (one, other))
    assert sorted_events(ours) == sorted_events(theirs)


@settings(deadline=None, max_examples=200)
@given(shapes, st.data())
def test_two_branches_commute_at_any_point(shape: Shape, data: st.DataObject) -> None:
    graph = graph_of(shape)
    for execution, _ in run(graph, chooser(data)):
        effects = graph.outstanding(execution)
        if len(effects) > 1:
            a, b = (events_of(graph, execution, effect) for effect in (effects[0], effects[-1]))
            assert folded(execution, (*a, *b)) == folded(execution, (*b, *a))


@settings(deadline=None, max_examples=200)
@given(shapes, st.data())
def test_the_join_sees_the_branches_in_their_order(shape: Shape, data: st.DataObject) -> None:
    graph = graph_of(shape)
    walk = list(run(graph, chooser(data)))
    events = [event for _, events in walk for event in events]
    failed = [event.branch for event in events if isinstance(event, BranchFailed)]
    finished = [
        event
        for event in events
        if isinstance(event, NodeFinished)
        and not any(is_within(event.branch, branch) for branch in failed)
    ]
    state: dict[str, Any] = dict(START)
    for event in sorted(finished, key=place):
        state = reduced(state, event.delta, REDUCED)
    assert walk[-1][0].state == state


def place(event: NodeFinished) -> list[tuple[int, int, int]]:
    """Return where a visit stands if the branches ran one after the other."""
    steps = event.branch.split("/") if event.branch else []
    around = [(int(visit), 1, int(number)) for visit, number in (s.split(".") for s in steps)]
    return [*around, (event.visit, 0, 0)]


@settings(deadline=None, max_examples=200)
@given(shapes, st.data())
def test_a_snapshot_at_any_point_is_as_good_as_what_it_covers(
    shape: Shape, data: st.DataObject
) -> None:
    walk = list(run(graph_of(shape), chooser(data)))
    at = data.draw(st.integers(0, len(walk) - 1))
    execution = walk[at][0]
    again = restored(snapshot(execution, 0, size=0, blobs=False))
    assert again == execution
    rest = [event for _, events in walk[at:] for event in events]
    assert folded(again, rest) == walk[-1][0]


@settings(deadline=None, max_examples=200)
@given(shapes, st.data())
def test_what_an_event_leads_to_is_near_it(shape: Shape, data: st.DataObject) -> None:
    """Whoever performs branches asks only there what has become ready."""
    graph = graph_of(shape)
    walk = list(run(graph, chooser(data)))
    for (before, events), (after, _) in itertools.pairwise(walk):
        path: str = next(e.branch for e in map(cast_any, events) if hasattr(e, "branch"))
        stood = {(name, strand.visit) for name, strand in before.runnable_strands()}
        new = {
            name for name, strand in after.runnable_strands() if (name, strand.visit) not in stood
        }
        near = set(after.strands_after(path)) if after.ending is None else set[str]()
        assert new <= near
        assert all(after.is_at_node(name) for name in near)
        assert {name for name, _ in after.runnable_strands()} == {
            name
            for name in ("", *after.branches)
            if after.ending is None and after.is_at_node(name)
        }


def cast_any(event: Event) -> Any:
    return event


# --- reducers -------------------------------------------------------------------------------------


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "append": st.lists(st.integers(0, 3), max_size=4),
    "add": st.integers(-(2**40), 2**40),
    "merge": st.dictionaries(st.sampled_from("abc"), st.integers(-9, 9), max_size=3),
    "union": st.lists(st.integers(0, 3), max_size=4),
    "max": st.integers(-9, 9),
    "min": st.integers(-9, 9),
    "last": st.none() | st.text(max_size=3),
}


def test_every_reducer_is_tried() -> None:
    assert set(VALUES) == set(REDUCERS) == set(REDUCED.values())


@given(st.sampled_from(REDUCERS), st.data(), st.booleans())
def test_contributions_may_be_brought_together_before_they_are_brought_in(
    op: str, data: st.DataObject, there: bool
) -> None:
    first, second, third = (data.draw(VALUES[op]) for _ in range(3))
    ops = {"f": op}
    state = {"f": first} if there else {}
    assert mismatch(op, first, second) is None
    one_by_one = reduced(reduced(state, {"f": second}, ops), {"f": third}, ops)
    together = reduced(state, reduced({"f": second}, {"f": third}, ops), ops)
    if op == "union" and not there:
        # The very first is taken as it is.
        assert set(one_by_one["f"]) == set(together["f"])
    else:
        assert one_by_one == together


@given(st.sampled_from(REDUCERS), st.data())
def test_nothing_is_changed_in_place(op: str, data: st.DataObject) -> None:
    first, second = data.draw(VALUES[op]), data.draw(VALUES[op])
    before = msgspec.msgpack.encode([first, second])
    reduced({"f": first}, {"f": second}, {"f": op})
    assert msgspec.msgpack.encode([first, second]) == before
