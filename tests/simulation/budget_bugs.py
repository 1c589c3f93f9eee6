"""Bugs to plant in accounts and slices: fleets in which budgets are shared are to find them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine import accounts, children, funding, purse
from holdfast.model.budget import Limits
from holdfast.model.spending import NOTHING
from holdfast.records import account
from tests.simulation.effect_bugs import effect_bug

__all__: list[str] = []


@effect_bug
def a_late_worker_gives_back_what_a_retry_uses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(account.Grant, "is_past", lambda self, head: False)


@effect_bug
def a_slice_that_is_raised(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(funding, "_check_slice", nothing)


@effect_bug
def a_slice_that_is_drawn_on_after_it_was_settled(patch: pytest.MonkeyPatch) -> None:
    """A child tells its parent what was spent, and its own children draw more then."""
    patch.setattr(children, "close", accounts.granted)


@effect_bug
def a_lower_budget_that_nobody_heeds(patch: pytest.MonkeyPatch) -> None:
    """What was once a run's to give is given, whatever its budget is by now."""
    highest: dict[tuple[str, str], Limits] = {}
    read = accounts._read

    async def generous(kernel: Any, holder: Any, draws: Any) -> Any:
        standing, grant = await read(kernel, holder, draws)
        if standing is not None:
            key = (draws.id, draws.generation)
            known = highest.get(key, standing.limits)
            highest[key] = standing.limits if known.is_within(standing.limits) else known
            standing = msgspec.structs.replace(standing, limits=highest[key])
        return standing, grant

    patch.setattr(accounts, "_read", generous)


@effect_bug
def what_is_set_aside_counts_twice(patch: pytest.MonkeyPatch) -> None:
    """It still counts as pending when it is in the fold, until the task that asked goes on."""
    spend = purse.Purse._spend

    async def late(self: Any, visit: Any, event: Any, pending: object) -> None:
        most = self._pending[pending]
        twice = self._pending[object()] = most
        assert twice is most
        names = [name for name, value in self._pending.items() if value is most]
        try:
            self._pending.pop(pending)
            await spend(self, visit, event, pending)
        finally:
            self._pending.pop(names[-1])

    patch.setattr(purse.Purse, "_spend", late)


@effect_bug
def what_was_spent_before_is_not_granted(patch: pytest.MonkeyPatch) -> None:
    """An account that stood when its run came to open it does not hear what was spent since."""
    draw = accounts.Accounts.draw

    async def forgetful(self: Any, head: Any, draws: Any, known: Any, need: Any) -> Any:
        if need == NOTHING:
            return known
        return await draw(self, head, draws, known, need)

    patch.setattr(accounts.Accounts, "draw", forgetful)
