"""Draws on budget accounts that several runs share, and returns what was not spent.

Each change is conditional on what was read, and is refused if a later claim of the run has changed
its grant. So a worker that stalled past its lease never returns money that a retry of its run uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.engine.runs.budget_changes import recheck_budget
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.errors import (
    ConditionFailed,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionCancelled,
)
from holdfast.model.budget import BudgetLimits
from holdfast.model.spending import NO_SPENDING, Spending
from holdfast.records import account as records
from holdfast.records.account import Account, Grant
from holdfast.records.head import Head, RunRef, head_of
from holdfast.records.keys import RunKey, account_key, grant_key
from holdfast.storage import Key, Put, Update

__all__ = ["Accounts", "InsufficientBudget", "close_account", "read_granted"]


class InsufficientBudget(Exception):
    """The account has not enough left; the message says what is missing."""


class Accounts:
    """The accounts that the runs of this process draw on.

    Runs of this process that draw on the same account take turns, so that their writes do not
    conflict with each other.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def open(self, head: Head, limits: BudgetLimits, spent: Spending) -> None:
        """Open the account of a run with what it spent so far, unless it is open already.

        Raises:
            ClaimLost: a later claim of the run opened it.
            StoreUnavailable: the outcome of the write is unknown.
        """
        writes = records.open_account_writes(head, limits, spent, token=self._kernel.ids.new())
        existed = False
        try:
            await self._transact(writes)
        except TransactionCancelled:
            # This claim opened it and only the reply was lost, or another claim opened it.
            existed = True
        # A budget that the run was given meanwhile could not reach the account yet.
        await self._sync_limits(head)
        if not existed:
            return
        try:  # it may lack what was spent since the process that opened it died
            await self.reserve(head, RunRef(head.key.id, head.generation), spent, NO_SPENDING)
        except InsufficientBudget as short:  # each attempt met a conflict, and it is not open
            raise StoreUnavailable(f"the account of run {head.key.id!r}: {short}") from short

    async def reserve(self, head: Head, payer: RunRef, known: Spending, need: Spending) -> Spending:
        """Draw until the grant of a run covers what it knows plus what it needs; return the grant.

        ``known`` may be spent already, so it is granted even if the limits are lower by now.

        Raises:
            InsufficientBudget: there is not enough left; the run is listed as waiting now.
            ClaimLost: a later claim of the run has changed the grant.
            StoreUnavailable: the outcome of the write is unknown.
        """
        while True:
            async with self._lock_of(head.key, payer):
                account, grant = await _read_account(self._kernel, head.key, payer)
                if account is None:
                    raise InsufficientBudget("a budget, but its account is gone")
                if grant.is_of_later_claim(head):
                    raise ClaimLost
                own, token = grant.own_total(head), self._kernel.ids.new()
                owed = _excess(account.limited_part(known), own)
                more = _excess(account.limited_part(known + need), own)
                lacking = account.shortfall(owed, more - owed)
                if lacking is not None and owed == NO_SPENDING:
                    if await self._add_waiter(head.key, payer, account, token):
                        raise InsufficientBudget(lacking)
                    continue
                if lacking is not None:
                    more = owed  # what is spent is granted first; the loop then asks for the rest
                # Written even if the grant is enough: a write that lowers it may be on its way.
                writes = records.draw_writes(head, payer, account, grant, more, token=token)
                if await self._try_write(head.key, payer, writes, token) and lacking is None:
                    return own + more

    async def release_unspent(self, workers: LocalWorkers, head: Head, spent: Spending) -> None:
        """Return what an ended run did not spend, and wake the runs that wait for it.

        Raises:
            ClaimLost: a later claim of the run has changed the grant.
            StoreUnavailable: the outcome of the write is unknown.
        """
        if head.payer is None:
            return
        run_key, payer = head.key, head.payer
        while True:
            async with self._lock_of(run_key, payer):
                account, grant = await _read_account(self._kernel, run_key, payer)
                if grant.is_of_later_claim(head):
                    raise ClaimLost
                if (
                    account is None
                    or grant.closed
                    or not grant.version
                    or not grant.is_of_run(head)
                ):
                    return
                token = self._kernel.ids.new()
                writes = records.return_unspent_writes(
                    head, payer, account, grant, spent, token=token
                )
                if await self._try_write(run_key, payer, writes, token):
                    break
        for run in account.waiting:
            await recheck_budget(self._kernel, workers, RunKey(run_key.tenant, run))

    async def return_rest(
        self, workers: LocalWorkers, head: Head, payer: RunRef, needed: Spending
    ) -> None:
        """Return what a run drew beyond what it needs now, and wake the runs that wait for it.

        The journal of the run must say so before: otherwise a later claim would spend it.

        Raises:
            ClaimLost: a later claim of the run has changed the grant.
            StoreUnavailable: the outcome of the write is unknown.
        """
        run_key = head.key
        while True:
            async with self._lock_of(run_key, payer):
                account, grant = await _read_account(self._kernel, run_key, payer)
                if grant.is_of_later_claim(head):
                    raise ClaimLost
                rest = _excess(grant.own_total(head), needed)
                if account is None or rest == NO_SPENDING:
                    return
                token = self._kernel.ids.new()
                writes = records.return_rest_writes(
                    head, payer, account, grant, needed, token=token
                )
                if await self._try_write(run_key, payer, writes, token):
                    break
        for run in account.waiting:
            if run != run_key.id:
                await recheck_budget(self._kernel, workers, RunKey(run_key.tenant, run))

    async def fund(self, workers: LocalWorkers, head: Head) -> None:
        """Copy the limits of a run's row to its account, if it has one; wake the waiting runs."""
        for run in await self._sync_limits(head):
            await recheck_budget(self._kernel, workers, RunKey(head.key.tenant, run))

    async def _sync_limits(self, head: Head) -> list[str]:
        """Copy the limits of a run's row to its account; return the runs that waited for more.

        Of two budgets the later one wins, even if a stalled process still writes the earlier one.
        """
        payer, waiting = RunRef(head.key.id, head.generation), list[str]()
        while True:
            item = await self._kernel.heads.get(head.key.head)
            account, _ = await _read_account(self._kernel, head.key, payer)
            if item is None or item.get("generation") != head.generation or account is None:
                return waiting
            waiting += account.waiting
            row = head_of(item)
            if row.budget is None or row.fundings <= account.fundings:
                return waiting
            write = records.account_limits_write(
                row, account, row.budget, token=self._kernel.ids.new()
            )
            # Written or not, both are read again: the row may have changed.
            with suppress(ConditionFailed):
                await self._kernel.resolve_write(self._kernel.accounts, write)

    async def read_limits(self, run_key: RunKey, payer: RunRef) -> BudgetLimits | None:
        """Return the limits of an account; None if it is gone."""
        account, _ = await _read_account(self._kernel, run_key, payer)
        return None if account is None else account.limits

    async def _add_waiter(
        self, run_key: RunKey, payer: RunRef, account: Account, token: str
    ) -> bool:
        """Add the run to those that wait for more; return whether that is written."""
        write = records.await_funds_write(run_key, payer, account, token=token)
        if write is None:
            return True
        try:
            await self._kernel.resolve_write(self._kernel.accounts, write)
        except ConditionFailed:
            return False
        return True

    async def _try_write(
        self, run_key: RunKey, payer: RunRef, writes: Sequence[Update], token: str
    ) -> bool:
        """Write a change of an account and a grant; return whether it is written."""
        try:
            await self._transact(writes)
        except TransactionCancelled:
            _, grant = await _read_account(self._kernel, run_key, payer)
            return grant.token == token  # an earlier attempt was carried out
        return True

    async def _transact(self, writes: Sequence[Put | Update]) -> None:
        try:
            await self._kernel.resolve_transaction(self._kernel.accounts, writes)
        except OutcomeUnknown as error:
            raise StoreUnavailable(str(error)) from error

    def _lock_of(self, run_key: RunKey, payer: RunRef) -> asyncio.Lock:
        key = account_key(RunKey(run_key.tenant, payer.id), payer.generation)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock


