"""What a run may still spend: set aside before each call, so that it pauses in time.

A run spends its own budget, or draws on that of the run that started it. One whose children draw on
its budget draws on it itself: then nobody knows all that is spent but the account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol

from holdfast.engine.effects.call_ids import Lines
from holdfast.engine.execution.claimed_run import Hold
from holdfast.engine.runs.budget_accounts import Accounts, Short
from holdfast.errors import BudgetSpent, InvalidRequest, PriceUnknown
from holdfast.model.budget import Limits
from holdfast.model.event import CallReserved, ChildGranted, Drawn, Event
from holdfast.model.spending import NOTHING, Spending
from holdfast.model.wait import asking_key
from holdfast.records.head import Parent

__all__ = ["Purse", "Spender"]

# How long a run that lacks money is let go of before it looks again, if nobody wakes it.
_ASK_AGAIN_MS = 60_000


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

    async def record(
        self, *events: Event, durable: bool, decided: Callable[[], None] | None = None
    ) -> None: ...


class Purse:
    """The purse of one run, shared by all its branches."""

    def __init__(self, hold: Hold, accounts: Accounts) -> None:
        self._hold = hold
        self._accounts = accounts
        # What is set aside, and neither in the fold yet nor sure never to be.
        self._pending: dict[object, Spending] = {}
        self._drawing = asyncio.Lock()
        # What the account limits on which the run draws, once we looked.
        self._shared: Limits | None = None

    async def set_aside(self, visit: Spender, call: str, most: Spending, unknown: str) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not.

        ``unknown`` says why nobody knows what it may cost, where that is so.

        Raises:
            BudgetSpent: the run lacks it, and its node may not wait.
            PriceUnknown: dollars are limited, and nobody knows how many it costs.
        """
        if not await self._is_limited():
            return
        if unknown and self._limits_dollars():
            raise PriceUnknown(unknown)
        if most == NOTHING and (self._hold.head.budget or Limits()).wall_ms is None:
            return
        pending = await self._afforded(visit, call, most)
        if most == NOTHING:  # only its time is limited
            return
        visit.lines.begin(call)
        reserved = CallReserved(visit.now_ms(), visit.node, visit.visit, call, most, visit.branch)
        await self._spend(visit, reserved, pending)

    async def grant(self, visit: Spender, child: str, limits: Limits) -> None:
        """Return once it is durable that a child may spend so much; pause the run if it may not.

        Raises:
            InvalidRequest: the child would have no limit where the run has one.
            BudgetSpent: the run lacks it, and its node may not wait.
        """
        if child in self._hold.execution.slices or not await self._is_limited():
            return
        most = Spending(limits.tokens or 0, limits.nanodollars or 0)
        own = self._own_limits()
        if (own.tokens is not None and limits.tokens is None) or (
            own.nanodollars is not None and limits.nanodollars is None
        ):
            raise InvalidRequest(
                "the budget of a child limits at least what that of its parent limits",
                field="budget",
            )
        pending = await self._afforded(visit, f"child {child}", most)
        await self._spend(visit, ChildGranted(visit.now_ms(), child, most), pending)

    async def shared(self) -> Parent | None:
        """Return on whose account the children draw; the first time, open it."""
        head = self._hold.head
        limits = head.budget
        if limits is None or (limits.tokens is None and limits.nanodollars is None):
            return head.draws
        async with self._drawing:
            if self._hold.execution.drawn is None:
                spent = self._spoken_for
                await self._accounts.open(head, limits, spent)
                await self._hold.record(Drawn(self._hold.now_ms(), spent), durable=True)
        return Parent(head.key.id, head.generation)

    async def _afforded(self, visit: Spender, what: str, most: Spending) -> object:
        """Count what is to be spent as pending, once there is enough; return what names it."""
        looked, pending = False, object()
        while (lacking := await self._lacking(visit, pending, most)) is not None:
            # Others may have cost less than was set aside; somebody may have given the run more.
            if await visit.others_done():
                continue
            if not looked:
                looked = True
                await self._hold.refresh_row()
                continue
            if not visit.may_wait:
                raise BudgetSpent(f"{what} needs {lacking}")
            at_ms = visit.now_ms() + _ASK_AGAIN_MS
            await visit.ask_again(asking_key("budget", what), at_ms, f"needs {lacking}")
        return pending

    async def _spend(self, visit: Spender, event: Event, pending: object) -> None:
        """Write down what was set aside.

        It is pending until it is in the fold: counted twice in between, it would be drawn twice.
        """

        def decided() -> None:
            self._pending.pop(pending, None)

        try:
            # Refused once its node is over.
            await visit.record(event, durable=True, decided=decided)
        except asyncio.CancelledError:
            raise  # only the node is cancelled: the write goes on, and says when it is decided
        except BaseException:
            decided()
            raise

    @property
    def _spoken_for(self) -> Spending:
        """What was spent, and what is set aside."""
        return sum(self._pending.values(), self._hold.execution.spent)

    async def _lacking(self, visit: Spender, pending: object, most: Spending) -> str | None:
        """Return what the run lacks; where it lacks nothing, it counts as pending from now on."""
        async with self._drawing:
            execution, limits = self._hold.execution, self._hold.head.budget
            if limits is not None:
                wall_ms = execution.spent_ms + visit.elapsed_ms
                lacking = limits.lacking(self._spoken_for, wall_ms, most)
                if lacking is not None:
                    return lacking
            if self._draws:
                try:
                    await self._draw(visit, most)
                except Short as short:
                    return str(short)
            if most != NOTHING:
                self._pending[pending] = most
            return None

    async def _draw(self, visit: Spender, most: Spending) -> None:
        before = self._spoken_for
        given = self._hold.execution.drawn or NOTHING
        wanted = before + most
        limits = self._own_limits()
        if (limits.tokens is None or wanted.tokens <= given.tokens) and (
            limits.nanodollars is None or wanted.nanodollars <= given.nanodollars
        ):
            return
        hold = self._hold
        hold.check_alive()
        draws = hold.head.draws or Parent(hold.head.key.id, hold.head.generation)
        total = await hold.patiently(lambda: self._accounts.draw(hold.head, draws, before, most))
        await visit.record(Drawn(self._hold.now_ms(), total), durable=False)

    @property
    def _draws(self) -> bool:
        return self._hold.head.draws is not None or self._hold.execution.drawn is not None

    async def _is_limited(self) -> bool:
        draws = self._hold.head.draws
        if draws is not None and self._shared is None:
            hold = self._hold
            limits = await hold.patiently(lambda: self._accounts.limits(hold.head.key, draws))
            self._shared = limits or Limits(0, 0)
        return draws is not None or self._hold.head.budget is not None

    def _own_limits(self) -> Limits:
        return self._shared or self._hold.head.budget or Limits()

    def _limits_dollars(self) -> bool:
        return self._own_limits().nanodollars is not None
