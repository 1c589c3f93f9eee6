"""Bugs to plant in accounts and slices: fleets in which budgets are shared are to find them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine.effects import model_bounds, token_estimates
from holdfast.engine.execution import budget_guard
from holdfast.engine.runs import budget_accounts, budget_changes, children
from holdfast.model.budget import BudgetLimits
from holdfast.model.event import BudgetDrawn
from holdfast.model.spending import Spending
from holdfast.records import account, run_conditions, run_writes
from tests.simulation.bugs.planting import bug


@bug("calling", settle_stall=0.5)
def a_late_worker_gives_back_what_a_retry_uses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(account.Grant, "is_of_later_claim", lambda self, head: False)


@bug("calling")
def a_slice_that_is_raised(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(budget_changes, "_check_slice", nothing)


@bug("calling", family_stall=0.6)
def a_slice_that_is_drawn_on_after_it_was_settled(patch: pytest.MonkeyPatch) -> None:
    """A child tells its parent what was spent, and its own children draw more then."""
    patch.setattr(children, "close_account", budget_accounts.read_granted)


@bug("calling")
def a_lower_budget_that_nobody_heeds(patch: pytest.MonkeyPatch) -> None:
    """What was once a run's to give is given, whatever its budget is by now."""
    highest: dict[tuple[str, str], BudgetLimits] = {}
    read = budget_accounts._read_account

    async def generous(kernel: Any, holder: Any, draws: Any) -> Any:
        standing, grant = await read(kernel, holder, draws)
        if standing is not None:
            key = (draws.id, draws.generation)
            known = highest.get(key, standing.limits)
            highest[key] = standing.limits if known.is_within(standing.limits) else known
            standing = msgspec.structs.replace(standing, limits=highest[key])
        return standing, grant

    patch.setattr(budget_accounts, "_read_account", generous)


@bug("calling", late_write=0.15, late_seconds_max=60.0)
def a_budget_that_arrives_late_counts(patch: pytest.MonkeyPatch) -> None:
    """It undoes one that was given later, and acknowledged."""
    give = run_writes.budget_write

    def heedless(head: Any, limits: Any, **values: Any) -> Any:
        write = give(head, limits, **values)
        return msgspec.structs.replace(write, condition=run_conditions.unchanged(head))

    patch.setattr(run_writes, "budget_write", heedless)


@bug("calling")
def a_rest_that_is_returned_before_the_journal_says_so(patch: pytest.MonkeyPatch) -> None:
    """A later claim reads that the run has it, and spends it though others may draw it."""

    async def hasty(self: Any) -> None:
        claimed = self._claimed
        async with self._draw_lock:
            drawn, needed = claimed.execution.drawn, self._spent_and_reserved
            await claimed.claim.retry_store_errors(
                lambda: self._accounts.return_rest(
                    claimed.owner.local_workers, claimed.head, self._payer, needed
                )
            )
            await claimed.journal.write((BudgetDrawn(claimed.now_ms(), drawn.at_most(needed)),))

    patch.setattr(budget_guard.BudgetGuard, "_lower_grant", hasty)


# --- estimates ------------------------------------------------------------------------------------


@bug("estimating")
def an_estimate_below_what_every_question_takes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(token_estimates.TokenEstimates, "estimate", lambda *arguments: 1)


@bug("estimating")
def an_estimate_that_leaves_the_answer_out(patch: pytest.MonkeyPatch) -> None:
    """Only the input may be underestimated."""
    smaller = model_bounds.ModelBounds._smaller

    def careless(self: Any, input_tokens: int, *, estimated: bool) -> Any:
        cost = smaller(self, input_tokens, estimated=estimated)
        return cost and model_bounds.model_spending(self._model, (input_tokens, 0))

    patch.setattr(model_bounds.ModelBounds, "_smaller", careless)


@bug("estimating")
def an_overshoot_that_does_not_stop_the_next_call(patch: pytest.MonkeyPatch) -> None:
    """What was spent beyond a budget is taken for what the budget allows."""
    shortfall = BudgetLimits.shortfall

    def forgiving(self: BudgetLimits, spent: Spending, need: Spending) -> Any:
        if self.tokens is not None and spent.tokens > self.tokens:
            return None
        return shortfall(self, spent, need)

    patch.setattr(BudgetLimits, "shortfall", forgiving)


@bug("estimating", effect_crash=0.3, effect_unanswered=0.3)
def a_lost_call_that_counts_as_estimated(patch: pytest.MonkeyPatch) -> None:
    """Nothing ever says what it took."""
    patch.setattr(Spending, "at_least", lambda self, other: other)


@bug("estimating")
def limits_that_are_gone_while_they_are_read_again(patch: pytest.MonkeyPatch) -> None:
    """Other branches reserve meanwhile, as if nothing were limited."""
    read = budget_guard.BudgetGuard._read_account_limits

    async def hasty(self: Any) -> None:
        self._account_limits = None
        await read(self)

    patch.setattr(budget_guard.BudgetGuard, "_read_account_limits", hasty)
