"""Accounts of shared budgets: what a run and its children may spend together.

The account is an item beside the row of the run that has the budget. Each run that draws on it has
a grant there: everything that it has drawn so far. Account and grant change in one transaction, so
``granted`` is always the sum of the grants. A run that repeats a draw with an unknown outcome finds
the first draw in its grant.

A grant names the claim (generation and epoch) that changed it last. A worker with an older claim
must not change it: the run may have been retried, and may be using what that worker would return.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.budget import BudgetLimits
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.records.damage import DECODE_ERRORS, damaged_item_error, typed_attribute
from holdfast.records.head import Head, RunRef
from holdfast.records.keys import RunKey, account_key, grant_key
from holdfast.storage import Absent, AllOf, AnyOf, Equals, Less, Put, Update

__all__ = [
    "Account",
    "Grant",
    "account_limits_write",
    "account_of",
    "await_funds_write",
    "close_account_write",
    "draw_writes",
    "grant_of",
    "open_account_writes",
    "return_rest_writes",
    "return_unspent_writes",
]

_WAITING_MAX = 100


class Account(msgspec.Struct, frozen=True):
    """The limits of a shared budget, and how much of it is granted."""

    limits: BudgetLimits
    granted: Spending
    version: int
    ttl: int
    fundings: int = 0
    """How often the budget of the run had changed when the account got these limits."""
    waiting: tuple[str, ...] = ()
    """Runs that wait for more; at most a hundred of them."""
    closed: bool = False
    """Whether the run has reported the total to its parent. Then nothing more is granted."""

    def shortfall(self, ungranted: Spending, need: Spending) -> str | None:
        """Return what is needed and what is left, for display; None if the need fits.

        ``ungranted`` was spent already, but is not granted yet.
        """
        if self.closed and need != NO_SPENDING:
            return "a budget, and that of its run is settled"
        return self.limits.shortfall(self.granted + ungranted, need)

    def limited_part(self, spending: Spending) -> Spending:
        """Return the part of an amount that the account limits."""
        return Spending(
            0 if self.limits.tokens is None else spending.tokens,
            0 if self.limits.nanodollars is None else spending.nanodollars,
        )


class Grant(msgspec.Struct, frozen=True):
    """Everything that one run has drawn from an account."""

    total: Spending = Spending()
    version: int = 0
    token: str = ""
    closed: bool = False
    """Whether the run has returned what it did not spend."""
    generation: str = ""
    epoch: int = 0
    """The claim that changed it last; not set by early releases."""
    former: Spending = NO_SPENDING
    """The part of the total that went to earlier runs with the same id."""

    def is_of_run(self, head: Head) -> bool:
        """Return whether the grant belongs to this run, and not to an earlier run with its id."""
        return self.generation in ("", head.generation)

    def own_total(self, head: Head) -> Spending:
        """Return what this run has drawn, without earlier runs with its id."""
        return self.total - self.former if self.is_of_run(head) else NO_SPENDING

    def is_of_later_claim(self, head: Head) -> bool:
        """Return whether a later claim of the run changed it. Then this claim must not."""
        return self.generation == head.generation and self.epoch > head.epoch


def account_of(item: Mapping[str, Any]) -> Account:
    """Return the account in an item.

    Raises:
        JournalDamaged: the item is not an account.
    """
    try:
        return Account(
            msgspec.convert(item["limits"], BudgetLimits),
            msgspec.convert(item["granted"], Spending),
            typed_attribute(item, "version", int),
            typed_attribute(item, "ttl", int),
            typed_attribute(item, "fundings", int),
            msgspec.convert(item.get("waiting", ()), tuple[str, ...]),
            item.get("closed", False) is True,
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the account", error) from error


def grant_of(item: Mapping[str, Any] | None) -> Grant:
    """Return the grant in an item; an empty grant if there is no item.

    Raises:
        JournalDamaged: the item is not a grant.
    """
    if item is None:
        return Grant()
    try:
        return Grant(
            msgspec.convert(item["total"], Spending),
            typed_attribute(item, "version", int),
            typed_attribute(item, "by", str),
            item.get("closed", False) is True,
            msgspec.convert(item.get("generation", ""), str),
            msgspec.convert(item.get("epoch", 0), int),
            msgspec.convert(item.get("former", (0, 0)), Spending),
        )
    except DECODE_ERRORS as error:
        raise damaged_item_error(item, "the grant", error) from error


def open_account_writes(
    head: Head, limits: BudgetLimits, spent: Spending, *, token: str
) -> tuple[Put, Put]:
    """Return the writes that open a run's account, with its spending so far as the first grant.

    Until the first draw the owner of the run may open the account again, but no earlier owner.
    """
    place, own = (
        account_key(head.key, head.generation),
        _grant_key_attributes(head.key, head.generation, head.key),
    )
    ours = AllOf((Equals("version", 1), Less("epoch", head.epoch + 1)))
    account = {
        "PK": place.pk,
        "SK": place.sk,
        "ttl": head.ttl,
        "limits": _limits(limits),
        "fundings": head.fundings,
        "granted": _pair(spent),
        "version": 1,
        "epoch": head.epoch,
    }
    grant = {
        **own,
        "ttl": head.ttl,
        "total": _pair(spent),
        "version": 1,
        "by": token,
        "generation": head.generation,
        "epoch": head.epoch,
    }
    return Put(account, AnyOf((Absent("PK"), ours)), token), Put(grant, None, token)


def draw_writes(
    head: Head, payer: RunRef, account: Account, grant: Grant, more: Spending, *, token: str
) -> tuple[Update, Update]:
    """Return the writes by which a run draws more. The grant then names its claim."""
    granted = account.granted + more
    former = grant.former if grant.is_of_run(head) else grant.total
    changes = {"total": _pair(grant.total + more), "former": _pair(former), "closed": False}
    return (
        _account_update(head.key, payer, account, {"granted": _pair(granted)}, token=token),
        _grant_update(head, payer, account, grant, changes, token=token),
    )


def return_unspent_writes(
    head: Head, payer: RunRef, account: Account, grant: Grant, spent: Spending, *, token: str
) -> tuple[Update, Update]:
    """Return the writes by which a run that has ended returns what it did not spend."""
    kept = grant.former + account.limited_part(spent)
    granted = account.granted - grant.total + kept
    changes = {"granted": _pair(granted), "waiting": []}
    return (
        _account_update(head.key, payer, account, changes, token=token),
        _grant_update(
            head, payer, account, grant, {"total": _pair(kept), "closed": True}, token=token
        ),
    )


def return_rest_writes(
    head: Head, payer: RunRef, account: Account, grant: Grant, needed: Spending, *, token: str
) -> tuple[Update, Update]:
    """Return the writes by which a run that goes on returns what it drew and does not need now.

    The waiting runs are cleared, because the caller wakes them. The run itself stays listed.
    """
    kept = grant.former + grant.own_total(head).at_most(needed)
    granted = account.granted - grant.total + kept
    waiting = [run for run in account.waiting if run == head.key.id]
    changes = {"granted": _pair(granted), "waiting": waiting}
    return (
        _account_update(head.key, payer, account, changes, token=token),
        _grant_update(head, payer, account, grant, {"total": _pair(kept)}, token=token),
    )


def close_account_write(head: Head, account: Account, *, token: str) -> Update:
    """Return the write that closes a run's account. Then nothing more is granted."""
    own = RunRef(head.key.id, head.generation)
    return _account_update(head.key, own, account, {"closed": True}, token=token)


