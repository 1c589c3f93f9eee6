"""What a run may still spend: set aside before each call, so that it pauses in time."""

from __future__ import annotations

from typing import NoReturn, Protocol

from holdfast.engine.lines import Lines
from holdfast.errors import BudgetSpent
from holdfast.model.event import CallReserved, Event
from holdfast.model.execution import Execution
from holdfast.model.spending import NOTHING, Spending
from holdfast.records.head import Head

__all__ = ["Owner", "Purse", "Spender"]

# How long a run that lacks money is let go of before it looks again, if nobody wakes it.
_ASK_AGAIN_MS = 60_000


class Owner(Protocol):
    """The run whose purse it is."""

    head: Head
    execution: Execution

    async def read_row(self) -> None:
        """Read the run's row again: somebody may have given it more."""
        ...


class Spender(Protocol):
    """The visit of a node that wants to spend."""

    node: str
    branch: str
    visit: int
    lines: Lines

    @property
    def elapsed_ms(self) -> int: ...

    @property
    def may_wait(self) -> bool: ...

    def now_ms(self) -> int: ...

    async def ask_again(self, key: str, until_ms: int, about: str) -> NoReturn: ...

    async def others_done(self) -> bool: ...

    async def record(self, *events: Event, durable: bool) -> None: ...


class Purse:
    """The purse of one run, shared by all its branches."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # What is being written as set aside, and is not in the fold yet.
        self._pending = NOTHING

    async def set_aside(self, visit: Spender, call: str, most: Spending) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not.

        Raises:
            BudgetSpent: the run lacks it, and its node may not wait.
        """
        lacking = self._lacking(visit, most)
        while lacking is not None and await visit.others_done():
            lacking = self._lacking(visit, most)  # they may have cost less than was set aside
        if lacking is not None:
            await self._owner.read_row()  # somebody may have given it more
            lacking = self._lacking(visit, most)
        if lacking is not None:
            if not visit.may_wait:
                raise BudgetSpent(f"the call {call} needs {lacking}")
            at_ms = visit.now_ms() + _ASK_AGAIN_MS
            await visit.ask_again(f"%budget.{call}", at_ms, f"needs {lacking}")
        if self._owner.head.budget is None or most == NOTHING:
            return
        self._pending += most
        visit.lines.begin(call)
        try:
            await visit.record(
                CallReserved(visit.now_ms(), visit.node, visit.visit, call, most, visit.branch),
                durable=True,
            )
        finally:
            self._pending -= most

    def _lacking(self, visit: Spender, most: Spending) -> str | None:
        limits, execution = self._owner.head.budget, self._owner.execution
        if limits is None:
            return None
        wall_ms = execution.spent_ms + visit.elapsed_ms
        return limits.lacking(execution.spent + self._pending, wall_ms, most)
