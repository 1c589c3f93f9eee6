"""Performs the branches of one run side by side.

Each effect of a branch is an asyncio task. The task writes the program's decision itself, so that
decisions that become ready together share a Put. A decision that ends other branches is handed back
and written after these branches have stopped: no event of theirs may follow it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.model.decision import Decision
from holdfast.model.execution import Execution, is_within, outer_path
from holdfast.model.program import Effect, Program

__all__ = ["BranchDriver", "run_branches"]

CONCURRENT_BRANCHES_MAX = 100
"""The maximum number of branches of one run that a worker performs at the same time."""
STATE_COPIES_BYTES_MAX = 64 * 1024**2
"""The maximum size of all their copies of the state. At least one branch always runs."""
# How often the inbox is read while some branches wait and others run: at first often.
_POLL_SECONDS = 0.25
_POLL_SECONDS_MAX = 5.0


class BranchDriver(Protocol):
    """What the branches need of the driver of their run."""

    signal_arrived: asyncio.Event
    """Set when this process delivers a signal to the run."""

    @property
    def stopping(self) -> bool:
        """Whether no further effect may begin."""
        ...

    async def run_branch(self, effect: Effect) -> Decision | None:
        """Perform a branch's effect and write the decision; return it if it ends other branches."""
        ...

    async def write_ending(self, branch: str, decision: Decision) -> None:
        """Write a branch's decision that ends other branches, or the run."""
        ...

    async def poll_inbox(self) -> None:
        """Read the inbox."""
        ...

    async def sleep_until_due(self, max_seconds: float) -> None:
        """Return when the next wait is due, or after ``max_seconds``."""
        ...


async def run_branches(
    driver: BranchDriver, claimed: ClaimedRun, program: Program, effects: Iterable[Effect]
) -> None:
    """Perform effects and the effects that follow, until every branch waits or has ended."""
    runner = _BranchRunner(driver, claimed, program)
    runner.add(effect.branch for effect in effects)
    try:
        await runner.run()
    finally:
        await runner.stop(lambda path: True)


