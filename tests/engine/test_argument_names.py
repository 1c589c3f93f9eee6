"""The arguments of a function and the options of its call never share a name."""

from __future__ import annotations

import keyword
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Graph, Holdfast, agent, tool
from holdfast.errors import RunFailed
from holdfast.integrations.offline import Offline
from holdfast.model.invocation import ToolCall
from tests.engine.asking import graph_of
from tests.engine.support import House

OPTIONS = ["key", "retry", "timeout", "quota"]
NAMES = [
    *OPTIONS,
    *("args", "asked", "call", "cls", "digest", "durable", "fn", "func", "function", "graph", "id"),
    *("input", "kind", "kwargs", "model", "name", "options", "plain", "self", "state", "tool"),
]
IDENTIFIERS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name not in ("ctx", "idempotency_key")
)


def taking(name: str, *, plain: bool = False) -> tuple[Callable[..., Any], list[tuple[str, str]]]:
    """Return a function with a parameter of that name, and what it was called with."""
    seen: list[tuple[str, str]] = []
    space: dict[str, Any] = {"_seen": seen}
    exec(  # only so can a parameter have any name
        f"{'' if plain else 'async '}def take({name}: str, *, idempotency_key: str) -> str:\n"
        f"    _seen.append(({name}, idempotency_key))\n"
        f"    return {name}\n",
        space,
    )
    return space["take"], seen


async def outcome(hf: Holdfast, node: Callable[..., Any]) -> Any:
    graph = graph_of(node)
    async with hf.worker([graph]):
        return await (await hf.start(graph)).result(timeout=60)


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_model_chooses_arguments_and_nothing_else(
    house: House, name: str, plain: bool
) -> None:
    take, seen = taking(name, plain=plain)
    answers = [ToolCall("1", "take", {name: "chosen"}), ToolCall("2", "take", {name: "-5"}), "done"]
    helper = agent("m", [take])

    async def node(state: Any, ctx: Any) -> Any:
        told = await helper(ctx, "Help.")
        return {"results": [m["content"] for m in told.messages if m["role"] == "tool"]}

    assert await outcome(house.open(models={"m": Offline(answers)}), node) == {
        "results": ["chosen", "-5"]
    }
    assert [value for value, _ in seen] == ["chosen", "-5"]
    keys = [key for _, key in seen]
    assert len(set(keys)) == 2
    assert all(len(key) == 32 and set(key) <= set("0123456789abcdef") for key in keys)


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_works_in_a_call(house: House, name: str) -> None:
    take, seen = taking(name)
    declared = tool(take)

    async def node(state: Any, ctx: Any) -> Any:
        by_name = await ctx.call(take, **{name: "a"})
        with_options = ctx.with_options(key="mine", timeout=5)
        return {"results": [by_name, await with_options.call(declared, **{name: "b"})]}

    assert await outcome(house.open(), node) == {"results": ["a", "b"]}
    assert seen[1] == ("b", "mine")
    assert await declared(**{name: "c"}, idempotency_key="k") == "c"


@pytest.mark.parametrize("name", NAMES)
async def test_every_name_works_in_a_node_that_is_a_plain_function(house: House, name: str) -> None:
    take, seen = taking(name, plain=True)

    def node(state: Any, ctx: Any) -> Any:
        by_name = ctx.call(take, **{name: "a"})
        with_options = ctx.with_options(key="mine", timeout=5)
        return {"results": [by_name, with_options.call(take, **{name: "b"})]}

    assert await outcome(house.open(), node) == {"results": ["a", "b"]}
    assert seen[1] == ("b", "mine")


@pytest.mark.parametrize("name", ["ctx", "idempotency_key"])
async def test_what_the_engine_hands_cannot_be_given(house: House, name: str) -> None:
    async def take(ctx: Any, idempotency_key: str) -> None:
        raise AssertionError("it must not be called")

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(take, **{name: "mine"})

    with pytest.raises(RunFailed, match=f"InvalidRequest: {name} must not be passed to"):
        await outcome(house.open(), node)


@pytest.mark.parametrize("once", [False, True])
async def test_an_option_that_is_given_as_an_argument_is_refused(house: House, once: bool) -> None:
    """One that is called at most once is not taken for a call that may have been made."""

    @tool(name="pay", at_most_once=once)
    async def pay(amount: int) -> None:
        raise AssertionError("it must not be called")

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(pay, 3, timeout=5)

    told = (
        r"InvalidRequest: 'pay' does not accept these arguments: .* "
        r"options go before the call: ctx.with_options"
    )
    with pytest.raises(RunFailed, match=told):
        await outcome(house.open(), node)


async def test_arguments_are_looked_at_before_a_call_is_intended(house: House) -> None:
    @tool(name="pay", at_most_once=True)
    async def pay(amount: int, *, idempotency_key: str) -> None:
        raise AssertionError("it must not be called")

    async def node(state: Any, ctx: Any) -> Any:
        await ctx.call(pay)

    with pytest.raises(
        RunFailed, match="InvalidRequest: 'pay' does not accept these arguments: missing"
    ):
        await outcome(house.open(), node)


async def test_every_name_works_in_an_input(house: House) -> None:
    given_input = {name: name for name in [*NAMES, "ctx", "labels", "budget", "session", "user"]}
    inner = Graph("inner", dict)

    @inner.node
    async def leaf(state: Any) -> Any:
        return {}

    async def node(state: Any, ctx: Any) -> Any:
        return {"inner": await (await ctx.start(inner, given_input)).result()}

    graph, hf = graph_of(node), house.open()
    async with hf.worker([graph, inner]):
        result = await (await hf.start(graph, given_input)).result(timeout=60)
    assert result == {**given_input, "inner": given_input}


async def test_every_name_works_as_a_parameter_of_the_service(house: House) -> None:
    asked: list[Any] = []
    extra = {name: name for name in [*NAMES, "stream", "share", "output", "tools", "max_tokens"]}

    def answer(request: Any) -> str:
        asked.append(request)
        return "yes"

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await ctx.model("m", "Is it?", extra=extra, temperature=0)).text}

    assert await outcome(house.open(models={"m": Offline(answer)}), node) == {"text": "yes"}
    assert asked[0].params["extra"] == extra


@settings(deadline=None, max_examples=40)
@given(name=IDENTIFIERS, model=st.booleans())
async def test_any_identifier_can_be_a_parameter(name: str, model: bool) -> None:
    take, seen = taking(name)
    helper = agent("m", [take])

    async def node(state: Any, ctx: Any) -> Any:
        if model:
            await helper(ctx, "Help.")
        else:
            await ctx.call(take, **{name: "chosen"})

    models = {"m": Offline([ToolCall("1", "take", {name: "chosen"}), "done"])}
    async with Holdfast("sqlite://:memory:", models=models) as hf:
        await outcome(hf, node)
    assert [value for value, _ in seen] == ["chosen"]
    assert seen[0][1] != "chosen"
