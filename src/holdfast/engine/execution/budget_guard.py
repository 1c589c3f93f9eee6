"""What a run may still spend: set aside before each call, so that it pauses in time.

A run spends its own budget, or draws on that of the run that started it. One whose children draw on
its budget draws on it itself: then nobody knows all that is spent but the account.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol

from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.runs.budget_accounts import Accounts, InsufficientBudget
from holdfast.errors import BudgetSpent, InvalidRequest, PriceUnknown
from holdfast.model.budget import BudgetLimits
from holdfast.model.event import BudgetDrawn, CallReserved, ChildGranted, Event
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import BudgetWait, WaitKind
from holdfast.records.head import RunRef

__all__ = ["BudgetGuard", "Spender"]

# How long a run that lacks money is let go of before it looks again, if nobody wakes it.
_RECHECK_BUDGET_MS = 60_000


class Spender(Protocol):
    """The visit of a node that wants to spend."""

    node: str
    branch: str
    visit: int
    call_ids: CallIds

    @property
    def elapsed_ms(self) -> int: ...

    @property
    def may_wait(self) -> bool: ...

    def now_ms(self) -> int: ...

    async def pause_until(self, kind: WaitKind, deadline_ms: int, about: str) -> NoReturn: ...

    async def wait_for_other_calls(self) -> bool: ...

    async def record(
        self, *events: Event, durable: bool, on_resolved: Callable[[], None] | None = None
    ) -> None: ...


class BudgetGuard:
    """The purse of one run, shared by all its branches."""

    def __init__(self, claimed: ClaimedRun, accounts: Accounts) -> None:
        self._claimed = claimed
        self._accounts = accounts
        # What is set aside, and neither in the fold yet nor sure never to be.
        self._reservations: dict[object, Spending] = {}
        self._draw_lock = asyncio.Lock()
        # What the account limits on which the run draws, once we looked.
        self._account_limits: BudgetLimits | None = None

    async def reserve(self, visit: Spender, call: str, max_cost: Spending, unknown: str) -> None:
        """Return once it is durable that a call may cost so much; pause the run if it may not.

        ``unknown`` says why nobody knows what it may cost, where that is so.

        Raises:
            BudgetSpent: the run lacks it, and its node may not wait.
            PriceUnknown: dollars are limited, and nobody knows how many it costs.
        """
        if not await self._load_limits():
            return
        if unknown and self._limits_dollars():
            raise PriceUnknown(unknown)
        if (
            max_cost == NO_SPENDING
            and (self._claimed.head.budget or BudgetLimits()).wall_ms is None
        ):
            return
        reservation = await self._wait_until_affordable(visit, call, max_cost)
        if max_cost == NO_SPENDING:  # only its time is limited
            return
        visit.call_ids.mark_active(call)
        reserved = CallReserved(
            visit.now_ms(), visit.node, visit.visit, call, max_cost, visit.branch
        )
        await self._write_reservation(visit, reserved, reservation)

    async def grant_child_budget(self, visit: Spender, child: str, limits: BudgetLimits) -> None:
        """Return once it is durable that a child may spend so much; pause the run if it may not.

        Raises:
            InvalidRequest: the child would have no limit where the run has one.
            BudgetSpent: the run lacks it, and its node may not wait.
        """
        if child in self._claimed.execution.slices or not await self._load_limits():
            return
        max_cost = Spending(limits.tokens or 0, limits.nanodollars or 0)
        own = self._own_limits()
        if (own.tokens is not None and limits.tokens is None) or (
            own.nanodollars is not None and limits.nanodollars is None
        ):
            raise InvalidRequest(
                "the budget of a child limits at least what that of its parent limits",
                field="budget",
            )
        reservation = await self._wait_until_affordable(visit, f"child {child}", max_cost)
        await self._write_reservation(
            visit, ChildGranted(visit.now_ms(), child, max_cost), reservation
        )

    async def open_shared_account(self) -> RunRef | None:
        """Return on whose account the children draw; the first time, open it."""
        head = self._claimed.head
        limits = head.budget
        if limits is None or (limits.tokens is None and limits.nanodollars is None):
            return head.payer
        async with self._draw_lock:
            if self._claimed.execution.drawn is None:
                spent = self._spent_and_reserved
                await self._accounts.open(head, limits, spent)
                await self._claimed.journal.record(
                    BudgetDrawn(self._claimed.now_ms(), spent), durable=True
                )
        return RunRef(head.key.id, head.generation)

    async def _wait_until_affordable(self, visit: Spender, what: str, max_cost: Spending) -> object:
        """Count what is to be spent as pending, once there is enough; return what names it."""
        looked, reservation = False, object()
        while (shortfall := await self._try_reserve(visit, reservation, max_cost)) is not None:
            # Others may have cost less than was set aside; somebody may have given the run more.
            if await visit.wait_for_other_calls():
                continue
            if not looked:
                looked = True
                await self._claimed.row.refresh()
                continue
            if not visit.may_wait:
                raise BudgetSpent(f"{what} needs {shortfall}")
            at_ms = visit.now_ms() + _RECHECK_BUDGET_MS
            await visit.pause_until(BudgetWait(what), at_ms, f"needs {shortfall}")
        return reservation

    async def _write_reservation(self, visit: Spender, event: Event, reservation: object) -> None:
        """Write down what was set aside.

        It is pending until it is in the fold: counted twice in between, it would be drawn twice.
        """

        def decided() -> None:
            self._reservations.pop(reservation, None)

        try:
            # Refused once its node is over.
            await visit.record(event, durable=True, on_resolved=decided)
        except asyncio.CancelledError:
            raise  # only the node is cancelled: the write goes on, and says when it is decided
        except BaseException:
            decided()
            raise

    @property
    def _spent_and_reserved(self) -> Spending:
        """What was spent, and what is set aside."""
        return sum(self._reservations.values(), self._claimed.execution.spent)

    async def _try_reserve(
        self, visit: Spender, reservation: object, max_cost: Spending
    ) -> str | None:
        """Return what the run lacks; where it lacks nothing, it counts as pending from now on."""
        async with self._draw_lock:
            execution, limits = self._claimed.execution, self._claimed.head.budget
            if limits is not None:
                wall_ms = execution.spent_ms + visit.elapsed_ms
                shortfall = limits.shortfall(self._spent_and_reserved, wall_ms, max_cost)
                if shortfall is not None:
                    return shortfall
            if self._uses_account:
                try:
                    await self._draw(visit, max_cost)
                except InsufficientBudget as short:
                    return str(short)
            if max_cost != NO_SPENDING:
                self._reservations[reservation] = max_cost
            return None

    async def _draw(self, visit: Spender, max_cost: Spending) -> None:
        before = self._spent_and_reserved
        given = self._claimed.execution.drawn or NO_SPENDING
        wanted = before + max_cost
        limits = self._own_limits()
        if (limits.tokens is None or wanted.tokens <= given.tokens) and (
            limits.nanodollars is None or wanted.nanodollars <= given.nanodollars
        ):
            return
        claimed = self._claimed
        claimed.claim.check_alive()
        draws = claimed.head.payer or RunRef(claimed.head.key.id, claimed.head.generation)
        total = await claimed.claim.retry_store_errors(
            lambda: self._accounts.reserve(claimed.head, draws, before, max_cost)
        )
        await visit.record(BudgetDrawn(self._claimed.now_ms(), total), durable=False)

    @property
    def _uses_account(self) -> bool:
        return self._claimed.head.payer is not None or self._claimed.execution.drawn is not None

    async def _load_limits(self) -> bool:
        draws = self._claimed.head.payer
        if draws is not None and self._account_limits is None:
            claimed = self._claimed
            limits = await claimed.claim.retry_store_errors(
                lambda: self._accounts.read_limits(claimed.head.key, draws)
            )
            self._account_limits = limits or BudgetLimits(0, 0)
        return draws is not None or self._claimed.head.budget is not None

    def _own_limits(self) -> BudgetLimits:
        return self._account_limits or self._claimed.head.budget or BudgetLimits()

    def _limits_dollars(self) -> bool:
        return self._own_limits().nanodollars is not None