class _BranchRunner:
    """The branches of one run that are ready or running."""

    def __init__(self, driver: BranchDriver, claimed: ClaimedRun, program: Program) -> None:
        self._driver = driver
        self._claimed = claimed
        self._program = program
        self._ready: deque[str] = deque()
        # Branches that wait for room, by the fork that already runs its maximum.
        self._blocked_by_fork: dict[str, deque[str]] = {}
        self._tasks: dict[asyncio.Task[Decision | None], str] = {}
        self._capacity = _ForkCapacity()
        # Ready or running. Two branches that end together lead to the same join: it runs once.
        self._active: set[str] = set()
        self._poll_seconds = _POLL_SECONDS

    def add(self, paths: Iterable[str], *, first: bool = False) -> None:
        """Queue branches; with ``first``, in front of those that have not begun yet."""
        waiting = self._claimed.waits.waiting
        new = [path for path in paths if path not in self._active and path not in waiting]
        self._active.update(new)
        admitted = [path for path in new if self._admit(path)]
        if first:
            self._ready.extendleft(reversed(admitted))
        else:
            self._ready.extend(admitted)

    async def run(self) -> None:
        """Perform the queued branches until every branch waits or has ended."""
        while True:
            self._start_ready()
            if not self._tasks:
                return
            done = await self._wait_first_done()
            for task in done:
                if task in self._tasks:  # and was not stopped by another one's failure
                    await self._finish(task)
            if self._claimed.execution.ending is not None:
                return
            self.add(self._claimed.pop_answered())

    def _start_ready(self) -> None:
        while (
            self._ready and len(self._tasks) < self._concurrency_max() and not self._driver.stopping
        ):
            path = self._ready.popleft()
            if not self._claimed.execution.is_at_node(path):
                self._remove(path)
                continue
            effect = self._program.effect(self._claimed.execution, path)
            task = asyncio.ensure_future(self._driver.run_branch(effect))
            self._tasks[task] = path

    def _concurrency_max(self) -> int:
        """Return how many branches may run at the same time: each has a copy of the state."""
        return max(
            min(
                CONCURRENT_BRANCHES_MAX,
                STATE_COPIES_BYTES_MAX // max(self._claimed.journal.memory.bytes, 1),
            ),
            1,
        )

    def _admit(self, path: str) -> bool:
        """Return whether a branch may run now; otherwise queue it behind its full fork."""
        full = self._capacity.full_fork(path, self._claimed.execution)
        if full is None:
            self._capacity.add(path)
            return True
        self._blocked_by_fork.setdefault(full, deque()).append(path)
        return False

    def _remove(self, path: str) -> None:
        """Give the room of a branch that no longer runs to other branches of its forks."""
        self._active.discard(path)
        for fork in self._capacity.remove(path):
            self._admit_blocked(fork)

    def _admit_blocked(self, fork: str) -> None:
        execution = self._claimed.execution
        waiting = self._blocked_by_fork.get(fork)
        while waiting:
            path = waiting[0]
            if not execution.is_at_node(path):
                self._active.discard(path)
            elif self._capacity.full_fork(path, execution) == fork:
                return
            elif self._admit(path):
                self._ready.append(path)
            waiting.popleft()
        self._blocked_by_fork.pop(fork, None)

    async def _wait_first_done(self) -> list[asyncio.Task[Decision | None]]:
        """Return the tasks that are done, in order; none if a signal or a timer came first."""
        if not self._claimed.waits.waiting:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            return [task for task in self._tasks if task.done()]
        signaled = asyncio.ensure_future(self._driver.signal_arrived.wait())
        due = asyncio.ensure_future(self._driver.sleep_until_due(self._poll_seconds))
        try:
            await asyncio.wait({*self._tasks, signaled, due}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            signaled.cancel()
            due.cancel()
        done = [task for task in self._tasks if task.done()]
        if not done:
            heard = self._driver.signal_arrived.is_set()
            grown = min(2 * self._poll_seconds, _POLL_SECONDS_MAX)
            self._poll_seconds = _POLL_SECONDS if heard else grown
            await self._driver.poll_inbox()
        return done

    async def _finish(self, task: asyncio.Task[Decision | None]) -> None:
        path = self._tasks.pop(task)
        self._active.discard(path)
        decision = task.result()
        if decision is not None and self._claimed.execution.strand(path) is not None:
            within = decision.ended_strand(path) or ""
            await self.stop(lambda other: is_within(other, within))
            await self._driver.write_ending(path, decision)
        # The next effect of the branch comes first, so that the branch keeps its room.
        self.add(self._claimed.execution.strands_after(path), first=True)
        for fork in self._capacity.remove(path):
            self._admit_blocked(fork)

    async def stop(self, selects: Callable[[str], bool]) -> None:
        """Cancel the selected branches, and wait until they and their writes have stopped."""
        stopped = {task: path for task, path in self._tasks.items() if selects(path)}
        for task in stopped:
            del self._tasks[task]
            task.cancel()
        try:
            await _wait_all(stopped)
        finally:
            for task, path in stopped.items():
                self._remove(path)
                if not task.cancelled():
                    task.exception()  # retrieved, so that asyncio does not log it
        await self._claimed.journal.wait_for_writes()


async def _wait_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Return when all tasks are done, also if the caller is cancelled meanwhile."""
    left: set[asyncio.Task[Any]] = set(tasks)
    cancelled: asyncio.CancelledError | None = None
    while left:
        try:
            left = (await asyncio.wait(left))[1]
        except asyncio.CancelledError as error:
            # Tasks that nothing waits for would go on and write.
            cancelled = error
            left = {task for task in left if not task.done()}
    if cancelled is not None:
        raise cancelled


class _ForkCapacity:
    """Counts the active branches of each fork: those that are ready or running.

    A branch that has forked is active as long as one of its own branches is.
    """

    def __init__(self) -> None:
        self._strands_by_branch: Counter[str] = Counter()
        self._branches_by_fork: Counter[str] = Counter()

    def full_fork(self, path: str, execution: Execution) -> str | None:
        """Return a fork around a strand that has no room for it; None if all have room."""
        for branch in _enclosing_branches(path):
            branches_max = (
                0
                if branch in self._strands_by_branch
                else execution.max_concurrent_branches(branch)
            )
            if branches_max and self._branches_by_fork[outer_path(branch)] >= branches_max:
                return outer_path(branch)
        return None

    def add(self, path: str) -> None:
        """Count a strand as active."""
        for branch in _enclosing_branches(path):
            self._branches_by_fork[outer_path(branch)] += branch not in self._strands_by_branch
            self._strands_by_branch[branch] += 1

    def remove(self, path: str) -> list[str]:
        """Stop counting a strand; return the forks that have room now."""
        freed: list[str] = []
        for branch in _enclosing_branches(path):
            self._strands_by_branch[branch] -= 1
            if not self._strands_by_branch[branch]:
                del self._strands_by_branch[branch]
                freed.append(outer_path(branch))
                self._branches_by_fork[outer_path(branch)] -= 1
                if not self._branches_by_fork[outer_path(branch)]:
                    del self._branches_by_fork[outer_path(branch)]
        return freed


def _enclosing_branches(path: str) -> list[str]:
    """Return the branches around a strand and the strand itself, the outermost first."""
    steps = path.split("/") if path else []
    return ["/".join(steps[: n + 1]) for n in range(len(steps))]
