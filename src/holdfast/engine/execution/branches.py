"""Performs the branches of one run side by side.

Each branch's node is a task. What a node came to is written by its task, so that what becomes ready
together is written together; only what ends more than its own branch is handed back, and written
when those it ends have stopped: nothing of theirs may follow.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from holdfast.engine.execution.claimed_run import Hold
from holdfast.graph import Graph
from holdfast.model.decision import Decision, RunNode
from holdfast.model.event import BranchFailed
from holdfast.model.execution import Execution, is_within, outer

__all__ = ["Conductor", "side_by_side"]

AT_ONCE_MAX = 100
"""How many branches of one run a worker performs at a time."""
COPIES_BYTES_MAX = 64 * 1024**2
"""How many bytes their copies of the state may have together; one branch is always performed."""
# While some branches wait and others work, the inbox is looked into, at first often.
_LOOK_FIRST_SECONDS = 0.25
_LOOK_MOST_SECONDS = 5.0


class Conductor(Protocol):
    """What is needed of whoever drives the run."""

    news: asyncio.Event
    """Set when a signal came in this process."""

    @property
    def stopping(self) -> bool:
        """Whether nothing more is to be begun."""
        ...

    async def carry_out(self, effect: RunNode) -> Decision | None:
        """Perform a branch's node and write what came of it, but for what ends more than it."""
        ...

    async def conclude(self, decision: Decision) -> None:
        """Write down what ends branches, or the run."""
        ...

    async def look(self) -> None:
        """Read the inbox."""
        ...

    async def until_due(self, most_seconds: float) -> None:
        """Return when a wait's time is up, or after that many seconds."""
        ...


async def side_by_side(
    conductor: Conductor, hold: Hold, graph: Graph, effects: Iterable[RunNode]
) -> None:
    """Perform effects and what follows from them, until all that is left waits, or has ended."""
    performance = _Performance(conductor, hold, graph)
    performance.add(effect.branch for effect in effects)
    try:
        await performance.go_on()
    finally:
        await performance.stop(lambda path: True)


