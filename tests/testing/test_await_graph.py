"""Who awaits whom: found in every way in which asyncio lets one task wait for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.clock import ManualClock
from holdfast.testing.await_graph import AwaitGraph, suspended_frames


async def leaf(event: asyncio.Event) -> None:
    await event.wait()


async def by_task(event: asyncio.Event) -> None:
    await asyncio.ensure_future(leaf(event))


async def by_gather(event: asyncio.Event) -> None:
    await asyncio.gather(leaf(event), asyncio.gather(leaf(event)))


async def by_wait(event: asyncio.Event) -> None:
    await asyncio.wait([asyncio.ensure_future(leaf(event))])


async def by_wait_for(event: asyncio.Event) -> None:
    await asyncio.wait_for(leaf(event), 60)


async def by_shield(event: asyncio.Event) -> None:
    await asyncio.shield(asyncio.ensure_future(leaf(event)))


async def by_group(event: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(event))


async def run_until_blocked(work: Any) -> asyncio.Task[None]:
    task = asyncio.ensure_future(work)
    loop: Any = asyncio.get_running_loop()
    while loop._ready:
        await ManualClock().sleep(0)
    return task


@pytest.mark.parametrize("work", [by_task, by_gather, by_wait, by_wait_for, by_shield, by_group])
async def test_the_tasks_behind_a_future_are_found(work: Any) -> None:
    event = asyncio.Event()
    task = await run_until_blocked(work(event))
    graph = AwaitGraph()
    found: list[asyncio.Task[Any]] = [task]
    names: set[str] = set()
    while found:
        each = found.pop()
        awaited = graph.awaited(each)
        assert awaited is not None
        names.add(suspended_frames(each)[0].f_code.co_name)
        names.add(suspended_frames(each)[-1].f_code.co_name)
        found += graph.tasks_behind(awaited)
    assert "wait" in names, "the end of the chain is Event.wait"
    event.set()
    await task


async def test_a_future_that_no_task_resolves_has_none_behind() -> None:
    event = asyncio.Event()
    task = await run_until_blocked(leaf(event))
    graph = AwaitGraph()
    awaited = graph.awaited(task)
    assert awaited is not None
    assert graph.tasks_behind(awaited) == []
    event.set()
    await task
    assert AwaitGraph.awaited(task) is None


async def test_frames_inside_of_generators_and_context_managers() -> None:
    event = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        await leaf(event)
        yield 1

    @asynccontextmanager
    async def entered() -> AsyncIterator[None]:
        async for _ in numbers():
            yield

    class Awaitable:
        def __await__(self) -> Any:
            return outer().__await__()

    async def outer() -> None:
        async with entered():
            pass

    async def root() -> None:
        await Awaitable()

    task = await run_until_blocked(root())
    names = [frame.f_code.co_name for frame in suspended_frames(task)]
    assert names == ["root", "outer", "__aenter__", "entered", "numbers", "leaf", "wait"]
    event.set()
    await task
