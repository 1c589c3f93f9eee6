"""Reserves budget before each call, so that a run pauses before it spends too much.

A run spends its own budget, or draws on the account of the run that started it. If children of
a run draw on its budget, the run draws on the account, too: only the account knows what all of them
spend.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn, Protocol

import msgspec

from holdfast.display import get_logger
from holdfast.engine.effects.call_ids import CallIds
from holdfast.engine.effects.charges import CallPrice, SmallerBounds
from holdfast.engine.execution.claimed_run import ClaimedRun
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost
from holdfast.engine.runs.budget_accounts import Accounts, InsufficientBudget
from holdfast.errors import BudgetSpent, InvalidRequest, PriceUnknown
from holdfast.model.budget import BudgetLimits
from holdfast.model.event import BudgetDrawn, CallReserved, ChildGranted, Event
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.model.wait import BudgetWait, WaitKind
from holdfast.records.head import RunRef

__all__ = ["BudgetGuard", "Spender"]

_log = get_logger("holdfast.budgets")
# How long a run that lacks budget pauses before it checks again, unless it is woken.
_RECHECK_BUDGET_MS = 60_000


class Spender(Protocol):
    """The visit of a node that needs budget."""

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
    """Guards the budget of one run, for all its branches."""

    def __init__(self, claimed: ClaimedRun, accounts: Accounts) -> None:
        self._claimed = claimed
        self._accounts = accounts
        # Reservations until their event is folded, or can never be.
        self._reservations: dict[object, Spending] = {}
        self._draw_lock = asyncio.Lock()
        # The limits of the account on which the run draws, after they were read.
        self._account_limits: BudgetLimits | None = None

    async def reserve(
        self, visit: Spender, call: str, price: CallPrice, *, before: Spending
    ) -> None:
        """Reserve what a call may cost, durably; pause the run while its budget is too small.

        ``before`` is the reservation of an earlier attempt of the call, with an unknown outcome.
        Under estimates the attempt may have cost more. Then it counts with its upper bound now.

        Raises:
            BudgetSpent: the budget is too small, and the node may not wait.
            PriceUnknown: usd is limited, and the price of the call is unknown.
        """
        if not self._is_limited:
            return
        await self._load_account_limits()
        if price.unknown_reason and self._own_limits().nanodollars is not None:
            raise PriceUnknown(price.unknown_reason)
        max_cost = price.max_spending
        own = self._claimed.head.budget or BudgetLimits()
        if max_cost == NO_SPENDING and not own.limits_time:
            return
        uncounted = NO_SPENDING
        if before != NO_SPENDING and self._own_limits().estimate:
            uncounted = max_cost.at_least(before) - before
        reservation, cost = await self._reserve_or_pause(
            visit, call, max_cost, bounds=price.bounds, uncounted=uncounted
        )
        if max_cost == NO_SPENDING:  # only the time of the run is limited
            return
        visit.call_ids.mark_active(call)
        reserved = CallReserved(visit.now_ms(), visit.node, visit.visit, call, cost, visit.branch)
        if uncounted == NO_SPENDING:
            await self._write_reservation(visit, reservation, reserved)
            return
        settled = msgspec.structs.replace(reserved, max_spending=before + uncounted, instead=True)
        await self._write_reservation(visit, reservation, settled, reserved)

    async def check_time(self, visit: Spender) -> None:
        """Pause the run before a node while its budget leaves it no time.

        The node pauses even if it was declared with ``pausable="no"``: it has not begun.
        """
        if self._time_shortfall(visit) is None:
            return
        await self._refresh_limits()  # a caller may have raised the budget
        shortfall = self._time_shortfall(visit)
        if shortfall is not None:
            at_ms = visit.now_ms() + _RECHECK_BUDGET_MS
            await visit.pause_until(BudgetWait(f"node {visit.node}"), at_ms, f"needs {shortfall}")

    async def inherited_limits(self, limits: BudgetLimits) -> BudgetLimits:
        """Return the budget of a child with estimates where the run's own budget has them.

        Raises:
            InvalidRequest: the child's budget has estimates, and that of the run has not.
        """
        if not self._is_limited:
            return limits
        await self._load_account_limits()
        own = self._own_limits()
        if limits.estimate and not own.estimate:
            raise InvalidRequest(
                "budget must not set estimate where the budget of the parent does not: the child "
                "could spend more than its slice",
                field="budget",
            )
        return msgspec.structs.replace(limits, estimate=own.estimate)

    async def grant_child_budget(self, visit: Spender, child: str, limits: BudgetLimits) -> None:
        """Reserve the budget of a child, durably; pause the run while its own is too small.

        Raises:
            InvalidRequest: the child would have no limit where the run has one.
            BudgetSpent: the budget is too small, and the node may not wait.
        """
        if child in self._claimed.execution.slices or not self._is_limited:
            return
        await self._load_account_limits()
        max_cost = Spending(limits.tokens or 0, limits.nanodollars or 0)
        own = self._own_limits()
        if (own.tokens is not None and limits.tokens is None) or (
            own.nanodollars is not None and limits.nanodollars is None
        ):
            raise InvalidRequest(
                "budget must limit tokens and usd where the budget of the parent does",
                field="budget",
            )
        reservation, _ = await self._reserve_or_pause(visit, f"child {child}", max_cost)
        granted = ChildGranted(visit.now_ms(), child, max_cost)
        await self._write_reservation(visit, reservation, granted)

    async def open_shared_account(self) -> RunRef | None:
        """Return the run on whose account children draw; open the account the first time."""
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

    async def return_rest(self) -> None:
        """Return what the run drew and does not need now, so that its family can draw it.

        Raises:
            ClaimLost: this worker no longer owns the run, or the node has ended.
            JournalConflict: another process wrote into the journal.
        """
        claimed = self._claimed
        if self._excess_drawn() == NO_SPENDING:
            return
        await self._load_account_limits()
        claimed.claim.check_alive()
        if not claimed.claim.in_node:
            raise ClaimLost
        try:
            # It goes on where the node is cancelled: a draw must not begin before it is resolved.
            await claimed.journal.shield_write(self._lower_grant())
        except PositionTaken:
            raise JournalConflict from None

    async def _lower_grant(self) -> None:
        """Return the rest to the account, after the journal says that the run no longer has it.

        A crash in between leaves the grant too high, and never too low: the next draw finds it.
        """
        claimed = self._claimed
        async with self._draw_lock:
            drawn, needed = claimed.execution.drawn, self._spent_and_reserved
            excess, limits = self._excess_drawn(), self._own_limits()
            if (
                drawn is None
                or not claimed.claim.in_node
                or not (
                    (limits.tokens is not None and excess.tokens)
                    or (limits.nanodollars is not None and excess.nanodollars)
                )
            ):
                return
            await claimed.journal.write((BudgetDrawn(claimed.now_ms(), drawn.at_most(needed)),))
            claimed.claim.check_alive()
            await claimed.claim.retry_store_errors(
                lambda: self._accounts.return_rest(
                    claimed.owner.local_workers, claimed.head, self._payer, needed
                )
            )

    def _excess_drawn(self) -> Spending:
        """What the run has drawn beyond what it spent and reserved."""
        drawn = self._claimed.execution.drawn or NO_SPENDING
        return drawn - drawn.at_most(self._spent_and_reserved)

    async def _reserve_or_pause(
        self,
        visit: Spender,
        what: str,
        max_cost: Spending,
        *,
        bounds: SmallerBounds | None = None,
        uncounted: Spending = NO_SPENDING,
    ) -> tuple[object, Spending]:
        """Reserve budget, and return the reservation's key and cost; pause the run until it can.

        ``uncounted`` is reserved with the cost, and is not part of it.
        """
        refreshed, reservation = False, object()
        while True:
            shortfall = await self._try_reserve(visit, reservation, uncounted + max_cost)
            if shortfall is None:
                return reservation, max_cost
            # Other calls may have cost less than reserved; a caller may have raised the budget.
            if await visit.wait_for_other_calls():
                continue
            if not refreshed:
                refreshed = True
                await self._refresh_limits()
                continue
            cost = await self._smaller_cost(visit, bounds, uncounted)
            if cost is not None:
                shortfall = await self._try_reserve(visit, reservation, uncounted + cost)
                if shortfall is None:
                    return reservation, cost
            needs = f"needs {shortfall}"
            if bounds is not None and self._shortfall(visit, NO_SPENDING) is None:
                needs += f": {bounds.describe(estimates=self._own_limits().estimate)}"
            if not visit.may_wait:
                raise BudgetSpent(f"{what} {needs}")
            await self.return_rest()
            self._warn_before_first_call(visit, what, needs)
            at_ms = visit.now_ms() + _RECHECK_BUDGET_MS
            await visit.pause_until(BudgetWait(what), at_ms, needs)

    async def _smaller_cost(
        self, visit: Spender, bounds: SmallerBounds | None, uncounted: Spending
    ) -> Spending | None:
        """Return the cost of a call by a smaller bound than its upper bound, if one may fit."""
        if bounds is None or self._shortfall(visit, uncounted + bounds.min_spending) is not None:
            return None
        counted = await bounds.count()
        if counted is None and self._own_limits().estimate:
            return bounds.estimate()
        return counted

    def _warn_before_first_call(self, visit: Spender, what: str, needs: str) -> None:
        """Log that a run that spent nothing pauses for budget, unless it already did."""
        head, key = self._claimed.head, BudgetWait(what).key()
        if self._spent_and_reserved == NO_SPENDING and not any(
            (wait.visit, wait.key) == (visit.visit, key)
            for wait in self._claimed.known_waits(visit.branch)
        ):
            _log.warning("%s pauses before its first call: %s %s", head.key.log_name, what, needs)

    async def _write_reservation(self, visit: Spender, reservation: object, *events: Event) -> None:
        """Write the events of a reservation.

        The reservation is dropped in the step that folds its events. If both counted in between,
        the cost would be drawn twice.
        """

        def drop() -> None:
            self._reservations.pop(reservation, None)

        try:
            await visit.record(*events, durable=True, on_resolved=drop)
        except asyncio.CancelledError:
            raise  # only the node is cancelled: the write goes on, and drops it when resolved
        except BaseException:
            drop()
            raise

    @property
    def _spent_and_reserved(self) -> Spending:
        """What was spent and what is reserved."""
        return sum(self._reservations.values(), self._claimed.execution.spent)

    async def _try_reserve(
        self, visit: Spender, reservation: object, max_cost: Spending
    ) -> str | None:
        """Reserve budget if there is enough; otherwise return what is missing."""
        async with self._draw_lock:
            shortfall = self._shortfall(visit, max_cost)
            if shortfall is None and self._uses_account:
                shortfall = await self._draw(visit, max_cost)
            if shortfall is None and max_cost != NO_SPENDING:
                self._reservations[reservation] = max_cost
            return shortfall

    def _shortfall(self, visit: Spender, max_cost: Spending) -> str | None:
        """Return what the run's own budget lacks for a cost; None if it lacks nothing."""
        limits = self._claimed.head.budget
        if limits is None:
            return None
        return self._time_shortfall(visit) or limits.shortfall(self._spent_and_reserved, max_cost)

    def _time_shortfall(self, visit: Spender) -> str | None:
        """Return by how much the run exceeds a limit on its time; None if it does not."""
        limits = self._claimed.head.budget
        if limits is None or not limits.limits_time:
            return None
        return limits.time_shortfall(
            node_time_ms=self._claimed.execution.spent_ms + visit.elapsed_ms,
            wall_ms=visit.now_ms() - self._claimed.head.created_ms,
        )

    async def _draw(self, visit: Spender, max_cost: Spending) -> str | None:
        """Draw from the account what the run was not granted yet; return what it lacks."""
        before = self._spent_and_reserved
        granted = self._claimed.execution.drawn or NO_SPENDING
        wanted = before + max_cost
        limits = self._own_limits()
        if (limits.tokens is None or wanted.tokens <= granted.tokens) and (
            limits.nanodollars is None or wanted.nanodollars <= granted.nanodollars
        ):
            return None
        claimed = self._claimed
        claimed.claim.check_alive()
        try:
            total = await claimed.claim.retry_store_errors(
                lambda: self._accounts.reserve(claimed.head, self._payer, before, max_cost)
            )
        except InsufficientBudget as short:
            return str(short)
        await visit.record(BudgetDrawn(claimed.now_ms(), total), durable=False)
        return None

    @property
    def _payer(self) -> RunRef:
        """The run on whose account this one draws."""
        head = self._claimed.head
        return head.payer or RunRef(head.key.id, head.generation)

    @property
    def _uses_account(self) -> bool:
        return self._claimed.head.payer is not None or self._claimed.execution.drawn is not None

    @property
    def _is_limited(self) -> bool:
        return self._claimed.head.payer is not None or self._claimed.head.budget is not None

    async def _load_account_limits(self) -> None:
        """Read the limits of the account on which the run draws, if it does; once."""
        if self._account_limits is None:
            await self._read_account_limits()

    async def _read_account_limits(self) -> None:
        # The old limits stay until the new ones are there: other branches reserve meanwhile.
        claimed, payer = self._claimed, self._claimed.head.payer
        if payer is None:
            return
        limits = await claimed.claim.retry_store_errors(
            lambda: self._accounts.read_limits(claimed.head.key, payer)
        )
        self._account_limits = limits or BudgetLimits(0, 0)

    async def _refresh_limits(self) -> None:
        """Read the budget again: a caller may have changed it."""
        await self._claimed.row.refresh()
        if self._account_limits is not None and self._account_limits.estimate:
            await self._read_account_limits()

    def _own_limits(self) -> BudgetLimits:
        return self._account_limits or self._claimed.head.budget or BudgetLimits()