class _Performance:
    """The branches that are under way."""

    def __init__(self, conductor: Conductor, hold: Hold, graph: Graph) -> None:
        self._conductor = conductor
        self._hold = hold
        self._graph = graph
        self._ready: deque[str] = deque()
        # By the fork that has as many branches under way as it wants at once.
        self._held_back: dict[str, deque[str]] = {}
        self._tasks: dict[asyncio.Task[Decision | None], str] = {}
        self._room = _Room()
        # What is ready or under way: two branches that end may both lead to the one after them.
        self._known: set[str] = set()
        self._look_seconds = _LOOK_FIRST_SECONDS

    def add(self, paths: Iterable[str], *, first: bool = False) -> None:
        """Let branches wait for their turn; ``first`` before those that have not begun yet."""
        parked = self._hold.parking.parked
        new = [path for path in paths if path not in self._known and path not in parked]
        self._known.update(new)
        admitted = [path for path in new if self._admitted(path)]
        if first:
            self._ready.extendleft(reversed(admitted))
        else:
            self._ready.extend(admitted)

    async def go_on(self) -> None:
        """Perform them until all that is left waits, or has ended."""
        while True:
            self._begin()
            if not self._tasks:
                return
            done = await self._first_done()
            for task in done:
                if task in self._tasks:  # and was not stopped by another one's failure
                    await self._over(task)
            if self._hold.execution.ending is not None:
                return
            self.add(self._hold.answered())

    def _begin(self) -> None:
        while self._ready and len(self._tasks) < self._most() and not self._conductor.stopping:
            path = self._ready.popleft()
            if not self._hold.execution.stands(path):
                self._leave(path)
                continue
            effect = self._graph.effect(self._hold.execution, path)
            task = asyncio.ensure_future(self._conductor.carry_out(effect))
            self._tasks[task] = path

    def _most(self) -> int:
        """Return how many are performed at a time: each has a copy of the state."""
        return max(min(AT_ONCE_MAX, COPIES_BYTES_MAX // max(self._hold.weight.bytes, 1)), 1)

    def _admitted(self, path: str) -> bool:
        """Return whether there is room for a branch; where there is none, it is held back."""
        full = self._room.full(path, self._hold.execution)
        if full is None:
            self._room.enter(path)
            return True
        self._held_back.setdefault(full, deque()).append(path)
        return False

    def _leave(self, path: str) -> None:
        """Let others have the room of a branch of which nothing is under way any more."""
        self._known.discard(path)
        for fork in self._room.leave(path):
            self._let_in(fork)

    def _let_in(self, fork: str) -> None:
        execution = self._hold.execution
        waiting = self._held_back.get(fork)
        while waiting:
            path = waiting[0]
            if not execution.stands(path):
                self._known.discard(path)
            elif self._room.full(path, execution) == fork:
                return
            elif self._admitted(path):
                self._ready.append(path)
            waiting.popleft()
        self._held_back.pop(fork, None)

    async def _first_done(self) -> list[asyncio.Task[Decision | None]]:
        """Return tasks that are done, in their order; none where something else came to pass."""
        if not self._hold.parking.parked:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            return [task for task in self._tasks if task.done()]
        news = asyncio.ensure_future(self._conductor.news.wait())
        time = asyncio.ensure_future(self._conductor.until_due(self._look_seconds))
        try:
            await asyncio.wait({*self._tasks, news, time}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
            time.cancel()
        done = [task for task in self._tasks if task.done()]
        if not done:
            heard = self._conductor.news.is_set()
            grown = min(2 * self._look_seconds, _LOOK_MOST_SECONDS)
            self._look_seconds = _LOOK_FIRST_SECONDS if heard else grown
            await self._conductor.look()
        return done

    async def _over(self, task: asyncio.Task[Decision | None]) -> None:
        path = self._tasks.pop(task)
        self._known.discard(path)
        decision = task.result()
        if decision is not None and self._hold.execution.strand(path) is not None:
            ended = [e.branch for e in decision.events if isinstance(e, BranchFailed)]
            within = ended[0] if ended else ""
            await self.stop(lambda other: is_within(other, within))
            await self._conductor.conclude(decision)
        # What follows comes first, so that the branch keeps its room.
        self.add(self._hold.execution.near(path), first=True)
        for fork in self._room.leave(path):
            self._let_in(fork)

    async def stop(self, those: Callable[[str], bool]) -> None:
        """Stop some of them, and wait until nothing of theirs is under way."""
        stopped = {task: path for task, path in self._tasks.items() if those(path)}
        for task in stopped:
            del self._tasks[task]
            task.cancel()
        try:
            await _all_done(stopped)
        finally:
            for task, path in stopped.items():
                self._leave(path)
                if not task.cancelled():
                    task.exception()  # it was to be stopped, and nobody asks how it was
        await self._hold.written()


async def _all_done(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Return when tasks are done, even where whoever waits is cancelled meanwhile."""
    left: set[asyncio.Task[Any]] = set(tasks)
    cancelled: asyncio.CancelledError | None = None
    while left:
        try:
            left = (await asyncio.wait(left))[1]
        except asyncio.CancelledError as error:
            # They would go on without anybody, and write.
            cancelled = error
            left = {task for task in left if not task.done()}
    if cancelled is not None:
        raise cancelled


class _Room:
    """Counts the branches of each fork in which something is ready or under way.

    A branch in which others began is under way as long as one of them is.
    """

    def __init__(self) -> None:
        self._within: Counter[str] = Counter()
        self._branches: Counter[str] = Counter()

    def full(self, path: str, execution: Execution) -> str | None:
        """Return a fork that has no room for a strand, None where all around it have."""
        for branch in _around(path):
            most = 0 if branch in self._within else execution.at_once(branch)
            if most and self._branches[outer(branch)] >= most:
                return outer(branch)
        return None

    def enter(self, path: str) -> None:
        """Count a strand that is ready."""
        for branch in _around(path):
            self._branches[outer(branch)] += branch not in self._within
            self._within[branch] += 1

    def leave(self, path: str) -> list[str]:
        """Count it no more; return the forks that have got room."""
        freed: list[str] = []
        for branch in _around(path):
            self._within[branch] -= 1
            if not self._within[branch]:
                del self._within[branch]
                freed.append(outer(branch))
                self._branches[outer(branch)] -= 1
                if not self._branches[outer(branch)]:
                    del self._branches[outer(branch)]
        return freed


def _around(path: str) -> list[str]:
    """Return the branches around a strand, and itself: the outermost first."""
    steps = path.split("/") if path else []
    return ["/".join(steps[: n + 1]) for n in range(len(steps))]
