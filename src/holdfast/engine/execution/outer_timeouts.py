"""Finds the timeout of asyncio that a wait is inside of.

A wait without an answer ends the node and pauses the run. A timeout around the wait ends with the
node, and begins anew when the run resumes: it would never end the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import CodeType, CoroutineType
from typing import Any, cast

__all__ = ["outer_timeout"]

# Coroutine functions that end what they await after their argument `timeout`.
_TIMED: dict[CodeType, str] = {
    asyncio.wait_for.__code__: "asyncio.wait_for",
    asyncio.wait.__code__: "asyncio.wait",
}


def outer_timeout(node_task: asyncio.Task[Any] | None, own: object) -> str | None:
    """Return the name of the timeout around the current task's code; None if there is none.

    ``node_task`` runs the node, and may await the current task. ``own`` is the timeout of the node
    itself, which does not count. What tasks between these two await is not known.
    """
    current = asyncio.current_task()
    if current is not node_task and node_task is not None:
        name = _timed_await(node_task)
        if name is not None:
            return name
    if current is not None and _is_waited_for(current):
        return "asyncio.wait_for"
    tasks = [task for task in (current, node_task) if task is not None]
    return _scheduled_timeout(tasks, own)


def _timed_await(task: asyncio.Task[Any]) -> str | None:
    """Return the function with a timeout that a suspended task awaits."""
    coroutine: Any = task.get_coro()
    while isinstance(coroutine, CoroutineType):
        awaited = cast("CoroutineType[Any, Any, Any]", coroutine)
        name = _TIMED.get(awaited.cr_code)
        frame = awaited.cr_frame
        if name is not None and frame is not None and frame.f_locals.get("timeout") is not None:
            return name
        coroutine = awaited.cr_await
    return None


def _is_waited_for(task: asyncio.Task[Any]) -> bool:
    """Return whether `asyncio.wait_for` of Python 3.11 awaits a task, which it created."""
    release = getattr(asyncio.tasks, "_release_waiter", None)
    callbacks: Iterable[Any] = getattr(task, "_callbacks", None) or ()
    return release is not None and any(
        getattr(callback, "func", None) is release for callback, *_ in callbacks
    )


def _scheduled_timeout(tasks: Iterable[asyncio.Task[Any]], own: object) -> str | None:
    """Return the name of a timer that cancels one of the tasks.

    asyncio does not tell which timeouts a task is in. Its event loops list their timers; with
    another event loop, nothing is found.
    """
    wanted = set(tasks)
    timers: Iterable[Any] = getattr(asyncio.get_running_loop(), "_scheduled", ())
    for timer in timers:
        timeout: Any = getattr(getattr(timer, "_callback", None), "__self__", None)
        if timeout is None or timeout is own or timer.cancelled():
            continue
        # asyncio.timeout and the package async_timeout keep their task in one, anyio in the other.
        task = getattr(timeout, "_task", None) or getattr(timeout, "_host_task", None)
        if isinstance(task, asyncio.Task) and task in wanted:
            is_asyncio = isinstance(timeout, asyncio.Timeout)
            return "asyncio.timeout" if is_asyncio else type(timeout).__qualname__
    return None
