"""Warns about a budget that no call of a known model fits into."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.display import get_logger
from holdfast.engine.effects.model_bounds import model_spending
from holdfast.model.budget import BudgetLimits
from holdfast.model.invocation import Model, Request, TokenCounter
from holdfast.model.spending import NO_SPENDING
from holdfast.records.keys import RunKey

__all__ = ["warn_if_no_call_fits"]

_log = get_logger("holdfast.budgets")


def warn_if_no_call_fits(run: RunKey, limits: BudgetLimits, models: Mapping[str, Model]) -> None:
    """Log a warning if even the smallest call of each model costs more than the budget.

    Models without a price are left out if the budget limits dollars.
    """
    lacking: list[tuple[int, str]] = []
    for name, model in models.items():
        if model.price is None and limits.nanodollars is not None:
            continue
        try:
            tokens = model.tokens_max(Request.of(model.name, "?", max_tokens=1))
            if limits.estimate or isinstance(model, TokenCounter):
                tokens = (1, 1)
            needed = model_spending(model, tokens)
        except Exception:  # a call of a broken adapter reports it, and not the start
            return
        shortfall = limits.shortfall(NO_SPENDING, needed)
        if shortfall is None:
            return
        lacking.append((needed.nanodollars or needed.tokens, f"{name} needs {shortfall}"))
    if lacking:
        _, cheapest = min(lacking)
        _log.warning(
            "%s starts with a budget that no call of its models fits into: even the smallest call "
            "of %s; give it a larger budget",
            run.log_name,
            cheapest,
        )
