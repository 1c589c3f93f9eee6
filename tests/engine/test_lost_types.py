"""Results without an annotation: an object is refused, because a re-run would get a dict."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pydantic
import pytest

from holdfast import Context, Graph, Holdfast, agent, tool, workflow
from holdfast.errors import CallFailed, InvalidResult, RunFailed
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import ToolCall
from holdfast.testing import REAL, FakeContext
from tests.engine.support import House

if TYPE_CHECKING:
    from tests.engine.asking import Cents


@dataclasses.dataclass
class Decision:
    by: str = "ann"


class Packed(msgspec.Struct):
    by: str = "ann"


class Modelled(pydantic.BaseModel):
    by: str = "ann"


class Named(NamedTuple):
    by: str = "ann"


def make(given: Any):
    return given


def make_hidden() -> Cents:
    return Decision()  # type: ignore[return-value]


def make_any() -> Any:
    return Decision()


def make_decision(by: str) -> Decision:
    return Decision(by)


class Maker:
    def __call__(self) -> Decision:
        return Decision()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Decision(), "a Decision, which would come back as a dict"),
        (Packed(), "a Packed, which would come back as a dict"),
        (Modelled(), "a Modelled, which would come back as a dict"),
        (Named(), "a Named, which would come back as a list"),
        ({1, 2}, "a set, which would come back as a list"),
        (frozenset({1}), "a frozenset, which would come back as a list"),
        ([1, Decision()], r"a list with a Decision, .* -> list\[Decision\]"),
        ({"one": Packed()}, r"a dict with a Packed, .* -> dict\[str, Packed\]"),
    ],
)
async def test_an_object_of_an_unknown_type_is_refused(given: Any, told: str) -> None:
    with pytest.raises(CallFailed, match=f"'make' returned: {told}") as failed:
        await FakeContext(calls=REAL).call(make, given)
    assert failed.value.is_a(InvalidResult)
    with pytest.raises(CallFailed, match=told):
        await FakeContext(calls={make: given}).call(make, 1)


async def test_the_error_says_what_to_write() -> None:
    ctx = FakeContext(calls=REAL)
    with pytest.raises(CallFailed, match=r"annotate the result, def make\(…\) -> Decision$"):
        await ctx.call(make, Decision())
    with pytest.raises(CallFailed, match=r"def fetch\(…\) -> Decision, and no lambda"):
        await ctx.call(lambda: Decision())
    with pytest.raises(CallFailed, match="annotation of make_hidden names a type that is not foun"):
        await ctx.call(make_hidden)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (
            {"a": [1, None, True, 2.5, b"x", {"b": "c"}]},
            {"a": [1, None, True, 2.5, b"x", {"b": "c"}]},
        ),
        (datetime.date(2026, 1, 5), "2026-01-05"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=7), str(uuid.UUID(int=7))),
        ((1, 2), [1, 2]),
    ],
)
async def test_other_values_come_back_in_their_stored_form(given: Any, stored: Any) -> None:
    assert await FakeContext(calls=REAL).call(make, given) == stored


async def test_an_annotation_is_found() -> None:
    ctx = FakeContext(calls=REAL)
    assert await ctx.call(make_any) == {"by": "ann"}
    assert await ctx.call(functools.partial(make_decision, "bob")) == Decision("bob")
    assert await ctx.call(Decision, "eve") == Decision("eve")
    assert await ctx.call(tool(make_decision), "tim") == Decision("tim")
    maker: Any = Maker()
    assert await ctx.call(maker) == Decision()


async def test_a_model_gets_the_stored_form(house: House) -> None:
    def decide():
        """Decide."""
        return Decision()

    helper = agent("m", [decide])

    async def node(state: Any, ctx: Context) -> dict[str, Any]:
        return {"text": (await helper(ctx, "go")).messages[2]["content"]}

    graph = Graph("g", dict)
    graph.node(node)
    hf = house.open(models={"m": Offline([ToolCall("1", "decide", {}), "done"])})
    async with house.worker(hf, graph):
        run = await hf.start(graph, id="doc-42")
        assert await run.result(timeout=60) == {"text": '{"by":"ann"}'}


async def test_the_result_of_a_workflow(house: House, hf: Holdfast) -> None:
    @workflow
    async def decide(kind: str):
        return Decision() if kind == "object" else {"by": kind}

    @workflow
    async def decide_any() -> Any:
        return Decision()

    async with house.worker(hf, decide, decide_any):
        run = await hf.start(decide, "object")
        with pytest.raises(RunFailed, match=r"Decision, .* def decide\(…\) -> Decision") as failed:
            await run.result(timeout=60)
        assert failed.value.kind == "InvalidResult"
        assert await (await hf.start(decide, "ann")).result(timeout=60) == {"by": "ann"}
        assert await (await hf.start(decide_any)).result(timeout=60) == {"by": "ann"}