def account_limits_write(
    head: Head, account: Account, limits: BudgetLimits, *, token: str
) -> Update:
    """Return the write that changes the limits of an account, and clears its waiting runs."""
    own = RunRef(head.key.id, head.generation)
    changes: dict[str, Any] = {
        "limits": _limits(limits),
        "fundings": head.fundings,
        "waiting": [],
    }
    return _account_update(head.key, own, account, changes, token=token)


def await_funds_write(run: RunKey, payer: RunRef, account: Account, *, token: str) -> Update | None:
    """Return the write that adds a run to those that wait for more.

    Return None if it is there already, or if the list is full.
    """
    if run.id in account.waiting or len(account.waiting) >= _WAITING_MAX:
        return None
    changes = {"waiting": [*account.waiting, run.id]}
    return _account_update(run, payer, account, changes, token=token)


def _account_update(
    run: RunKey, payer: RunRef, account: Account, changes: dict[str, Any], *, token: str
) -> Update:
    return Update(
        key=account_key(RunKey(run.tenant, payer.id), payer.generation),
        set={**changes, "version": account.version + 1},
        condition=Equals("version", account.version),
        token=token,
    )


def _grant_update(
    head: Head,
    payer: RunRef,
    account: Account,
    grant: Grant,
    changes: dict[str, Any],
    *,
    token: str,
) -> Update:
    return Update(
        key=grant_key(RunKey(head.key.tenant, payer.id), payer.generation, head.key.id),
        set={
            **changes,
            "version": grant.version + 1,
            "by": token,
            "ttl": account.ttl,
            "generation": head.generation,
            "epoch": head.epoch,
        },
        condition=Equals("version", grant.version) if grant.version else Absent("PK"),
        token=token,
    )


def _grant_key_attributes(account: RunKey, generation: str, run: RunKey) -> dict[str, Any]:
    place = grant_key(account, generation, run.id)
    return {"PK": place.pk, "SK": place.sk}


def _pair(spending: Spending) -> list[int]:
    return [spending.tokens, spending.nanodollars]


def _limits(limits: BudgetLimits) -> dict[str, Any]:
    named = {"tokens": limits.tokens, "nanodollars": limits.nanodollars}
    stored: dict[str, Any] = {name: limit for name, limit in named.items() if limit is not None}
    if limits.estimate:
        stored["estimate"] = True
    return stored
