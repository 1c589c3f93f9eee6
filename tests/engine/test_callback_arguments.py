"""Addresses of callbacks as arguments: a resume makes other ones, and no history shows them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from holdfast import Context, signal, tool
from tests.engine.asking import Cents, graph_of
from tests.engine.support import House

PUBLIC = "https://pay.example.org/holdfast"
MASKED = f"{PUBLIC}/v1/callbacks/***"


class Service:
    """Another system, which gets addresses."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask(self, *given: Any, **named: Any) -> None:
        self.asked.append((given, named))

    @property
    def tokens(self) -> list[str]:
        """The tokens of the addresses that it was given first."""
        return [
            given[0].partition("/v1/callbacks/")[2].partition("?")[0] for given, _ in self.asked
        ]


async def answered(house: House, node: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Run a node that waits for a payment; return the result and the recorded arguments."""
    hf, graph = house.open(public_url=PUBLIC, **options), graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("payment", 5)
        result = await run.result(timeout=60)
    entries = (await run.history(limit=1000)).entries
    return result, [each.details.get("arguments") for each in entries if each.kind == "call"]


async def test_a_resume_calls_with_the_same_arguments(
    either: House, caplog: pytest.LogCaptureFixture
) -> None:
    service, made = Service(), list[str]()

    async def node(state: Any, ctx: Context) -> Any:
        address = await ctx.callback("payment")
        made.append(address)
        await ctx.call(service.ask, address)
        await ctx.with_options(key="pay/1").call(service.ask, address, to={"deep": [address]})
        return {"paid": await ctx.wait(signal("payment"))}

    with caplog.at_level(logging.WARNING, "holdfast"):
        result, _ = await answered(either, node)
    assert result == {"paid": 5}
    assert len(set(made)) == len(made) == 2
    first = made[0]
    assert service.asked == [((first,), {}), ((first,), {"to": {"deep": [first]}})]
    assert not caplog.records


async def test_other_arguments_are_still_noticed(
    either: House, caplog: pytest.LogCaptureFixture
) -> None:
    service, made = Service(), list[str]()

    async def node(state: Any, ctx: Context) -> Any:
        made.append(await ctx.callback("payment"))
        await ctx.call(service.ask, made[-1], len(made))
        return {"paid": await ctx.wait(signal("payment"))}

    with caplog.at_level(logging.WARNING, "holdfast.calls"):
        await answered(either, node)
    assert "has other arguments" in caplog.text


async def test_a_history_shows_no_address(either: House) -> None:
    service = Service()

    async def node(state: Any, ctx: Context) -> Any:
        address = await ctx.callback("payment")
        await ctx.call(service.ask, address, f"Pay at {address}, please.", [{"to": (address,)}])
        await ctx.with_options(record="full").call(service.ask, address + "?" + "x" * 300_000)
        return {"paid": await ctx.wait(signal("payment"))}

    _, (shown, cut) = await answered(either, node)
    assert shown == {"*args": [MASKED, f"Pay at {MASKED}, please.", [{"to": [MASKED]}]]}
    assert cut["*args"][0].startswith(f"{MASKED}?xxx")
    assert all(token.startswith("v1.") for token in service.tokens)
    assert not any(token in json.dumps([shown, cut]) for token in service.tokens)


async def test_the_error_of_a_call_shows_no_address(
    either: House, caplog: pytest.LogCaptureFixture
) -> None:
    made = list[str]()

    async def fails(address: str) -> None:
        raise ConnectionError(f"404 from {address}")

    async def node(state: Any, ctx: Context) -> Any:
        made.append(await ctx.callback("payment"))
        try:
            await ctx.call(fails, made[-1])
        except Exception as error:
            await ctx.wait(signal("payment"))
            return {"error": str(error)}

    result, _ = await answered(either, node)
    assert f"404 from {MASKED}" in result["error"]
    assert made[0] not in caplog.text


async def test_the_intent_of_a_call_shows_no_address(either: House) -> None:
    listed: list[Any] = []

    @tool(at_most_once=True)
    async def pay(address: str) -> None:
        raise ConnectionError("torn")

    async def node(state: Any, ctx: Context) -> Any:
        await ctx.call(pay, await ctx.callback("payment"))

    hf, graph = either.open(public_url=PUBLIC), graph_of(node)
    async with either.worker(hf, graph) as worker:
        await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        listed += [call.arguments async for call in hf.ambiguous()]
    assert listed == [{"address": MASKED}]


async def test_a_prompt_is_paid_once_and_shown_without_the_address(
    either: House, caplog: pytest.LogCaptureFixture
) -> None:
    model = Cents()

    async def node(state: Any, ctx: Context) -> Any:
        address = await ctx.callback("payment")
        await ctx.model("m", f"Write a mail with the link {address}.", key="mail")
        return {"paid": await ctx.wait(signal("payment"))}

    with caplog.at_level(logging.WARNING, "holdfast"):
        result, (shown,) = await answered(either, node, models={"m": model})
    assert result == {"paid": 5}
    (request,) = model.asked
    assert f"{PUBLIC}/v1/callbacks/v1." in request.messages[0]["content"]
    message = {"role": "user", "content": f"Write a mail with the link {MASKED}."}
    assert shown["messages"] == [message]
    assert not caplog.records


async def test_runs_do_not_share_an_answer_with_an_address_in_it(either: House) -> None:
    model = Cents(says=lambda request: request.messages[0]["content"])

    async def node(state: Any, ctx: Context) -> Any:
        address = await ctx.callback("payment")
        answer = await ctx.model("m", address, share=True)
        return {"own": answer.text == address}

    hf, graph = either.open(public_url=PUBLIC, models={"m": model}), graph_of(node)
    async with either.worker(hf, graph):
        for id in ("one", "other"):
            run = await hf.start(graph, id=id)
            assert await run.result(timeout=60) == {"own": True}
    assert len(model.asked) == 2
