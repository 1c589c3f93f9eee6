"""A worker that lacks a model leaves the run to workers that have it, and says so."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast import Graph, Holdfast, Quota, RunFilter, signal
from holdfast.errors import InvalidGraph, ResourceMissing, RunFailed
from tests.engine.asking import Cents, graph_of
from tests.engine.support import House


async def ask(state: Any, ctx: Any) -> Any:
    return {"text": (await ctx.model("haiku", "Is it?")).text}


async def test_two_workers_of_which_one_has_the_model_finish_all_runs(either: House) -> None:
    graph, model = graph_of(ask), Cents()
    without, able = either.open(), either.open(models={"haiku": model})
    client = either.open()
    async with either.worker(without, graph) as first:
        runs = [await client.start(graph, id=f"doc-{n}") for n in range(4)]
        await either.move(1, first)
        assert first.counts["unserved"] >= 1
        async with either.worker(able, graph) as second:
            await either.move(6, first, second)
            assert [await run.result(timeout=60) for run in runs] == [{"text": "yes"}] * 4
            assert second.counts["finished"] == 4
    assert len(model.asked) == 4


async def test_a_missing_model_is_told_everywhere(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    graph, hf = graph_of(ask), house.open(models={"sonnet": Cents()})
    async with house.worker(hf, graph) as worker:
        with caplog.at_level(logging.WARNING, "holdfast.worker"):
            run = await hf.start(graph, id="doc-42")
            await house.quiet(worker)
        (warning,) = [r.getMessage() for r in caplog.records if "haiku" in r.getMessage()]
        assert "doc-42" in warning
        assert "node 'node' needs model 'haiku'" in warning
        assert f"worker {worker.id} does not have" in warning
        row = await run.get()
        assert (row.status, row.reason, row.owner) == ("waiting", "unserved", None)
        told = f"a worker with model 'haiku', which worker {worker.id} does not have"
        assert [wait.description for wait in row.waits] == [told]
        with pytest.raises(TimeoutError, match="it waits for a worker with model 'haiku'"):
            await run.result(timeout=0.01)
        page = await hf.list(RunFilter(reason="unserved"))
        assert [(each.id, each.reason) for each in page.runs] == [("doc-42", "unserved")]
        assert not (await hf.list(RunFilter(reason="signal"))).runs
        assert row.retries_left == 0
        assert row.failure is None


async def test_the_backoff_grows_and_the_worker_tries_again_by_itself(house: House) -> None:
    graph = graph_of(ask)
    hf = house.open()
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
        backoffs: list[float] = []
        for _ in range(12):
            row = await run.get()
            assert row.due_at is not None
            backoffs.append((row.due_at - row.updated_at).total_seconds())
            # The worker leaves a due run to others for 10 seconds, then it claims the run itself.
            await house.move(backoffs[-1] + 9.5, worker)
            assert (await run.get()).epoch == row.epoch
            await house.move(1, worker)
            assert (await run.get()).epoch > row.epoch
        assert backoffs[0] == 5
        assert backoffs == sorted(backoffs)
        assert backoffs[-1] == 300


async def test_what_the_node_did_before_is_kept_and_no_attempt_counts(house: House) -> None:
    made: list[str] = []

    async def charge() -> str:
        made.append("charged")
        return "ok"

    async def node(state: Any, ctx: Any) -> Any:
        paid = await ctx.call(charge)
        try:
            answer = await ctx.model("haiku", "Is it?")
        except Exception:  # a node that catches everything does not take it for a failure
            return {"text": "caught"}
        return {"text": f"{paid} {answer.text}"}

    graph = graph_of(node)
    without, able = house.open(), house.open(models={"haiku": Cents()})
    async with house.worker(without, graph) as first:
        run = await without.start(graph)
        await house.quiet(first)
    async with house.worker(able, graph) as second:
        await house.move(6, second)
        assert await run.result(timeout=60) == {"text": "ok yes"}
    assert made == ["charged"]
    assert "attempt_failed" not in [entry.kind for entry in (await run.history()).entries]


async def test_a_node_that_may_not_pause_is_left_to_others_as_well(house: House) -> None:
    graph = graph_of(ask, pausable="no")
    without, able = house.open(), house.open(models={"haiku": Cents()})
    async with house.worker(without, graph) as first:
        run = await without.start(graph, durability="on_pause")
        await house.quiet(first)
        assert (await run.get()).reason == "unserved"
    async with house.worker(able, graph) as second:
        await house.move(6, second)
        assert await run.result(timeout=60) == {"text": "yes"}


async def test_a_missing_fallback_leaves_the_run_before_a_model_is_paid(house: House) -> None:
    first_model = Cents()

    async def node(state: Any, ctx: Any) -> Any:
        return {"text": (await ctx.model("sonnet", "Is it?", fallback="haiku")).text}

    graph, hf = graph_of(node), house.open(models={"sonnet": first_model})
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
        assert (await run.get()).reason == "unserved"
    assert not first_model.asked


async def test_other_branches_go_on(house: House) -> None:
    graph = Graph("g", dict)
    done = asyncio.Event()

    @graph.node
    async def begin(state: Any) -> Any: ...

    @graph.node(writes=["asked"])
    async def asks(state: Any, ctx: Any) -> Any:
        return {"asked": (await ctx.model("haiku", "Is it?")).text}

    @graph.node(writes=["waited"])
    async def waits(state: Any, ctx: Any) -> Any:
        payload = await ctx.wait(signal("go"))
        done.set()
        return {"waited": payload}

    @graph.node
    async def end(state: Any) -> Any: ...

    graph.fork(begin, [asks, waits], join=end)
    without, able = house.open(), house.open(models={"haiku": Cents()})
    async with house.worker(without, graph) as first:
        run = await without.start(graph)
        await house.quiet(first)
        row = await run.get()
        assert (row.reason, len(row.waits)) == ("unserved", 2)
        # Not claimed at once: another worker may have the model.
        await run.signal("go", 7)
        await house.move(10.5, first)
        assert done.is_set()
        assert (await run.get()).reason == "unserved"
    async with house.worker(able, graph) as second:
        await house.move(20, second)
        assert await run.result(timeout=60) == {"asked": "yes", "waited": 7}


async def test_a_run_of_such_a_graph_is_left_to_others_first(house: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        if state.get("plain"):
            return {"text": "plain"}
        return await ask(state, ctx)

    graph, other = graph_of(node), graph_of(lambda state: None, "other")
    hf = house.open()
    async with house.worker(hf, graph, other) as worker:
        await hf.start(graph)
        await house.quiet(worker)
        plain = await hf.start(graph, {"plain": True})
        assert (await plain.get()).status == "ready"
        assert await (await hf.start(other)).result(timeout=60) == {}
        await house.move(9, worker)
        assert (await plain.get()).status == "ready"
        await house.move(2, worker)
        assert await plain.result(timeout=60) == {"plain": True, "text": "plain"}
        # The worker forgets after a while.
        await house.move(100_000, worker)
        await hf.run((await hf.list(RunFilter(reason="unserved"))).runs[0].id).cancel()
        await house.move(11, worker)
        await house.move(601, worker)
        again = await hf.start(graph, {"plain": True})
        assert await again.result(timeout=60) == {"plain": True, "text": "plain"}


# --- what a graph declares ------------------------------------------------------------------------


def declaring(**options: Any) -> Graph:
    graph = Graph("triage", dict, **options)
    graph.node(ask)
    return graph


async def test_a_worker_without_a_declared_model_refuses_to_start(hf: Holdfast) -> None:
    graph = declaring(models=["haiku"])
    message = r"graph 'triage' needs model 'haiku'.*Holdfast\(models=\{…\}\).*--models"
    with pytest.raises(ResourceMissing, match=message) as missing:
        hf.worker([graph])
    assert (missing.value.graph, missing.value.missing) == ("triage", ("model 'haiku'",))
    assert (await (await hf.start(graph)).get()).status == "ready"  # a start needs no model


async def test_a_worker_without_a_declared_quota_refuses_to_start(house: House) -> None:
    graph, model = declaring(models=["haiku"], quotas=["haiku"]), Cents()
    with pytest.raises(ResourceMissing, match=r"a quota for model 'haiku'.*--quotas"):
        house.open(models={"haiku": model}).worker([graph])
    quotas = {"haiku": Quota("haiku", requests=10)}
    hf = house.open(models={"haiku": model}, quotas=quotas)
    async with house.worker(hf, graph):
        assert await (await hf.start(graph)).result(timeout=60) == {"text": "yes"}


async def test_a_model_that_the_graph_does_not_declare_fails_the_run(house: House) -> None:
    graph = declaring(models=["sonnet"])
    hf = house.open(models={"sonnet": Cents(), "haiku": Cents()})
    async with house.worker(hf, graph):
        with pytest.raises(
            RunFailed, match=r"model 'haiku': .* or @workflow\(models=…\); .*: sonnet"
        ):
            await (await hf.start(graph)).result(timeout=60)


async def test_an_included_graph_declares_for_itself(house: House) -> None:
    outer = Graph("outer", dict, models=["sonnet"])
    outer.include(declaring(models=["haiku"]), takes={}, gives={"text": "text"})
    with pytest.raises(ResourceMissing, match="haiku"):
        house.open(models={"sonnet": Cents()}).worker([outer])
    loose = Graph("loose", dict, models=["sonnet"])
    loose.include(declaring(), takes={}, gives={"text": "text"})
    hf = house.open(models={"sonnet": Cents(), "haiku": Cents()})
    async with house.worker(hf, outer, loose):
        assert await (await hf.start(outer)).result(timeout=60) == {"text": "yes"}
        assert await (await hf.start(loose)).result(timeout=60) == {"text": "yes"}


@pytest.mark.parametrize(
    "options",
    [
        {"models": "haiku"},
        {"models": {"haiku": 1}},
        {"models": [1]},
        {"models": [""]},
        {"models": 7},
        {"quotas": "haiku"},
        {"quotas": ["haiku"]},
        {"models": ["sonnet"], "quotas": ["haiku"]},
    ],
)
def test_what_is_declared_must_be_names_of_models(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraph, match=r"(models|quotas) must"):
        Graph("triage", dict, **options)
