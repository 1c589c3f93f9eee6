"""What holds for every graph, every state and every course of a run."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import uuid
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidGraph
from holdfast.graph import END, Graph, escalate, fail, restart
from holdfast.graph.state_codec import StateCodec
from holdfast.model.decision import Outcome, Raised, Returned, WentStale
from holdfast.model.event import Event, Failure, TimerFired
from holdfast.model.execution import Execution
from holdfast.model.fold import folded
from holdfast.model.policy import Retry

NODES = ["a", "b", "c", "d", "e"]


@st.composite
def sketches(draw: st.DrawFn) -> dict[str, tuple[str, list[str | None]]]:
    """Return nodes with their pausable and what they lead to; some lead to what is not there."""
    names = NODES[: draw(st.integers(1, 5))]
    targets = st.lists(st.sampled_from([*names, "gone", None]), max_size=3, unique=True)
    pausable = st.sampled_from(["yes", "no", "no", "no", "blocking"])
    return {name: (draw(pausable), draw(targets)) for name in names}


def built(sketch: dict[str, tuple[str, list[str | None]]]) -> Graph:
    graph = Graph("test", dict)
    for name, (pausable, targets) in sketch.items():
        graph.node(name=name, pausable=pausable)(lambda state: None)
        ends = [END if target is None else target for target in targets]
        if len(ends) == 1:
            graph.route(name, ends[0])
        elif ends:
            graph.choose(name, lambda state: END, to=ends)
    return graph


def paths(sketch: dict[str, tuple[str, list[str | None]]], name: str) -> set[tuple[str, ...]]:
    """Return every way from a node that enters none twice, but for the last."""
    found: set[tuple[str, ...]] = set()

    def walk(path: tuple[str, ...]) -> None:
        found.add(path)
        if path[-1] in path[:-1]:
            return
        for target in sketch[path[-1]][1]:
            if target in sketch:
                walk((*path, target))

    walk((name,))
    return found


@settings(deadline=None)
@given(sketches())
def test_the_check_finds_what_walking_every_way_finds(
    sketch: dict[str, tuple[str, list[str | None]]],
) -> None:
    reached = {path[-1] for path in paths(sketch, "a")}
    restless = [
        set(path)
        for name in sketch
        for path in paths(sketch, name)
        if len(path) > 1 and path[0] == path[-1] and all(sketch[node][0] == "no" for node in path)
    ]
    # Loops that share a node are told as one.
    loops: list[set[str]] = []
    for loop in restless:
        touching = [other for other in loops if other & loop]
        loops = [other for other in loops if not other & loop] + [loop.union(*touching)]
    expected = {f"{name!r} leads to 'gone'" for name in sketch if "gone" in sketch[name][1]}
    expected |= {f"node {name!r} cannot be reached" for name in sketch if name not in reached}
    expected |= {f"the loop of {', '.join(map(repr, sorted(loop)))} has" for loop in loops}
    try:
        built(sketch).check()
        faults: tuple[str, ...] = ()
    except InvalidGraph as error:
        faults = error.faults
    assert len(faults) == len(expected), (faults, expected)
    for part in expected:
        assert any(part in fault for fault in faults), (part, faults)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Struct(msgspec.Struct):
    text: str
    number: int
    share: float
    flag: bool
    raw: bytes
    moment: datetime.datetime
    date: datetime.date
    span: datetime.timedelta
    price: decimal.Decimal
    key: uuid.UUID
    tags: set[str]
    pair: tuple[int, str]
    counts: dict[int, int]
    color: Color
    maybe: str | None
    more: list[Struct]
    free: Any


class Keyed(TypedDict):
    text: str
    number: int
    share: float
    flag: bool
    raw: bytes
    moment: datetime.datetime
    date: datetime.date
    span: datetime.timedelta
    price: decimal.Decimal
    key: uuid.UUID
    tags: set[str]
    pair: tuple[int, str]
    counts: dict[int, int]
    color: Color
    maybe: str | None
    more: list[Struct]
    free: Any


@dataclass
class Data:
    text: str
    number: int
    share: float
    flag: bool
    raw: bytes
    moment: datetime.datetime
    date: datetime.date
    span: datetime.timedelta
    price: decimal.Decimal
    key: uuid.UUID
    tags: set[str]
    pair: tuple[int, str]
    counts: dict[int, int]
    color: Color
    maybe: str | None
    more: list[Struct]
    free: Any


class Model(pydantic.BaseModel):
    text: str
    number: int
    share: float
    flag: bool
    raw: bytes
    moment: datetime.datetime
    date: datetime.date
    span: datetime.timedelta
    price: decimal.Decimal
    key: uuid.UUID
    tags: set[str]
    pair: tuple[int, str]
    counts: dict[int, int]
    color: Color
    maybe: str | None
    more: list[Any]
    free: Any


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ints = st.integers(-(2**63), 2**64 - 1)
zones = st.sampled_from([None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=-3))])
json_like = st.recursive(
    st.none() | st.booleans() | ints | st.floats(allow_nan=False) | texts | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
structs: st.SearchStrategy[Struct] = st.deferred(
    lambda: st.builds(
        Struct,
        text=texts,
        number=ints,
        share=st.floats(allow_nan=False),
        flag=st.booleans(),
        raw=st.binary(max_size=5),
        moment=st.datetimes(timezones=zones),
        date=st.dates(),
        span=st.timedeltas(datetime.timedelta(-10000), datetime.timedelta(10000)),
        price=st.decimals(allow_nan=False, allow_infinity=False),
        key=st.uuids(),
        tags=st.sets(texts, max_size=3),
        pair=st.tuples(ints, texts),
        counts=st.dictionaries(ints, ints, max_size=3),
        color=st.sampled_from(Color),
        maybe=st.none() | texts,
        more=st.just([]) | st.lists(structs, max_size=1),
        free=json_like,
    )
)
KINDS = {"keys": Keyed, "struct": Struct, "data": Data, "model": Model}


def fields(value: Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in Struct.__struct_fields__}


def of_kind(kind: Any, value: Struct) -> Any:
    given = fields(value)
    if kind is Model:
        given["more"] = []  # a model knows nothing of structs
    return given if kind is Keyed else kind(**given)


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None)
@given(value=structs, other=structs)
def test_what_is_kept_comes_back(name: str, value: Struct, other: Struct) -> None:
    kind = KINDS[name]
    state = StateCodec(kind)
    before = state.initial(of_kind(kind, value))
    assert state.typed(before) == of_kind(kind, value)
    delta = state.delta(of_kind(kind, other), before)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta)) == delta
    after = {**before, **delta}
    assert state.typed(after) == of_kind(kind, other)
    # Nothing is written that stands already, and nothing comes of returning what was entered.
    assert state.delta(of_kind(kind, other), after) == {}
    assert state.delta(state.typed(after), after) == {}


@settings(deadline=None)
@given(json_like | st.floats(), json_like)
def test_anything_comes_back_from_a_plain_dict(value: Any, other: Any) -> None:
    state = StateCodec(dict)
    before = state.initial({"x": value})
    back = state.typed(before)["x"]
    assert back == value or math.isnan(value)
    after = {**before, **state.delta({"x": other}, before)}
    assert state.typed(after) == {"x": other}


class Counted(TypedDict, total=False):
    a: int
    b: str


def course_graph() -> Graph:
    graph = Graph("course", Counted)
    retry = Retry(attempts=3)
    graph.node(name="a", retry=retry, max_pause=1, on_stale=restart("b"))(lambda state: None)
    graph.node(name="b", pausable="no")(lambda state: None)
    graph.node(name="c", pausable="blocking", max_pause=1, on_stale=escalate("d"))(
        lambda state: None
    )
    graph.node(name="d", max_pause=1, on_stale=fail())(lambda state: None)
    graph.route("a", "b")
    # For some states it raises, and for some it returns what is not a node.
    graph.choose(
        "b", lambda state: {0: "a", 1: "c", 2: END, 3: None}[state["a"]], to=["a", "c", END]
    )
    graph.choose("c", lambda state: state.get("b", "d"), to=["a", "b", "d"])
    graph.route("d", END)
    return graph.check()


COURSE = course_graph()
FAILURE = Failure("ValueError", "no")
outcomes: st.SearchStrategy[Outcome | Event] = st.one_of(
    st.builds(
        Returned,
        st.fixed_dictionaries(
            {}, optional={"a": st.integers(0, 4), "b": st.sampled_from(["a", "b", "d", "e"])}
        ),
        spent_ms=st.integers(0, 5),
    ),
    st.builds(Raised, st.just(FAILURE), st.sampled_from([None, Exception()])),
    st.just(WentStale()),
    st.just(TimerFired(0, "c", 0, "0")),
)


@settings(deadline=None)
@given(st.lists(outcomes, max_size=30), st.sampled_from(["one", "two"]))
def test_every_course_of_a_run(course: list[Any], seed: str) -> None:
    begun = COURSE.start({"a": 0}, seed)
    execution, journal = begun, list[Event]()
    for now_ms, outcome in enumerate(course):
        effects = COURSE.outstanding(execution)
        assert len(effects) == (execution.ending is None)
        if not effects:
            break
        assert effects[0].node == execution.node
        if isinstance(outcome, TimerFired):  # the engine's own doing, not the program's
            events: tuple[Event, ...] = (outcome,)
        else:
            decision = COURSE.step(execution, "", outcome, now_ms)
            assert decision == COURSE.step(execution, "", outcome, now_ms)
            events = decision.events
            assert events
        after = folded(execution, events)
        check_progress(execution, after)
        if after.ending is not None or isinstance(outcome, Raised | WentStale):
            assert decision.checkpoint
        execution = after
        journal.extend(events)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(journal), type=list[Event])
    assert folded(begun, kept) == execution


def check_progress(before: Execution, after: Execution) -> None:
    """Check that a step went on: to another visit, another attempt, an answer, or the end."""
    if after.visit > before.visit:
        assert after.visit == before.visit + 1
        assert (after.failed_attempts, after.retry_at_ms, after.answers) == (0, 0, {})
    else:
        assert after.visit == before.visit
        assert after.node == before.node
        assert (
            after.ending is not None
            or after.failed_attempts == before.failed_attempts + 1
            or after.answers
        )
    assert after.failed_attempts < 3
    assert COURSE.enter(after).keys() <= {"a", "b"}
