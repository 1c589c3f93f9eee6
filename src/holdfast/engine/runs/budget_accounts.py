"""Draws on accounts that several runs share, and gives back what was not needed.

Each change compares what it read, and is refused where a later claim of the run made one before: so
a worker that stalled past its lease never gives back what a retry of its run is using.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from holdfast.engine.kernel.kernel import Dropped, Kernel
from holdfast.engine.runs.budget_changes import prompt
from holdfast.engine.runs.local_workers import Hands
from holdfast.errors import (
    ConditionFailed,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionCancelled,
)
from holdfast.model.budget import Limits
from holdfast.model.spending import NOTHING, Spending
from holdfast.records import account as records
from holdfast.records.account import Account, Grant
from holdfast.records.head import Head, Parent, head_of
from holdfast.records.keys import RunKey, account_key, grant_key
from holdfast.storage import Key, Put, Update

__all__ = ["Accounts", "Short", "close", "granted"]


class Short(Exception):
    """There is not enough left; what is lacking is its message."""


class Accounts:
    """The accounts on which runs of this process draw.

    Whoever draws here waits for others here, so that a crowd does not stand in its own way.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def open(self, head: Head, limits: Limits, spent: Spending) -> None:
        """Open the account of a run, which spent so much so far, unless that was done before.

        Raises:
            Dropped: a later claim of the run opened it.
            StoreUnavailable: the store did not say what became of it.
        """
        writes = records.opened(head, limits, spent, token=self._kernel.ids.new())
        stood = False
        try:
            await self._together(writes)
        except TransactionCancelled:
            # We opened it ourselves, and only the answer was lost; or it is not ours to open.
            stood = True
        # Whoever gave the run another budget meanwhile found no account that was to have it, too.
        await self._agree(head)
        if not stood:
            return
        try:  # it may lack what was spent since somebody opened it, and died
            await self.draw(head, Parent(head.key.id, head.generation), spent, NOTHING)
        except Short as short:  # others were in the way each time, and nobody opened it
            raise StoreUnavailable(f"the account of run {head.key.id!r}: {short}") from short

    async def draw(self, head: Head, draws: Parent, known: Spending, need: Spending) -> Spending:
        """Return all that a run was given, once that is so much more than it knew of, or more.

        What it knew of may be spent, and so it is granted whatever the limits are by now.

        Raises:
            Short: there is not enough left; it is among those that wait now.
            Dropped: a later claim of the run has drawn, or settled.
            StoreUnavailable: the store did not say what became of it.
        """
        while True:
            async with self._turn(head.key, draws):
                account, grant = await _read(self._kernel, head.key, draws)
                if account is None:
                    raise Short("a budget, and that is gone")
                if grant.is_past(head):
                    raise Dropped
                own, token = grant.own(head), self._kernel.ids.new()
                owed = _beyond(account.limited(known), own)
                more = _beyond(account.limited(known + need), own)
                lacking = account.lacking(owed, more - owed)
                if lacking is not None and owed == NOTHING:
                    if await self._wait(head.key, draws, account, token):
                        raise Short(lacking)
                    continue
                if lacking is not None:
                    more = owed  # what is spent is granted first; the rest is asked for again
                if more == NOTHING and grant.is_held_by(head):
                    return own
                writes = records.drawn(head, draws, account, grant, more, token=token)
                if await self._changed(head.key, draws, writes, token) and lacking is None:
                    return own + more

    async def settle(self, hands: Hands, head: Head, spent: Spending) -> None:
        """Give back what an ended run did not need, and wake those that wait for it.

        Raises:
            Dropped: a later claim of the run has drawn, or settled.
            StoreUnavailable: the store did not say what became of it.
        """
        if head.draws is None:
            return
        holder, draws = head.key, head.draws
        while True:
            async with self._turn(holder, draws):
                account, grant = await _read(self._kernel, holder, draws)
                if grant.is_past(head):
                    raise Dropped
                if account is None or grant.closed or not grant.version or not grant.is_of(head):
                    return
                token = self._kernel.ids.new()
                writes = records.returned(head, draws, account, grant, spent, token=token)
                if await self._changed(holder, draws, writes, token):
                    break
        for run in account.waiting:
            await prompt(self._kernel, hands, RunKey(holder.tenant, run))

    async def fund(self, hands: Hands, head: Head) -> None:
        """Give the account of a run the limits of its row, if it has one; wake those that wait."""
        for run in await self._agree(head):
            await prompt(self._kernel, hands, RunKey(head.key.tenant, run))

    async def _agree(self, head: Head) -> list[str]:
        """Let the account of a run say what its row says; return who waited for more.

        Of two budgets the later one counts, however late whoever read the earlier one wakes up.
        """
        draws, waiting = Parent(head.key.id, head.generation), list[str]()
        while True:
            item = await self._kernel.heads.get(head.key.head)
            account, _ = await _read(self._kernel, head.key, draws)
            if item is None or item.get("generation") != head.generation or account is None:
                return waiting
            waiting += account.waiting
            row = head_of(item)
            if row.budget is None or row.fundings <= account.fundings:
                return waiting
            write = records.funded(row, account, row.budget, token=self._kernel.ids.new())
            # Whether it stands or not, both are looked at again: the row may say another thing.
            with suppress(ConditionFailed):
                await self._kernel.settle(self._kernel.accounts, write)

    async def limits(self, holder: RunKey, draws: Parent) -> Limits | None:
        """Return the limits of an account; None where it is gone."""
        account, _ = await _read(self._kernel, holder, draws)
        return None if account is None else account.limits

    async def _wait(self, holder: RunKey, draws: Parent, account: Account, token: str) -> bool:
        """Stand among those that wait for more; return whether that is written."""
        write = records.awaited(holder, draws, account, token=token)
        if write is None:
            return True
        try:
            await self._kernel.settle(self._kernel.accounts, write)
        except ConditionFailed:
            return False
        return True

    async def _changed(
        self, holder: RunKey, draws: Parent, writes: Sequence[Update], token: str
    ) -> bool:
        """Carry out a change of an account and a grant; return whether it stands."""
        try:
            await self._together(writes)
        except TransactionCancelled:
            _, grant = await _read(self._kernel, holder, draws)
            return grant.token == token  # an earlier sending of it was carried out
        return True

    async def _together(self, writes: Sequence[Put | Update]) -> None:
        try:
            await self._kernel.settle_together(self._kernel.accounts, writes)
        except OutcomeUnknown as error:
            raise StoreUnavailable(str(error)) from error

    def _turn(self, holder: RunKey, draws: Parent) -> asyncio.Lock:
        key = account_key(RunKey(holder.tenant, draws.id), draws.generation)
        turn = self._turns.get(key)
        if turn is None:
            turn = self._turns[key] = asyncio.Lock()
        return turn


