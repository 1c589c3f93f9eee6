"""Which tasks of an event loop await what: found without their help, by looking at them.

asyncio tells what a task awaits, but not which tasks bring that about: a task inside of
``asyncio.gather`` awaits a future which the ends of other tasks resolve. The callbacks of those
tasks refer to the future, so they are followed backwards.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeAlias, cast

__all__ = ["AwaitGraph", "suspended_frames"]

AnyFuture: TypeAlias = "asyncio.Future[Any]"

_AWAITABLE_ATTRIBUTES = (("cr_frame", "cr_await"), ("ag_frame", "ag_await"))
# What an `async for` and a coroutine's __await__ put between two frames. They show nothing of
# themselves, but the garbage collector knows what they refer to.
_WRAPPERS = frozenset(
    {"async_generator_asend", "async_generator_athrow", "anext_awaitable", "coroutine_wrapper"}
)


class AwaitGraph:
    """Who awaits whom among the tasks of the running loop, at the moment of its creation."""

    def __init__(self) -> None:
        self.tasks = asyncio.all_tasks() - {asyncio.current_task()}
        self._resolvers: defaultdict[AnyFuture, list[AnyFuture]] = defaultdict(list)
        queue: list[AnyFuture] = list(self.tasks)
        seen = set(queue)
        while queue:
            future = queue.pop()
            for resolved in _resolved_by(future):
                self._resolvers[resolved].append(future)
                if resolved not in seen:
                    seen.add(resolved)
                    queue.append(resolved)

    @staticmethod
    def awaited(task: AnyFuture) -> AnyFuture | None:
        """Return the future that a task awaits; None if it does not wait."""
        waiter = cast("AnyFuture | None", getattr(task, "_fut_waiter", None))
        return None if waiter is None or waiter.done() else waiter

    def tasks_behind(self, future: AnyFuture) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of which one has to end before the future is resolved."""
        found: list[asyncio.Task[Any]] = []
        queue, seen = [future], {future}
        while queue:
            each = queue.pop()
            if isinstance(each, asyncio.Task):
                found.append(each)
                continue
            for resolver in self._resolvers.get(each, ()):
                if resolver not in seen and not resolver.done():
                    seen.add(resolver)
                    queue.append(resolver)
        return found


def suspended_frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a task that waits, the outermost first."""
    frames: list[FrameType] = []
    awaitable: Any = task.get_coro()
    while awaitable is not None:
        for frame_attribute, await_attribute in _AWAITABLE_ATTRIBUTES:
            if hasattr(awaitable, frame_attribute):
                frame = getattr(awaitable, frame_attribute)
                if frame is not None:
                    frames.append(frame)
                awaitable = getattr(awaitable, await_attribute)
                break
        else:
            awaitable = _unwrapped(awaitable)
    return frames


def _unwrapped(awaitable: Any) -> Any:
    if type(awaitable).__name__ not in _WRAPPERS:
        return None
    inner: list[Any] = gc.get_referents(awaitable)
    for each in inner:
        if inspect.iscoroutine(each) or inspect.isasyncgen(each):
            return each
    return next((each for each in inner if type(each).__name__ in _WRAPPERS), None)


def _resolved_by(future: AnyFuture) -> Iterator[AnyFuture]:
    """Yield the futures that the callbacks of a future refer to: its end resolves them."""
    entries: Any = getattr(future, "_callbacks", None) or ()
    for callback, _ in entries:
        while isinstance(callback, functools.partial):
            yield from _futures_among(cast("functools.partial[Any]", callback).args)
            callback = cast("functools.partial[Any]", callback).func
        yield from _futures_among(
            _content(cell) for cell in getattr(callback, "__closure__", None) or ()
        )
        # A TaskGroup.
        owner = getattr(callback, "__self__", None)
        yield from _futures_among([getattr(owner, "_on_completed_fut", None)])


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _futures_among(values: Any) -> Iterator[AnyFuture]:
    for value in values:
        if asyncio.isfuture(value) and not value.done():
            yield value
