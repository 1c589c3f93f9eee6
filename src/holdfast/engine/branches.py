"""Performs the branches of one run side by side.

Each branch's node is a task. What a node came to is written by its task, so that what becomes ready
together is written together; only what ends more than its own branch is handed back, and written
when those it ends have stopped: nothing of theirs may follow.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from holdfast.graph import Graph
from holdfast.model.decision import Decision, RunNode
from holdfast.model.event import BranchFailed
from holdfast.model.execution import Execution, is_within, outer
from holdfast.model.wait import Wait

__all__ = ["Conductor", "side_by_side"]

AT_ONCE_MAX = 100
"""How many branches of one run a worker performs at a time."""
# While some branches wait and others work, the inbox is looked into, at first often.
_LOOK_FIRST_SECONDS = 0.25
_LOOK_MOST_SECONDS = 5.0


class Conductor(Protocol):
    """What is needed of whoever drives the run."""

    execution: Execution
    news: asyncio.Event
    """Set when a signal came in this process."""

    @property
    def stopping(self) -> bool:
        """Whether nothing more is to be begun."""
        ...

    @property
    def parked(self) -> Mapping[str, tuple[Wait, ...]]:
        """The branches that wait, and for what."""
        ...

    async def carry_out(self, effect: RunNode) -> Decision | None:
        """Perform a branch's node and write what came of it, but for what ends more than it."""
        ...

    async def conclude(self, decision: Decision) -> None:
        """Write down what ends branches, or the run."""
        ...

    async def written(self) -> None:
        """Return when every write that was begun is decided."""
        ...

    async def look(self) -> None:
        """Read the inbox."""
        ...

    def answered(self) -> Iterable[str]:
        """Return the branches whose wait is over by now; they no longer wait."""
        ...

    async def until_due(self, most_seconds: float) -> None:
        """Return when a wait's time is up, or after that many seconds."""
        ...


async def side_by_side(conductor: Conductor, graph: Graph, effects: Iterable[RunNode]) -> None:
    """Perform effects and what follows from them, until all that is left waits, or has ended."""
    performance = _Performance(conductor, graph)
    performance.add(effect.branch for effect in effects)
    try:
        await performance.go_on()
    finally:
        await performance.stop(lambda path: True)


class _Performance:
    """The branches that are under way."""

    def __init__(self, conductor: Conductor, graph: Graph) -> None:
        self._conductor = conductor
        self._graph = graph
        self._ready: dict[str, deque[str]] = {}
        self._tasks: dict[asyncio.Task[Decision | None], str] = {}
        self._active: Counter[str] = Counter()
        # What is ready or under way: two branches that end may both lead to the one after them.
        self._known: set[str] = set()
        self._look_seconds = _LOOK_FIRST_SECONDS

    def add(self, paths: Iterable[str]) -> None:
        """Let branches wait for their turn."""
        for path in paths:
            if path not in self._known and path not in self._conductor.parked:
                self._known.add(path)
                self._ready.setdefault(outer(path), deque()).append(path)

    async def go_on(self) -> None:
        """Perform them until all that is left waits, or has ended."""
        while True:
            self._begin()
            if not self._tasks:
                return
            done = await self._first_done()
            for task in done:
                await self._over(task)
            if self._conductor.execution.ending is not None:
                return
            self.add(self._conductor.answered())

    def _begin(self) -> None:
        if self._conductor.stopping:
            return
        for path in self._chosen():
            effect = self._graph.effect(self._conductor.execution, path)
            task = asyncio.ensure_future(self._conductor.carry_out(effect))
            self._tasks[task] = path
            self._active[outer(path)] += 1

    def _chosen(self) -> Iterator[str]:
        """Yield those whose turn it is: of every fork no more than it wants at once."""
        execution = self._conductor.execution
        for fork, waiting in list(self._ready.items()):
            while waiting and len(self._tasks) < AT_ONCE_MAX:
                most = execution.at_once(waiting[0]) if execution.strand(waiting[0]) else 0
                if most and self._active[fork] >= most:
                    break
                path = waiting.popleft()
                if execution.strand(path) is not None:
                    yield path
                else:
                    self._known.discard(path)
            if not waiting:
                del self._ready[fork]

    async def _first_done(self) -> set[asyncio.Task[Decision | None]]:
        """Return tasks that are done; none where something else came to pass."""
        if not self._conductor.parked:
            return (await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED))[0]
        news = asyncio.ensure_future(self._conductor.news.wait())
        time = asyncio.ensure_future(self._conductor.until_due(self._look_seconds))
        try:
            await asyncio.wait({*self._tasks, news, time}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            time.cancel()
        done = {task for task in self._tasks if task.done()}
        if not done:
            heard = self._conductor.news.is_set()
            grown = min(2 * self._look_seconds, _LOOK_MOST_SECONDS)
            self._look_seconds = _LOOK_FIRST_SECONDS if heard else grown
            await self._conductor.look()
        return done

    async def _over(self, task: asyncio.Task[Decision | None]) -> None:
        path = self._forget(task)
        decision = task.result()
        execution = self._conductor.execution
        if decision is not None and execution.strand(path) is not None:
            ended = [e.branch for e in decision.events if isinstance(e, BranchFailed)]
            within = ended[0] if ended else ""
            await self.stop(lambda other: is_within(other, within))
            await self._conductor.conclude(decision)
        self.add(self._conductor.execution.near(path))

    async def stop(self, those: Callable[[str], bool]) -> None:
        """Stop some of them, and wait until nothing of theirs is under way."""
        stopped = [task for task, path in self._tasks.items() if those(path)]
        for task in stopped:
            self._forget(task)
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)
            for task in stopped:
                if not task.cancelled():
                    task.exception()  # it was to be stopped, and nobody asks how it was
        await self._conductor.written()

    def _forget(self, task: asyncio.Task[Decision | None]) -> str:
        path = self._tasks.pop(task)
        self._active[outer(path)] -= 1
        self._known.discard(path)
        return path
