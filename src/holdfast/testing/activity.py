"""What goes on in the process of a test: what can proceed before the clock moves, and what cannot.

A task can proceed by itself if code of the user awaits something real, or if the store is at work.
A task of the engine that awaits the clock, or something that another task does, cannot.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from holdfast.engine.execution.performer import perform
from holdfast.testing.await_graph import AnyFuture, AwaitGraph, suspended_frames

__all__ = ["Activity", "describe_threads", "observe_activity"]

_ENGINE, _STORE, _USER = "engine", "store", "user"
# Code of these packages awaits services or answers for the user, as code of the user does.
_OUTSIDE = ("holdfast.integrations.", "holdfast.testing.scripted_model")
_THREADS = "asyncio.threads"


class Activity(NamedTuple):
    """What goes on while the clock stands still."""

    busy: Sequence[str]
    """What proceeds by itself, described for people."""
    next_wake_ms: int | None
    """When the first task wakes that works for a run; None if none sleeps."""


class _Label(NamedTuple):
    run: str = ""
    node: str = ""
    place: str = ""
    """Where the code of the user is that waits for this task."""

    def __str__(self) -> str:
        return f"run {self.run!r}, node {self.node!r}" if self.run else "no run"


def observe_activity(sleepers: Mapping[AnyFuture, int]) -> Activity:
    """Return what goes on in the running loop; ``sleepers`` wake by the clock."""
    return _Observer(sleepers).observe()


def describe_threads(names_with: str) -> list[str]:
    """Return where the threads with such a name are."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    found: list[str] = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0) if names_with in thread.name else None
        stack: list[FrameType] = []
        while frame is not None:
            stack.insert(0, frame)
            frame = frame.f_back
        ours = [each for each in stack if _owner_of(each) == _USER]
        if ours:
            found.append(f"thread {thread.name}: {_place(ours[-1])}")
    return found


class _Observer:
    def __init__(self, sleepers: Mapping[AnyFuture, int]) -> None:
        self._sleepers = sleepers
        self._graph = AwaitGraph()
        self._seen: set[asyncio.Task[Any]] = set()
        self._busy: list[str] = []
        self._wakes: list[int] = []

    def observe(self) -> Activity:
        frames = {task: suspended_frames(task) for task in self._graph.tasks}
        engine = [task for task, stack in frames.items() if stack and _is_engine(stack[0])]
        # A run's driver first, so that what it awaits is described with its run.
        engine.sort(key=lambda task: not task.get_name().startswith("holdfast run "))
        for task in engine:
            self._visit(task, _ENGINE, _Label())
        for task, stack in frames.items():
            if stack and task not in self._seen and _innermost_owner(stack, _ENGINE) == _STORE:
                self._visit(task, _ENGINE, _Label())
        return Activity(self._busy, min(self._wakes, default=None))

    def _visit(self, task: asyncio.Task[Any], owner: str, label: _Label) -> None:
        if task in self._seen or task.done():
            return
        self._seen.add(task)
        stack = suspended_frames(task)
        label = _label_of(stack, label)
        owner = _innermost_owner(stack, owner)
        waiter = AwaitGraph.awaited(task)
        if waiter is not None and waiter in self._sleepers:
            self._wakes.append(self._sleepers[waiter])
        elif waiter is None or owner == _STORE or _is_thread(stack):
            self._busy.append(f"{label}: {_awaiting(label, owner)}")
        elif behind := self._graph.tasks_behind(waiter):
            for each in behind:
                self._visit(each, owner, label)
        elif owner == _USER:
            self._busy.append(f"{label}: {_awaiting(label, owner)}")


def _label_of(stack: Sequence[FrameType], label: _Label) -> _Label:
    for frame in stack:
        if frame.f_code is perform.__code__:
            visit = frame.f_locals["visit"]
            label = label._replace(run=visit.claimed.head.key.id, node=visit.node)
    ours = [frame for frame in stack if _owner_of(frame) == _USER]
    return label._replace(place=_place(ours[-1])) if ours else label


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_engine(frame: FrameType) -> bool:
    return _module(frame).startswith("holdfast.engine.")


def _is_thread(stack: Sequence[FrameType]) -> bool:
    return bool(stack) and _module(stack[-1]) == _THREADS


def _owner_of(frame: FrameType) -> str | None:
    """Return to whom the code of a frame belongs; None for Python's own libraries."""
    module = _module(frame)
    if module.partition(".")[0] in sys.stdlib_module_names:
        # A program that is run as a script is __main__, and belongs to the user.
        return _USER if module == "__main__" else None
    if not module.startswith("holdfast.") or module.startswith(_OUTSIDE):
        return _USER
    return _STORE if module.startswith("holdfast.storage.") else _ENGINE


def _innermost_owner(stack: Sequence[FrameType], outer: str) -> str:
    owners = (_owner_of(frame) for frame in reversed(stack))
    return next((owner for owner in owners if owner is not None), outer)


def _awaiting(label: _Label, owner: str) -> str:
    if owner == _STORE:
        return "the store is at work"
    return f"awaits at {label.place}" if label.place else "the engine is at work"


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
