"""A node that forgets an `await` fails; it does not finish as if its wait had been answered."""

from __future__ import annotations

import asyncio
import inspect
import linecache
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Graph, Holdfast, signal
from holdfast.engine.effects.begun_requests import BegunRequests
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.effects.call_options import Caller
from holdfast.engine.execution.child import Child
from holdfast.engine.execution.context import Context
from holdfast.errors import RunFailed, WaitTimedOut
from holdfast.integrations.offline import Offline
from tests.engine.support import House

child = Graph("child", dict)


@child.node
async def only(state: Any) -> Any:
    return {"done": True}


async def double(number: int) -> int:
    return 2 * number


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def graph_of(function: Any, **options: Any) -> Graph:
    graph = Graph("g", dict)
    graph.node(name="node", **options)(function)
    return graph


async def failure_of(house: House, function: Any) -> RunFailed:
    hf, graph = house.open(models={"small": Offline()}), graph_of(function)
    async with house.worker(hf, graph, child):
        run = await hf.start(graph, id="doc-42")
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=5)
    return failed.value


FORGOTTEN: dict[str, Callable[[Any], Any]] = {
    "ctx.wait": lambda ctx: ctx.wait(signal("approved")),
    "ctx.sleep": lambda ctx: ctx.sleep(60),
    "ctx.call": lambda ctx: ctx.call(double, 1),
    "ctx.with_options(…).call": lambda ctx: ctx.with_options(key="k").call(double, 1),
    "ctx.model": lambda ctx: ctx.model("small", "Is it?"),
    "ctx.start": lambda ctx: ctx.start(child),
    "ctx.run": lambda ctx: ctx.run(child),
    "child.result": lambda ctx: ctx.child("doc-43").result(),
}


@pytest.mark.parametrize("shown", FORGOTTEN)
@pytest.mark.parametrize("how", ["dropped", "kept", "returned", "last"])
async def test_a_request_that_is_not_awaited_fails_the_node(
    house: House, shown: str, how: str
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        if how == "last":
            assert await ctx.call(double, 4) == 8
        left = FORGOTTEN[shown](ctx)
        if how == "dropped":
            del left
        return left if how == "returned" else {}

    failed = await failure_of(house, node)
    assert failed.kind == "NotAwaited"
    assert f"node 'node' did not await {shown}() at {__file__}:" in str(failed)
    line = int(str(failed).split(f"{__file__}:")[1].split(":")[0])
    assert linecache.getline(__file__, line).strip().startswith(f'"{shown}": lambda ctx:')


async def test_a_call_of_a_coroutine_says_what_to_write(house: House) -> None:
    made: list[Any] = []

    async def node(state: Any, ctx: Any) -> Any:
        made.append(double(4))
        await ctx.call(made[0])

    failed = await failure_of(house, node)
    assert failed.kind == "InvalidRequest"
    assert "got the coroutine double(…): write ctx.call(double, …)" in str(failed)
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


async def test_a_wait_in_a_task_that_is_not_awaited_fails_the_node(house: House) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def node(state: Any, ctx: Any) -> Any:
        tasks.append(asyncio.create_task(ctx.wait(signal("approved"))))
        return {}

    assert (await failure_of(house, node)).kind == "NotAwaited"
    await asyncio.wait(tasks)
    assert tasks[0].cancelled()


async def test_a_sleep_that_a_task_has_begun_fails_the_node(house: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        sleeping = asyncio.create_task(ctx.sleep(1))
        await asyncio.create_task(double(1))
        state["kept"] = sleeping
        return {}

    assert "ctx.sleep() at" in str(await failure_of(house, node))


async def test_calls_in_tasks_are_waited_for(house: House, hf: Holdfast) -> None:
    """As with the other calls of a gather that one call ended."""
    made: list[int] = []
    goes_on = asyncio.Event()

    async def slow(number: int) -> None:
        await goes_on.wait()
        made.append(number)

    async def fails() -> None:
        asyncio.get_running_loop().call_soon(goes_on.set)
        raise ValueError

    async def node(state: Any, ctx: Any) -> Any:
        try:
            await asyncio.gather(ctx.call(fails), *(ctx.call(slow, n) for n in range(3)))
        except Exception:
            task = asyncio.create_task(ctx.call(double, 2))
            task.add_done_callback(lambda done: made.append(done.result()))
        return {}

    graph = graph_of(node)
    async with house.worker(hf, graph):
        run = await hf.start(graph)
        assert await run.result(timeout=5) == {}
    assert sorted(made) == [0, 1, 2, 4]


async def test_a_request_that_the_node_cancelled_is_none_that_it_forgot(
    house: House, hf: Holdfast
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        asyncio.create_task(ctx.sleep(1)).cancel()
        ctx.sleep(1).close()
        return {"ok": True}

    graph = graph_of(node)
    async with house.worker(hf, graph):
        assert await (await hf.start(graph)).result(timeout=5) == {"ok": True}


async def test_waits_that_a_pause_keeps_from_their_await_are_not_forgotten(
    house: House, hf: Holdfast
) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        waits = [ctx.wait(signal(name)) for name in ("a", "b")]
        return {"got": [await wait for wait in waits]}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
        for name in ("a", "b"):
            assert (await run.get()).status == "waiting"
            await run.signal(name, name)
            await house.quiet(worker)
        assert await run.result(timeout=5) == {"got": ["a", "b"]}


async def test_a_node_that_fails_says_its_own_error(house: House) -> None:
    async def node(state: Any, ctx: Any) -> Any:
        left = ctx.wait(signal("approved"))
        raise ValueError(f"torn {type(left).__name__}")

    assert (await failure_of(house, node)).kind == "ValueError"


async def test_a_tool_that_forgets_an_await_fails_before_its_result_is_recorded(
    house: House,
) -> None:
    """Otherwise the next attempt of the node gets the recorded result, and finishes."""

    async def approve(ctx: Any) -> str:
        ctx.wait(signal("approved"))
        return "approved"

    async def node(state: Any, ctx: Any) -> Any:
        return {"got": await ctx.call(approve)}

    failed = await failure_of(house, node)
    assert failed.kind == "CallFailed"
    assert "did not await ctx.wait() at" in str(failed)


async def test_a_plain_node_has_nothing_to_await(house: House, hf: Holdfast) -> None:
    def node(state: Any, ctx: Any) -> Any:
        try:
            ctx.wait(signal("approved"), max_wait=0.001)
        except WaitTimedOut:
            return {"got": [ctx.call(double, number) for number in range(100)]}

    graph = graph_of(node)
    async with house.worker(hf, graph) as worker:
        run = await hf.start(graph)
        await house.quiet(worker)
        await house.move(1, worker)
        assert len((await run.result(timeout=5))["got"]) == 100


async def test_finished_requests_are_not_kept() -> None:
    async def request() -> None: ...

    requests = BegunRequests(CallIds())
    for _ in range(10_000):
        coroutine: Any = request()
        requests.add(coroutine, request.__code__, 0)
        await coroutine
        assert len(requests._begun) <= 65
    await requests.check_finished("node 'n'")


@pytest.mark.parametrize("owner", [Context, Child, Caller])
def test_every_coroutine_of_the_context_is_tracked(owner: type) -> None:
    untracked = [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(value)
    ]
    assert untracked == []
