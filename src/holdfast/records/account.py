"""Accounts: what a run and those that it started may spend together, and who was given how much.

An account lies beside the row of the run that has the budget. A run that draws on it has a grant
there: all that it was given so far. Both change in one transaction, so what is granted is the sum
of the grants, and whoever draws twice, not knowing what became of the first time, finds it there.

A grant names the claim of its run (generation and epoch) that changed it last. A worker whose claim
is older changes it no more: a run that was retried meanwhile may be using what it would give back.
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
    "return_unspent_writes",
]

_WAITING_MAX = 100


class Account(msgspec.Struct, frozen=True):
    """What may be spent together, and what is spoken for."""

    limits: BudgetLimits
    granted: Spending
    version: int
    ttl: int
    fundings: int = 0
    """How often the run had been given another budget when it got these limits."""
    waiting: tuple[str, ...] = ()
    """Runs that wait for more; where there are many, not all of them."""
    closed: bool = False
    """Whether its run told its parent what all of them spent: then nothing more is granted."""

    def shortfall(self, ungranted: Spending, need: Spending) -> str | None:
        """Return what is needed beyond what is left, as people read it; None if that is enough.

        ``owed`` was spent already, and is not granted yet.
        """
        if self.closed and need != NO_SPENDING:
            return "a budget, and that of its run is settled"
        return self.limits.shortfall(self.granted + ungranted, 0, need)

    def limited_part(self, spending: Spending) -> Spending:
        """Return what counts of a sum: what has no limit does not."""
        return Spending(
            0 if self.limits.tokens is None else spending.tokens,
            0 if self.limits.nanodollars is None else spending.nanodollars,
        )


class Grant(msgspec.Struct, frozen=True):
    """What one run was given in all."""

    total: Spending = Spending()
    version: int = 0
    token: str = ""
    closed: bool = False
    """Whether the run gave back what it did not need."""
    generation: str = ""
    epoch: int = 0
    """The claim that changed it last; unknown where an earlier version of Holdfast did."""
    former: Spending = NO_SPENDING
    """The part of the total that went to earlier runs with the same id."""

    def is_of_run(self, head: Head) -> bool:
        """Return whether the grant belongs to this very run, and not to an earlier namesake."""
        return self.generation in ("", head.generation)

    def own_total(self, head: Head) -> Spending:
        """Return what this very run was given."""
        return self.total - self.former if self.is_of_run(head) else NO_SPENDING

    def is_of_claim(self, head: Head) -> bool:
        """Return whether this very claim changed it last."""
        return (self.generation, self.epoch) == (head.generation, head.epoch)

    def is_of_later_claim(self, head: Head) -> bool:
        """Return whether a later claim of the run changed it: then this one must not."""
        return self.generation == head.generation and self.epoch > head.epoch


def account_of(item: Mapping[str, Any]) -> Account:
    """Return the account that an item is.

    Raises:
        JournalDamaged: it is none.
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
    """Return the grant that an item is; nothing was granted where there is none.

    Raises:
        JournalDamaged: it is none.
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
    """Return the writes that open a run's account, its own spending so far being granted.

    As long as nobody drew on it, whoever holds the run may open it anew, but no earlier owner.
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
    """Return the writes by which a run is given more; from then on the grant names its claim."""
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
    """Return the writes by which a run that has ended gives back what it did not need."""
    kept = grant.former + account.limited_part(spent)
    granted = account.granted - grant.total + kept
    changes = {"granted": _pair(granted), "waiting": []}
    return (
        _account_update(head.key, payer, account, changes, token=token),
        _grant_update(
            head, payer, account, grant, {"total": _pair(kept), "closed": True}, token=token
        ),
    )


def close_account_write(head: Head, account: Account, *, token: str) -> Update:
    """Return the write after which nothing more is granted out of a run's account."""
    own = RunRef(head.key.id, head.generation)
    return _account_update(head.key, own, account, {"closed": True}, token=token)


def account_limits_write(
    head: Head, account: Account, limits: BudgetLimits, *, token: str
) -> Update:
    """Return the write that gives a run's account other limits; nobody waits there any more."""
    own = RunRef(head.key.id, head.generation)
    changes: dict[str, Any] = {
        "limits": _limits(limits),
        "fundings": head.fundings,
        "waiting": [],
    }
    return _account_update(head.key, own, account, changes, token=token)


def await_funds_write(run: RunKey, payer: RunRef, account: Account, *, token: str) -> Update | None:
    """Return the write by which a run is among those that wait for more.

    None where it is, or where so many do that not all of them are named.
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
    return {name: limit for name, limit in named.items() if limit is not None}
