"""Accounts: what a run and those that it started may spend together, and who was given how much.

An account lies beside the row of the run that has the budget. A run that draws on it has a grant
there: all that it was given so far. Both change in one transaction, so what is granted is the sum
of the grants, and whoever draws twice, not knowing what became of the first time, finds it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.budget import Limits
from holdfast.model.spending import Spending
from holdfast.records.head import Head, Parent
from holdfast.records.keys import RunKey, account_key, grant_key
from holdfast.storage import Absent, AllOf, AnyOf, Equals, Less, Put, Update

__all__ = [
    "Account",
    "Grant",
    "account_of",
    "drawn",
    "funded",
    "grant_of",
    "opened",
    "returned",
    "waiting_too",
]

_WAITING_MAX = 100


class Account(msgspec.Struct, frozen=True):
    """What may be spent together, and what is spoken for."""

    limits: Limits
    granted: Spending
    version: int
    ttl: int
    waiting: tuple[str, ...] = ()
    """Runs that wait for more; where there are many, not all of them."""

    def lacking(self, need: Spending) -> str | None:
        """Return what is needed beyond what is left, as people read it; None if that is enough."""
        return self.limits.lacking(self.granted, 0, need)

    def limited(self, spending: Spending) -> Spending:
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


def account_of(item: Mapping[str, Any]) -> Account:
    """Return the account that an item is."""
    limits = item["limits"]
    return Account(
        Limits(limits.get("tokens"), limits.get("nanodollars")),
        Spending(*item["granted"]),
        item["version"],
        item["ttl"],
        tuple(item.get("waiting", ())),
    )


def grant_of(item: Mapping[str, Any] | None) -> Grant:
    """Return the grant that an item is; nothing was granted where there is none."""
    if item is None:
        return Grant()
    total = Spending(*item["total"])
    return Grant(total, item["version"], item["by"], item.get("closed", False))


def opened(head: Head, limits: Limits, spent: Spending, *, token: str) -> tuple[Put, Put]:
    """Return the writes that open a run's account, its own spending so far being granted.

    As long as nobody drew on it, whoever holds the run may open it anew, but no earlier owner.
    """
    place, own = account_key(head.key, head.generation), _grant(head.key, head.generation, head.key)
    ours = AllOf((Equals("version", 1), Less("epoch", head.epoch + 1)))
    account = {
        "PK": place.pk,
        "SK": place.sk,
        "ttl": head.ttl,
        "limits": _limits(limits),
        "granted": [spent.tokens, spent.nanodollars],
        "version": 1,
        "epoch": head.epoch,
    }
    grant = {**own, "ttl": head.ttl, **_total(spent), "version": 1, "by": token}
    return Put(account, AnyOf((Absent("PK"), ours)), token), Put(grant, None, token)


def drawn(
    holder: RunKey,
    draws: Parent,
    account: Account,
    grant: Grant,
    more: Spending,
    *,
    token: str,
) -> tuple[Update, Update]:
    """Return the writes by which a run is given more."""
    return (
        _account_update(holder, draws, account, account.granted + more, token=token),
        _grant_update(holder, draws, account, grant, grant.total + more, token=token),
    )


def returned(
    holder: RunKey, draws: Parent, account: Account, grant: Grant, spent: Spending, *, token: str
) -> tuple[Update, Update]:
    """Return the writes by which a run that has ended gives back what it did not need."""
    kept = account.limited(spent)
    granted = account.granted - grant.total + kept
    closing = _grant_update(holder, draws, account, grant, kept, token=token, closed=True)
    return _account_update(holder, draws, account, granted, token=token, waiting=()), closing


def funded(
    run: RunKey,
    generation: str,
    account: Account,
    *,
    limits: Limits | None = None,
    waiting: tuple[str, ...] = (),
    token: str,
) -> Update:
    """Return the write that gives an account other limits, or says who waits for more."""
    changes: dict[str, Any] = {"version": account.version + 1, "waiting": list(waiting)}
    if limits is not None:
        changes["limits"] = _limits(limits)
    return Update(
        key=account_key(run, generation),
        set=changes,
        condition=Equals("version", account.version),
        token=token,
    )


def waiting_too(account: Account, run: str) -> tuple[str, ...]:
    """Return who waits for more, with one more run; where there are many, the first ones."""
    if run in account.waiting or len(account.waiting) >= _WAITING_MAX:
        return account.waiting
    return (*account.waiting, run)


def _account_update(
    holder: RunKey,
    draws: Parent,
    account: Account,
    granted: Spending,
    *,
    token: str,
    waiting: tuple[str, ...] | None = None,
) -> Update:
    changes: dict[str, Any] = {
        "granted": [granted.tokens, granted.nanodollars],
        "version": account.version + 1,
    }
    if waiting is not None:
        changes["waiting"] = list(waiting)
    return Update(
        key=account_key(RunKey(holder.tenant, draws.id), draws.generation),
        set=changes,
        condition=Equals("version", account.version),
        token=token,
    )


def _grant_update(
    holder: RunKey,
    draws: Parent,
    account: Account,
    grant: Grant,
    total: Spending,
    *,
    token: str,
    closed: bool = False,
) -> Update:
    return Update(
        key=grant_key(RunKey(holder.tenant, draws.id), draws.generation, holder.id),
        set={
            **_total(total),
            "version": grant.version + 1,
            "by": token,
            "ttl": account.ttl,
            "closed": closed,
        },
        condition=Equals("version", grant.version) if grant.version else Absent("PK"),
        token=token,
    )


def _grant(account: RunKey, generation: str, holder: RunKey) -> dict[str, Any]:
    place = grant_key(account, generation, holder.id)
    return {"PK": place.pk, "SK": place.sk}


def _total(total: Spending) -> dict[str, Any]:
    return {"total": [total.tokens, total.nanodollars]}


def _limits(limits: Limits) -> dict[str, Any]:
    named = {"tokens": limits.tokens, "nanodollars": limits.nanodollars}
    return {name: limit for name, limit in named.items() if limit is not None}
