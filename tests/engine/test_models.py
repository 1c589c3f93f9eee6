"""Questions to models: paid once, checked, tried again, and passed on to others."""

from __future__ import annotations

import re
from typing import Any, TypedDict

import pytest

from holdfast import Answer, Holdfast, Retry, signal
from holdfast.errors import (
    CallFailed,
    InvalidAnswer,
    InvalidPrompt,
    InvalidRequest,
    ModelRefused,
    ModelUnavailable,
    UnknownModel,
)
from tests.engine.asking import Cents, graph_of
from tests.engine.support import House


class Risk(TypedDict):
    risk: str
    points: int


async def test_a_question_is_paid_once(either: House) -> None:
    model, seen = Cents(), []

    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.model("cheap", "Is it?")
        seen.append(answer)
        await ctx.wait(signal("go on"))
        return {"text": answer.text}

    graph, hf = graph_of(node), either.open(models={"cheap": model})
    async with either.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await either.quiet(worker)
        assert hf.saved.calls == 0
        await run.signal("go on")
        assert await run.result(timeout=60) == {"text": "yes"}
    assert len(model.asked) == 1
    assert len(set(model.keys)) == 1
    assert model.keys[0]
    assert seen[0] == seen[1]
    assert isinstance(seen[1], Answer)
    row = await run.get()
    assert (row.tokens, row.cost_usd) == (100, 0.01)
    assert (hf.saved.calls, hf.saved.tokens, hf.saved.usd) == (1, 100, 0.01)
    (call, *_) = (await run.history()).entries
    assert call.details["spent"] == {"tokens": 100, "usd": 0.01}


async def test_an_answer_has_the_type_that_is_asked_for(house: House) -> None:
    model = Cents(lambda request: '```json\n{"risk": "high", "points": 3}\n```')

    async def node(state: Any, ctx: Any) -> Any:
        answer = await ctx.model("cheap", "How risky?", output=Risk, temperature=0.5)
        return answer.value

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        state = await (await hf.start(graph, id="doc-42")).result(timeout=60)
    assert state == {"risk": "high", "points": 3}
    assert model.asked[0].params["temperature"] == 0.5
    assert model.asked[0].output is not None
    assert set(model.asked[0].output["properties"]) == {"risk", "points"}


async def test_the_larger_model_is_asked_when_a_check_fails(house: House) -> None:
    small, medium = Cents(lambda request: "perhaps"), Cents(lambda request: "maybe")
    large = Cents(lambda request: "no")

    async def node(state: Any, ctx: Any) -> Any:
        def check(answer: Answer) -> bool:
            return answer.text in ("yes", "no")

        answer = await ctx.model("small", "Is it?", check=check, fallback=["medium", "large"])
        await ctx.wait(signal("go on"))
        return {"text": answer.text}

    models = {"small": small, "medium": medium, "large": large}
    graph, hf = graph_of(node), house.open(models=models)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"text": "no"}
    assert [len(each.asked) for each in models.values()] == [1, 1, 1]


async def test_the_last_answer_is_accepted_where_none_passes_the_check(house: House) -> None:
    small, large = Cents(lambda request: "perhaps"), Cents(lambda request: "maybe")
    checked: list[str] = []

    async def node(state: Any, ctx: Any) -> Any:
        def check(answer: Answer) -> bool:
            checked.append(answer.text)
            return len(checked) > 2  # says something else when the node runs again

        answer = await ctx.model(
            "small", "Is it?", check=check, fallback="large", on_exhausted="accept"
        )
        await ctx.wait(signal("go on"))
        return {"text": answer.text, "passed": answer.passed}

    graph, hf = graph_of(node), house.open(models={"small": small, "large": large})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await run.signal("go on")
        assert await run.result(timeout=60) == {"text": "maybe", "passed": False}
    assert checked == ["perhaps", "maybe"]
    assert (len(small.asked), len(large.asked)) == (1, 1)


async def test_an_answer_says_whether_it_passed_the_check(house: House) -> None:
    small, large = Cents(lambda request: "perhaps"), Cents(lambda request: "no")

    async def node(state: Any, ctx: Any) -> Any:
        async def ask(**options: Any) -> bool | None:
            answer = await ctx.model("small", "Is it?", fallback="large", **options)
            return answer.passed

        def decided(answer: Answer) -> bool:
            return answer.text == "no"

        return {
            "without": await ask(),
            "passed": await ask(check=decided),
            "accepted": await ask(check=decided, on_exhausted="accept"),
            "shared": await ask(check=lambda _: False, on_exhausted="accept", share=True),
        }

    graph, hf = graph_of(node), house.open(models={"small": small, "large": large})
    async with house.worker(hf, graph):
        got = await (await hf.start(graph)).result(timeout=60)
    assert got == {"without": None, "passed": True, "accepted": True, "shared": False}