async def read_granted(kernel: Kernel, head: Head) -> Spending | None:
    """Return what a run and its children may have spent; None if it has no account."""
    account, _ = await _read_account(kernel, head.key, RunRef(head.key.id, head.generation))
    return None if account is None else account.granted


async def close_account(kernel: Kernel, head: Head) -> Spending | None:
    """Close a run's account; return what may have been spent of it, or None without an account.

    Raises:
        OutcomeUnknown, StoreUnavailable: the outcome of the write is unknown.
    """
    while True:
        account, _ = await _read_account(kernel, head.key, RunRef(head.key.id, head.generation))
        if account is None or account.closed:
            return None if account is None else account.granted
        with suppress(ConditionFailed):  # another run drew or returned money meanwhile
            write = records.close_account_write(head, account, token=kernel.ids.new())
            await kernel.resolve_write(kernel.accounts, write)


async def _read_account(
    kernel: Kernel, run_key: RunKey, payer: RunRef
) -> tuple[Account | None, Grant]:
    owner = RunKey(run_key.tenant, payer.id)
    keys = [
        account_key(owner, payer.generation),
        grant_key(owner, payer.generation, run_key.id),
    ]
    account, grant = await kernel.accounts.get_many(keys)
    current = None if account is None else records.account_of(account)
    return current, records.grant_of(grant)


def _excess(wanted: Spending, given: Spending) -> Spending:
    return Spending(
        max(wanted.tokens - given.tokens, 0), max(wanted.nanodollars - given.nanodollars, 0)
    )