async def granted(kernel: Kernel, head: Head) -> Spending | None:
    """Return what a run and those that it started may have spent; None where it has no account."""
    account, _ = await _read(kernel, head.key, Parent(head.key.id, head.generation))
    return None if account is None else account.granted


async def close(kernel: Kernel, head: Head) -> Spending | None:
    """Let nothing more be drawn on a run's account; return what may have been spent of it.

    None where it has no account.

    Raises:
        OutcomeUnknown, StoreUnavailable: the store did not say what became of it.
    """
    while True:
        account, _ = await _read(kernel, head.key, Parent(head.key.id, head.generation))
        if account is None or account.closed:
            return None if account is None else account.granted
        with suppress(ConditionFailed):  # somebody drew, or gave back: what is granted changed
            write = records.closed(head, account, token=kernel.ids.new())
            await kernel.settle(kernel.accounts, write)


async def _read(kernel: Kernel, holder: RunKey, draws: Parent) -> tuple[Account | None, Grant]:
    owner = RunKey(holder.tenant, draws.id)
    keys = [
        account_key(owner, draws.generation),
        grant_key(owner, draws.generation, holder.id),
    ]
    account, grant = await kernel.accounts.get_many(keys)
    standing = None if account is None else records.account_of(account)
    return standing, records.grant_of(grant)


def _beyond(wanted: Spending, given: Spending) -> Spending:
    return Spending(
        max(wanted.tokens - given.tokens, 0), max(wanted.nanodollars - given.nanodollars, 0)
    )
