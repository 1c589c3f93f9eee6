"""Functions that become workflows: their signatures, types, values and errors."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import uuid
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import Retry, Workflow, days, restart, signal, workflow
from holdfast.errors import InvalidGraph, InvalidInput, InvalidRequest, InvalidResult, InvalidState
from holdfast.model.decision import Returned
from holdfast.model.execution import Execution
from holdfast.model.fold import folded

if TYPE_CHECKING:
    from holdfast import Context


@dataclasses.dataclass
class Order:
    number: int
    due: datetime.date | None = None
    tags: list[str] = dataclasses.field(default_factory=list)


class Packed(msgspec.Struct):
    number: int = 0


class Named(TypedDict):
    number: int


class Modelled(pydantic.BaseModel):
    number: int


@workflow
async def approve(order: Order, ctx: Context) -> Packed:
    """Approve an order."""
    return Packed(order.number + 1)


def finished(flow: Workflow[Any, Any], input: Any, returned: Any) -> Execution:
    execution = flow.check().start(flow.admitted_input(input), "seed")
    delta = flow.delta(execution, "", returned)
    decision = flow.step(execution, "", Returned(delta, 0), 5)
    return folded(execution, decision.events)


# --- signatures -----------------------------------------------------------------------------------


def test_a_workflow_keeps_what_is_known_of_its_function() -> None:
    assert (approve.name, approve.version) == ("approve", 1)
    assert repr(approve) == "<workflow 'approve' version 1>"
    assert approve.__doc__ == "Approve an order."
    assert approve.__name__ == "approve"
    assert (approve.input_type, approve.result_type) == (Order, Packed)
    assert list(approve.nodes) == ["approve"]
    assert isinstance(approve, Workflow)


async def test_a_context_may_have_another_name_or_a_default() -> None:
    async def annotated(order: Order, c: Context) -> None: ...

    async def defaulted(order: Order, ctx: Context | None = None) -> None: ...

    async def alone(run: "Context") -> None: ...  # noqa: UP037

    for function, input_type in ((annotated, Order), (defaulted, Order), (alone, type(None))):
        flow = workflow(function).check()
        assert (flow.nodes[flow.name].takes_context, flow.input_type) == (True, input_type)


async def test_calling_a_workflow_calls_the_function() -> None:
    assert await approve(Order(4), None) == Packed(5)
    assert await approve(ctx=None, order=Order(1)) == Packed(2)

    @workflow
    def plain(number: int) -> int:
        return number * 2

    assert plain(4) == 8


def test_options_are_those_of_a_graph_with_one_node() -> None:
    @workflow(
        name="night-shift",
        version=3,
        retry=Retry(attempts=4),
        timeout=5,
        max_pause=days(2),
        on_stale=restart("night-shift"),
        pausable="blocking",
        durability="on_pause",
        expires=days(9),
        models=["small"],
        quotas=["small"],
        signals=[signal("approved", bool)],
    )
    async def nightly(ctx: Context) -> None: ...

    nightly.check()
    node = nightly.nodes["night-shift"]
    assert (nightly.name, nightly.version, nightly.durability) == ("night-shift", 3, "on_pause")
    assert (node.retry.attempts, node.timeout_ms, node.pausable) == (4, 5_000, "blocking")
    assert (node.max_pause_ms, nightly.expires_in_ms) == (2 * 86_400_000, 9 * 86_400_000)
    assert set(nightly.needs.models) == {"small"}
    assert dict(nightly.signals) == {"approved": bool}
    assert not nightly.takes_other_signals


def test_a_workflow_warns_of_waits_that_cannot_fit() -> None:
    @workflow
    async def nightly(ctx: Context) -> None:
        await ctx.sleep(days(3))

    assert nightly.wait_warnings(86_400_000) == (
        "node 'nightly' sleeps for 3d, and the run expires after 1d: the sleep will raise "
        "WaitBeyondExpiry; pass a longer expires=",
    )


async def two_inputs(order: Order, card: str) -> None: ...
async def three(order: Order, card: str, ctx: Context) -> None: ...
async def context_first(ctx: Context, order: Order) -> None: ...
async def default_context(order: Order, c: Context | None = None) -> None: ...
async def unknown_context(order: int, c: Any) -> None: ...
async def two_contexts(ctx: Context, context: Context) -> None: ...
async def variadic(*orders: Order) -> None: ...
async def keywords(**options: Any) -> None: ...
async def keyword_only(order: Order, *, ctx: Context) -> None: ...


def generator(order: Order) -> Any:
    yield order


async def async_generator(order: Order) -> Any:
    yield order


class Shop:
    async def approve(self, order: Order) -> None: ...

    async def __call__(self, order: Order) -> None: ...

    @staticmethod
    async def fixed(order: Order) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (two_inputs, r"at most one input, and ctx after it, got \(order, card\): put the values"),
        (three, r"got \(order, card, ctx\): put the values of the input into one class"),
        (context_first, r"input first and ctx second, got \(ctx, order\): write async def context"),
        (default_context, r"got \(order, c\): put the values of the input"),
        (unknown_context, "if c is the context, call it ctx, or annotate it as Context$"),
        (two_contexts, "at most one input, and ctx after it"),
        (variadic, r"got the parameter \*orders: write async def variadic\(order: Order, ctx"),
        (keywords, r"got the parameter \*\*options"),
        (keyword_only, "got the keyword-only parameter ctx"),
        (generator, "must return its result and must not yield"),
        (async_generator, "must return its result and must not yield"),
        (Shop, "must be a function, got a class: write async def Shop"),
        (Shop.approve, "must be a function, got a method: write async def approve"),
        (Shop().approve, "got a method"),
        (Shop.fixed, "got a method"),
        (Shop(), "must be a function made by def or async def, got <tests"),
        (functools.partial(two_inputs, card=""), "must be a function made by def"),
        (len, "must be a function made by def"),
        (5, "must be a function made by def or async def, got 5"),
    ],
)
def test_what_cannot_be_a_workflow(function: Any, says: str) -> None:
    with pytest.raises(InvalidGraph, match=says):
        workflow(function)
    with pytest.raises(InvalidGraph, match=says):
        workflow(name=getattr(function, "__name__", "Shop"))(function)


def test_a_name_in_the_place_of_the_function_is_refused() -> None:
    misused: Any = workflow
    with pytest.raises(InvalidGraph, match=r"got 'approve': write @workflow\(name='approve'\)"):
        misused("approve")
    with pytest.raises(InvalidGraph, match="must be a function made by def or async def, got 'ap"):
        misused(name="approve")("approve")


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(InvalidGraph, match="a lambda has none: write a function with def, or pass"):
        workflow(lambda order: order)
    assert workflow(name="echo")(lambda order: order).check().name == "echo"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"retry": 3}, InvalidGraph),
        ({"pausable": "maybe"}, InvalidGraph),
        ({"models": "small"}, InvalidGraph),
        ({"quotas": ["other"], "models": ["small"]}, InvalidGraph),
        ({"expires": 0}, InvalidGraph),
        ({"timeout": "soon"}, InvalidRequest),
        ({"signals": ["approved"]}, InvalidGraph),
        ({"name": 5}, InvalidGraph),
    ],
)
def test_invalid_options_are_refused_where_the_workflow_is_made(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    async def nightly() -> None: ...

    with pytest.raises(kind):
        workflow(**options)(nightly)


@pytest.mark.parametrize(
    "options", [{"name": "a b"}, {"version": 0}, {"durability": "never"}, {"name": ""}]
)
def test_other_invalid_options_are_refused_where_the_workflow_is_checked(
    options: dict[str, Any],
) -> None:
    async def nightly() -> None: ...

    with pytest.raises(InvalidGraph):
        workflow(**options)(nightly).check()


def test_types_that_cannot_be_stored_or_found() -> None:
    async def opened(file: asyncio.Lock) -> asyncio.Lock: ...

    with pytest.raises(InvalidGraph, match="the input: values of Lock cannot be stored") as error:
        workflow(opened).check()
    assert len(error.value.faults) == 2

    class Local:
        number: int

    async def local(order: Local) -> None: ...

    with pytest.raises(InvalidGraph, match="name 'Local' is not defined; define them in the mod"):
        workflow(local).check()


# --- values ---------------------------------------------------------------------------------------


async def text(given: str) -> str: ...
async def numbers(given: list[int]) -> list[int]: ...
async def mapping(given: dict[str, int]) -> dict[str, int]: ...
async def day(given: datetime.date) -> datetime.date: ...
async def unique(given: uuid.UUID) -> uuid.UUID: ...
async def choice(given: Literal["a", "b"]) -> Literal["a", "b"]: ...
async def optional(given: str | None) -> str | None: ...
async def nothing(given: None) -> None: ...
async def data(given: Order) -> Order: ...
async def datas(given: list[Order]) -> list[Order]: ...
async def packed(given: Packed) -> Packed: ...
async def named(given: Named) -> Named: ...
async def modelled(given: Modelled) -> Modelled: ...
async def models(given: list[Modelled]) -> list[Modelled]: ...
async def pair(given: tuple[int, str]) -> tuple[int, str]: ...
async def chosen(given: set[int]) -> set[int]: ...
async def raw(given: bytes) -> bytes: ...
async def union(given: Order | str) -> Order | str: ...
async def untyped(given): ...
async def anything(given: Any) -> Any: ...


DAY = datetime.date(2026, 11, 17)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (text, "a"),
        (text, ""),
        (numbers, [1, 2]),
        (mapping, {"a": 1}),
        (day, DAY),
        (unique, uuid.UUID(int=5)),
        (choice, "a"),
        (optional, None),
        (optional, "x"),
        (nothing, None),
        (data, Order(4, DAY, ["x"])),
        (datas, [Order(4, DAY)]),
        (datas, []),
        (packed, Packed(4)),
        (named, Named(number=4)),
        (modelled, Modelled(number=4)),
        (models, [Modelled(number=4)]),
        (pair, (1, "a")),
        (chosen, {3, 1, 2}),
        (raw, b"\x00\xff"),
        (union, Order(4)),
        (union, "order"),
        (untyped, {"a": [1, None, "x"]}),
        (untyped, None),
        (anything, 5),
    ],
)
def test_input_and_result_of_any_type_come_back(function: Any, value: Any) -> None:
    flow = workflow(function)
    execution = finished(flow, value, value)
    assert flow.enter(execution) == flow.typed_input(execution.state) == value
    assert flow.result(execution.state) == value
    assert type(flow.result(execution.state)) is type(value)
    assert flow.typed_state(execution.state) == {"input": value, "result": value}
    msgspec.msgpack.encode(execution.state)


@pytest.mark.parametrize(
    ("function", "given", "says"),
    [
        (text, 5, "Expected `str`, got `int`"),
        (text, None, "no input was given; workflow 'text' takes a str"),
        (numbers, [1, "2"], r"\[1\]: Expected `int`, got `str`"),
        (data, {"number": "4"}, "number: Expected `int`"),
        (data, {"nummer": 4}, "unknown field; the fields are: number, due, tags; did you mean"),
        (data, {}, "number: it is missing"),
        (data, [1], "expected an Order, or a dict of its fields, got list"),
        (data, Packed(4), "expected an Order, or a dict of its fields, got Packed"),
        (modelled, "x", "expected a Modelled, or a dict of its fields, got str"),
        (named, "x", "expected a dict of fields, got str"),
        (data, None, "no input was given; workflow 'data' takes an Order"),
        (numbers, None, r"no input was given; workflow 'numbers' takes list\[int\]"),
        (named, {"number": 1, "other": 2}, "unknown field"),
        (modelled, {"number": "x"}, "number: "),
        (choice, "c", "it must be one of the values"),
        (nothing, 5, "Expected `null`, got `int`"),
        (untyped, object(), "object has no durable form"),
        (anything, 2**70, "an int beyond 64 bits"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(function: Any, given: Any, says: str) -> None:
    flow = workflow(function)
    with pytest.raises(InvalidInput, match=says):
        flow.start(flow.admitted_input(given), "seed")


@pytest.mark.parametrize(
    ("function", "returned", "says"),
    [
        (text, None, "the result does not fit its type: Expected `str`, got `null`"),
        (data, {"due": None}, "the result does not fit its type: number: it is missing"),
        (day, "2026-11-17", "the result does not fit its type"),
        (untyped, object(), "object has no durable form"),
        (nothing, 5, "Expected `null`"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(function: Any, returned: Any, says: str) -> None:
    flow = workflow(function)
    execution = Execution(state={"input": None}, seed="", node=flow.name)
    with pytest.raises(InvalidResult, match=says):
        flow.delta(execution, "", returned)


def test_a_coroutine_that_was_not_awaited_is_refused() -> None:
    flow = workflow(untyped)
    execution = Execution(state={"input": None}, seed="", node=flow.name)
    with pytest.raises(InvalidResult, match="the result is a coroutine: await it before"):
        flow.delta(execution, "", untyped(5))


def test_a_workflow_without_an_input_takes_none() -> None:
    @workflow
    async def nightly(ctx: Context) -> int: ...

    for given in (None, {}):  # the command line may pass {}
        assert nightly.start(given, "").state == {}
    with pytest.raises(InvalidInput, match="Expected `null`, got `int`"):
        nightly.start(5, "")
    execution = finished(nightly, None, 4)
    assert execution.state == {"result": 4}
    assert nightly.typed_state(execution.state) == {"result": 4}
    assert nightly.typed_input(execution.state) is None
    assert nightly.input_type is type(None)


def test_a_default_is_the_input_of_a_start_without_one() -> None:
    @workflow
    async def nightly(day: str = "today") -> str: ...

    assert nightly.start(None, "").state == {"input": "today"}
    assert nightly.start("monday", "").state == {"input": "monday"}


def test_what_was_stored_is_read_by_a_version_with_more_fields() -> None:
    @workflow(version=2)
    async def newer(order: Order) -> Order: ...

    assert newer.typed_input({"input": {"number": 4}}) == Order(4)
    assert newer.typed_input({"input": {"number": 4, "dropped": 1}}) == Order(4)
    with pytest.raises(InvalidState, match="the input does not match its type: number: it is mis"):
        newer.typed_input({"input": {}})
    with pytest.raises(InvalidState, match="the result does not match its type: expected a dict"):
        newer.result({"input": {}, "result": 5})
    with pytest.raises(InvalidState, match="the run has no input for workflow 'newer'"):
        newer.typed_input({"number": 4})


def test_changes_in_place_are_found() -> None:
    flow = workflow(data)
    execution = flow.start(Order(4, tags=["a"]), "")
    given = flow.enter(execution)
    assert flow.unreturned_changes(execution, "", state=given, returned=None) == []
    given.tags.append("b")
    given.number = 5
    found = flow.unreturned_changes(execution, "", state=given, returned=None)
    assert found == ["number", "tags"]
    assert flow.unreturned_changes(execution, "", state=given, returned=given) == []
    assert flow.unreturned_text("data", found) == (
        "workflow 'data' changed 'number', 'tags' of its input in place: the run does not keep the "
        "change. Change a copy, and return what callers need"
    )
    listed = workflow(numbers)
    execution = listed.start([1], "")
    given = listed.enter(execution)
    given.append(2)
    assert listed.unreturned_changes(execution, "", state=given, returned=3) == [""]
    assert "changed its input in place" in listed.unreturned_text("numbers", [""])
    assert execution.state == {"input": [1]}
