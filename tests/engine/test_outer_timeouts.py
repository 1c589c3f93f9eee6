"""A wait inside of a timeout of asyncio is an error that names `max_wait`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.errors import RunFailed
from tests.engine.support import House

child = Graph("child", dict)


@child.node
async def waits_long(state: Any, ctx: Any) -> Any:
    return {"got": await ctx.wait(signal("never"))}


def graph_of(function: Any, **options: Any) -> Graph:
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


WAITS: dict[str, Callable[[Any], Any]] = {
    "signal": lambda ctx: ctx.wait(signal("approved")),
    "sleep": lambda ctx: ctx.sleep(3600),
    "child": lambda ctx: ctx.run(child),
}


async def by_wait_for(wait: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(wait, 60)


async def by_timeout(wait: Awaitable[Any]) -> Any:
    async with asyncio.timeout(60):
        return await wait


async def by_timeout_at(wait: Awaitable[Any]) -> Any:
    async with asyncio.timeout_at(asyncio.get_running_loop().time() + 60):
        return await wait


async def by_timeout_of_gather(wait: Any) -> Any:
    async with asyncio.timeout(60):
        return (await asyncio.gather(wait))[0]


async def by_wait_for_gather(wait: Any) -> Any:
    return (await asyncio.wait_for(asyncio.gather(wait), 60))[0]


async def by_gather_of_wait_for(wait: Any) -> Any:
    return (await asyncio.gather(asyncio.wait_for(wait, 60)))[0]


async def by_wait(wait: Any) -> Any:
    done, _ = await asyncio.wait([asyncio.create_task(wait)], timeout=60)
    return next(iter(done)).result()


async def by_shielded_wait_for(wait: Any) -> Any:
    return await asyncio.wait_for(asyncio.shield(wait), 60)


async def by_swallowed_wait_for(wait: Any) -> Any:
    try:
        return await asyncio.wait_for(wait, 60)
    except Exception:
        return "denied"


LOST = [
    by_wait_for,
    by_timeout,
    by_timeout_at,
    by_timeout_of_gather,
    by_wait_for_gather,
    by_gather_of_wait_for,
    by_wait,
    by_shielded_wait_for,
    by_swallowed_wait_for,
]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("around", LOST, ids=lambda around: around.__name__)
async def test_a_wait_inside_of_a_timeout_fails_the_node(
    house: House, hf: Holdfast, around: Any, wait: str
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        return {"got": await around(WAITS[wait](ctx))}

    graph = graph_of(node, timeout=600)
    async with house.worker(hf, graph, child):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed, match="max_wait=") as failed:
            await run.result(timeout=5)
    assert failed.value.kind == "WaitInsideTimeout"
    assert "node 'node' waits inside of asyncio." in str(failed.value)


async def alone(wait: Awaitable[Any]) -> Any:
    return await wait


async def in_gather(wait: Any) -> Any:
    return (await asyncio.gather(wait))[0]


async def in_gather_of_exceptions(wait: Any) -> Any:
    return (await asyncio.gather(wait, return_exceptions=True))[0]


async def in_shield(wait: Any) -> Any:
    return await asyncio.shield(wait)


async def in_group(wait: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(wait)
    return task.result()


async def in_wait(wait: Any) -> Any:
    done, _ = await asyncio.wait([asyncio.create_task(wait)])
    return next(iter(done)).result()


async def in_wait_for_without_timeout(wait: Any) -> Any:
    return await asyncio.wait_for(wait, None)


async def in_timeout_without_time(wait: Any) -> Any:
    async with asyncio.timeout(None):
        return await wait


async def in_as_completed(wait: Any) -> Any:
    for each in asyncio.as_completed([wait]):
        return await each


async def after_a_timeout(wait: Any) -> Any:
    async with asyncio.timeout(60):
        await asyncio.wait_for(asyncio.gather(), 60)
    return await wait


LEGITIMATE = [
    alone,
    in_gather,
    in_gather_of_exceptions,
    in_shield,
    in_group,
    in_wait,
    in_wait_for_without_timeout,
    in_timeout_without_time,
    in_as_completed,
    after_a_timeout,
]


@pytest.mark.parametrize("around", LEGITIMATE, ids=lambda around: around.__name__)
async def test_a_wait_in_tasks_pauses_the_run_and_goes_on(
    house: House, hf: Holdfast, around: Any
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        return {"got": await around(ctx.wait(signal("approved"), max_wait=60))}

    graph = graph_of(node, timeout=600)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await run.signal("approved", "yes")
        await house.quiet(worker)
        assert await run.result(timeout=5) == {"got": "yes"}


async def test_a_call_and_a_short_sleep_may_have_a_timeout(house: House, hf: Holdfast) -> None:
    async def double(number: int) -> int:
        return 2 * number

    async def node(state: Any, ctx: Any) -> Any:
        async with asyncio.timeout(60):
            await ctx.sleep(0)
            return {"got": await asyncio.wait_for(ctx.call(double, 2), 60)}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        await house.move(1, worker)
        assert await run.result(timeout=5) == {"got": 4}


async def test_a_tool_with_a_timeout_may_wait(house: House, hf: Holdfast) -> None:
    async def ask(ctx: Any) -> Any:
        return await ctx.wait(signal("approved"))

    async def node(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.with_options(timeout=60).call(ask)}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph, id="doc-42")
        await house.quiet(worker)
        assert (await run.get()).status == "waiting"
        await run.signal("approved", "yes")
        await house.quiet(worker)
        assert await run.result(timeout=5) == {"got": "yes"}
