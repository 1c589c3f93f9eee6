"""Finds what a node asked of its context and never awaited.

A forgotten ``await`` would let the node finish as if its wait had been answered. So the context
notes each coroutine that it hands out, and the node fails if one of them is left at its end.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import CodeType, CoroutineType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from holdfast.engine.effects.call_ids import CallIds
from holdfast.errors import NotAwaited

__all__ = ["BegunRequests", "tracked"]

MethodT = TypeVar("MethodT", bound=Callable[..., Coroutine[Any, Any, Any]])

# A list of up to this many requests is not searched for those that have finished.
_KEPT_MIN = 64
_SHOWN_MAX = 3
# How a user writes these requests; a call or a question that a task makes is waited for.
_CALLS = {
    "Context.call": "ctx.call",
    "Context.model": "ctx.model",
    "Caller.call": "ctx.with_options(…).call",
}
_OTHERS = {"Child.result": "child.result"}

_Coroutine: TypeAlias = "CoroutineType[Any, Any, Any]"
_Entry: TypeAlias = "tuple[_Coroutine, CodeType, int, str]"


def tracked(method: MethodT) -> MethodT:
    """Let the node fail if it does not await what this method returns.

    The object of the method has the `BegunRequests` of its visit as ``_requests``.
    """

    @functools.wraps(method)
    def begin(owner: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        coroutine = method(owner, *args, **kwargs)
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        owner._requests.add(coroutine, frame.f_code, frame.f_lasti)
        return coroutine

    return cast(MethodT, begin)


class _Left(NamedTuple):
    """A request that has not finished."""

    coroutine: _Coroutine
    code: CodeType
    instruction: int
    task: asyncio.Task[Any] | None
    """The task that runs it, or will; None if it was not awaited."""

    @property
    def is_call(self) -> bool:
        return self.coroutine.__qualname__ in _CALLS

    @property
    def fills_task(self) -> bool:
        """Whether the task runs nothing but this request."""
        return self.task is not None and self.task.get_coro() is self.coroutine

    @property
    def is_forgotten(self) -> bool:
        """Whether the node must not finish: it goes on, and no code of the node cancelled it."""
        if self.coroutine.cr_frame is None:
            return False
        return self.task is None or not (self.is_call or self.task.cancelling())

    def __str__(self) -> str:
        name = self.coroutine.__qualname__
        shown = _CALLS.get(name) or _OTHERS.get(name) or f"ctx.{self.coroutine.__name__}"
        return f"{shown}() at {self.code.co_filename}:{_line(self.code, self.instruction)}"


class BegunRequests:
    """The coroutines that the context of one visit handed out, until they have finished."""

    def __init__(self, call_ids: CallIds) -> None:
        self._call_ids = call_ids
        self._thread = threading.get_ident()
        self._begun: list[_Entry] = []
        self._kept_max = _KEPT_MIN

    def add(self, coroutine: _Coroutine, code: CodeType, instruction: int) -> None:
        """Note a coroutine, and the instruction of the code that asked for it."""
        if threading.get_ident() != self._thread:
            return  # a plain function, which waits for the result
        begun = self._begun
        begun.append((coroutine, code, instruction, self._call_ids.current_path()))
        if len(begun) > self._kept_max:
            self._begun = [each for each in begun if each[0].cr_frame is not None]
            self._kept_max = max(_KEPT_MIN, 2 * len(self._begun))

    async def check_finished(self, who: str, *, within: str = "") -> None:
        """Check that nothing is left of what a node, or one of its calls, asked for.

        A call that a task makes is waited for, as its record would be lost. ``within`` is the scope
        of the call; empty for the node.

        Raises:
            NotAwaited: the node did not await a request, or not until its end.
        """
        left = self._left(within)
        calls = [each.task for each in left if each.is_call and each.fills_task and each.task]
        if calls:
            await asyncio.wait(calls)
        forgotten = [each for each in left if each.is_forgotten]
        if not forgotten:
            return
        for each in forgotten:
            _stop(each)
        shown = ", ".join(map(str, forgotten[:_SHOWN_MAX]))
        more = f" and {len(forgotten) - _SHOWN_MAX} more" if len(forgotten) > _SHOWN_MAX else ""
        raise NotAwaited(f"{who} did not await {shown}{more}: write `await` before each of them")

    def close(self) -> None:
        """Drop what was never awaited, without Python's warning about it."""
        for each in self._left(""):
            if each.task is None:
                _stop(each)
        self._begun = []

    def _left(self, within: str) -> list[_Left]:
        entries = [
            each
            for each in self._begun
            if each[0].cr_frame is not None and each[3].startswith(within)
        ]
        if not entries:
            return []
        running = dict(_running_coroutines(asyncio.all_tasks()))
        return [_Left(*each[:3], running.get(each[0])) for each in entries]


def _stop(left: _Left) -> None:
    if left.task is None:
        if inspect.getcoroutinestate(left.coroutine) == inspect.CORO_CREATED:
            left.coroutine.close()
    elif left.fills_task:
        left.task.cancel()


def _running_coroutines(
    tasks: Iterable[asyncio.Task[Any]],
) -> Iterator[tuple[Any, asyncio.Task[Any]]]:
    """Yield each coroutine that a task awaits, with that task."""
    for task in tasks:
        coroutine: Any = task.get_coro()
        while isinstance(coroutine, CoroutineType):
            yield cast(Any, coroutine), task
            coroutine = cast(Any, coroutine).cr_await


def _line(code: CodeType, instruction: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end and line)
    return next(lines, code.co_firstlineno)