async def test_the_last_answer_there_is_is_accepted_where_the_last_model_fails(
    house: House,
) -> None:
    small, large = Cents(lambda request: "perhaps"), Cents()
    large.errors = [ModelRefused("too long", reason="ValidationException")]

    async def node(state: Any, ctx: Any) -> Any:
        def check(answer: Answer) -> bool:
            return False

        answer = await ctx.model(
            "small", "Is it?", check=check, fallback="large", on_exhausted="accept"
        )
        return {"text": answer.text, "passed": answer.passed}

    graph, hf = graph_of(node), house.open(models={"small": small, "large": large})
    async with house.worker(hf, graph):
        got = await (await hf.start(graph)).result(timeout=60)
    assert got == {"text": "perhaps", "passed": False}


async def test_an_error_of_a_check_is_the_nodes_and_the_answer_is_paid_once(house: House) -> None:
    model = Cents()

    def fails(answer: Answer) -> bool:
        raise ZeroDivisionError

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(ZeroDivisionError):
            await ctx.model("cheap", "Is it?", check=fails, on_exhausted="accept")
        for wrong in ("yes", None, True):
            with pytest.raises(InvalidRequest, match="on_exhausted must be 'fail' or 'accept'"):
                await ctx.model("cheap", "Is it?", check=fails, on_exhausted=wrong)
        with pytest.raises(InvalidRequest, match="on_exhausted='accept' needs check="):
            await ctx.model("cheap", "Is it?", on_exhausted="accept")

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        await (await hf.start(graph)).result(timeout=60)
    assert len(model.asked) == 1


async def test_one_that_cannot_answer_is_no_reason_to_give_up(house: House) -> None:
    small, large = Cents(), Cents(lambda request: "no")
    small.errors = [ModelRefused("too long", reason="ValidationException")]

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await ctx.model("small", "Is it?", fallback="large")).text}

    graph, hf = graph_of(node), house.open(models={"small": small, "large": large})
    async with house.worker(hf, graph):
        assert await (await hf.start(graph)).result(timeout=60) == {"text": "no"}


async def _no(answer: Answer) -> bool:
    return False


@pytest.mark.parametrize("check", [_no, lambda answer: re.search("no", answer.text)])
async def test_a_check_says_yes_or_no_and_nothing_else(house: House, check: Any) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidRequest, match="a check must return True or False"):
            await ctx.model("cheap", "Is it?", check=check)

    graph, hf = graph_of(node), house.open(models={"cheap": Cents()})
    async with house.worker(hf, graph):
        await (await hf.start(graph)).result(timeout=60)


async def test_without_another_the_error_says_why(house: House) -> None:
    model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        with pytest.raises(InvalidAnswer, match="did not pass the check"):
            await ctx.model("cheap", "Is it?", check=lambda answer: False)
        with pytest.raises(InvalidAnswer, match="not JSON"):
            await ctx.model("cheap", "Is it?", output=Risk)
        with pytest.raises(UnknownModel, match="no model can have the name"):
            await ctx.model("a#b", "Is it?")
        with pytest.raises(UnknownModel, match="no model can have the name"):
            await ctx.model("cheap", "Is it?", fallback="a#b")
        with pytest.raises(InvalidPrompt):
            await ctx.model("cheap", [])
        model.errors = [ModelRefused("no")]
        with pytest.raises(CallFailed, match="no") as refused:
            await ctx.model("cheap", "Is it?")
        assert refused.value.is_a(ModelRefused)
        return {"asked": len(model.asked)}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        assert await (await hf.start(graph)).result(timeout=60) == {"asked": 3}


async def test_a_throttled_model_is_asked_again_when_it_said_so(house: House) -> None:
    model = Cents()
    model.errors = [ModelUnavailable("later", retry_after_seconds=100), ModelUnavailable("later")]

    async def node(state: Any, ctx: Any) -> Any:
        retry = Retry(attempts=3, backoff=5, jitter=0, on=(ModelUnavailable,))
        return {"text": (await ctx.model("cheap", "Is it?", retry=retry)).text}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).reason == "retry"
        await house.move(99, worker)
        assert len(model.asked) == 1
        await house.move(1.3, worker)
        assert len(model.asked) == 2
        await house.move(10.3, worker)
        assert await run.result(timeout=60) == {"text": "yes"}
    assert len(set(model.keys)) == 1


async def test_a_plain_node_asks_as_well(house: House) -> None:
    model = Cents()

    def node(state: Any, ctx: Any) -> Any:
        return {"text": ctx.model("cheap", "Is it?", max_tokens=5).text}

    graph, hf = graph_of(node), house.open(models={"cheap": model})
    async with house.worker(hf, graph):
        assert await (await hf.start(graph)).result(timeout=60) == {"text": "yes"}


@pytest.mark.parametrize("models", [{"": Cents()}, {"x": object()}, {3: Cents()}])
async def test_what_is_no_model_is_refused(models: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Holdfast("sqlite://:memory:", models=models)
    assert refused.value.field == "models"
