"""Bugs to plant in what is done to the world outside: fleets that call it are to find them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.engine.effects import (
    ambiguous_calls,
    call_records,
    calls,
    quota_changes,
    quota_item,
)
from holdfast.engine.execution import (
    budget_guard,
    claimed_run,
    external_effects,
    journal_session,
    visit_calls,
    visit_permits,
    visit_waits,
)
from holdfast.engine.execution.journal_session import JournalConflict
from holdfast.engine.journal import writer
from holdfast.engine.kernel import kernel
from holdfast.engine.runs import budget_accounts
from holdfast.errors import ConditionFailed
from holdfast.model import quota_level
from holdfast.model.event import CallIntended, CallReserved, CallVoided, Snapshot
from holdfast.model.execution import Execution
from holdfast.model.spending import NO_SPENDING
from holdfast.records import account
from holdfast.storage.layout import TOKEN
from tests.simulation import effects
from tests.simulation.bugs.planting import bug


@bug("calling")
def an_answer_used_before_it_is_recorded(patch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Any) -> None:
        self._claim.check_alive()
        if not self.is_loaded:
            raise JournalConflict

    patch.setattr(journal_session.JournalSession, "wait_durable", hasty)


@bug("calling", effect_lost=0.2, effect_stall=0.06)
def a_call_made_after_the_run_was_lost(patch: pytest.MonkeyPatch) -> None:
    """A worker that stood still between two tries does not ask whether the run is still its own."""
    put_off = visit_waits.VisitWaits.sleep_or_pause
    begin_call = visit_calls.VisitCalls.flush_before_call

    async def deaf(self: Any, *arguments: Any) -> None:
        await put_off(self, *arguments)
        self._visit.deaf = True

    async def heedless(self: Any) -> None:
        if not getattr(self._visit, "deaf", False):
            await begin_call(self)
        self._visit.deaf = False

    patch.setattr(visit_waits.VisitWaits, "sleep_or_pause", deaf)
    patch.setattr(visit_calls.VisitCalls, "flush_before_call", heedless)


@bug("calling")
def a_probe_that_only_looked(patch: pytest.MonkeyPatch) -> None:
    """Whoever says that a call came to nothing does not see to it that it stays so."""
    patch.setattr(effects.Outside, "_burn", lambda self, key: None)


@bug("calling")
def one_that_may_have_been_made_is_made_again(patch: pytest.MonkeyPatch) -> None:
    async def careless(self: Any, call: str, *arguments: Any, **values: Any) -> None:
        await self._records.record(CallVoided, call, "tool", durable=True)

    patch.setattr(ambiguous_calls.AmbiguousCalls, "resolve", careless)


@bug("calling")
def an_intent_that_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    record = call_records.CallRecords.record

    async def hasty(self: Any, kind: Any, *arguments: Any, durable: bool, **values: Any) -> None:
        await record(self, kind, *arguments, durable=durable and kind is not CallIntended, **values)

    patch.setattr(call_records.CallRecords, "record", hasty)


@bug("calling")
def calls_that_a_resume_forgets(patch: pytest.MonkeyPatch) -> None:
    take_in = claimed_run.ClaimedRun.apply_loaded

    def forgetful(self: Any, loaded: Any) -> None:
        blank = msgspec.structs.replace(loaded.execution, calls={})
        take_in(self, msgspec.structs.replace(loaded, execution=blank))

    patch.setattr(claimed_run.ClaimedRun, "apply_loaded", forgetful)


@bug("calling")
def snapshot_without_calls(patch: pytest.MonkeyPatch) -> None:
    snapshot = writer.snapshot

    def forgetful(execution: Execution, at_ms: int, **values: Any) -> Snapshot:
        return snapshot(msgspec.structs.replace(execution, calls={}), at_ms, **values)

    patch.setattr(writer, "snapshot", forgetful)


@bug("calling")
def a_key_for_each_owner(patch: pytest.MonkeyPatch) -> None:
    key_of = call_records.CallRecords.idempotency_key

    def fresh(self: Any, call: str) -> str:
        return f"{key_of(self, call)}.{self._host._visit.claimed.head.epoch}"

    patch.setattr(call_records.CallRecords, "idempotency_key", fresh)


@bug("calling")
def calls_told_apart_by_who_is_faster(patch: pytest.MonkeyPatch) -> None:
    """Calls side by side have their numbers in the order in which their turn comes."""
    call = calls.Calls.call

    async def late(self: Any, name: str, asked: Any) -> Any:
        if asked.key is None:
            turn = asyncio.get_running_loop().create_future()
            turn.get_loop().call_soon(turn.set_result, None)
            await turn
            self._shared = getattr(self, "_shared", 0) + 1
            name = f"{asked.tool.name}#{self._shared}"
        return await call(self, name, asked)

    patch.setattr(calls.Calls, "call", late)


@bug("calling")
def ambiguous_calls_that_nobody_finds(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(external_effects.ExternalEffects, "add_ambiguous_call", nothing)


# --- budgets --------------------------------------------------------------------------------------


@bug("calling")
def set_aside_after_the_call(patch: pytest.MonkeyPatch) -> None:
    set_aside, tried = visit_calls.VisitCalls.reserve_budget, calls.Calls._attempt

    async def not_yet(*arguments: Any) -> None: ...

    async def late(self: Any, call: str, digest: bytes, asked: Any) -> Exception | None:
        raised = await tried(self, call, digest, asked)
        await set_aside(self._host, call, asked.price)
        return raised

    patch.setattr(visit_calls.VisitCalls, "reserve_budget", not_yet)
    patch.setattr(calls.Calls, "_attempt", late)


@bug("calling")
def set_aside_but_not_durably(patch: pytest.MonkeyPatch) -> None:
    record = journal_session.JournalSession.record

    async def hasty(self: Any, *events: Any, durable: bool, on_resolved: Any = None) -> None:
        reserves = any(isinstance(event, CallReserved) for event in events)
        durable = durable and not reserves
        await record(self, *events, durable=durable, on_resolved=on_resolved)
        if reserves and on_resolved is not None:
            on_resolved()

    patch.setattr(journal_session.JournalSession, "record", hasty)


@bug("calling")
def a_lost_call_counts_as_unpaid(patch: pytest.MonkeyPatch) -> None:
    def instead(*arguments: Any) -> CallReserved:
        return CallReserved(*arguments, instead=True)

    patch.setattr(budget_guard, "CallReserved", instead)


@bug("calling")
def calls_side_by_side_that_do_not_see_each_other(patch: pytest.MonkeyPatch) -> None:
    lacking, spend = (
        budget_guard.BudgetGuard._try_reserve,
        budget_guard.BudgetGuard._write_reservation,
    )

    async def blind(self: Any, *arguments: Any) -> str | None:
        self._reservations.clear()
        return await lacking(self, *arguments)

    async def unseen(self: Any, *arguments: Any) -> None:
        await spend(self, *arguments)
        self._reservations.clear()

    patch.setattr(budget_guard.BudgetGuard, "_write_reservation", unseen)
    patch.setattr(budget_guard.BudgetGuard, "_try_reserve", blind)


@bug("calling", effect_lost=0.6)
def set_aside_for_a_node_that_is_over(patch: pytest.MonkeyPatch) -> None:
    """What a node began goes on after its run was let go of, and writes into its journal."""

    async def heedless(self: Any, visit: Any, event: Any, pending: Any) -> None:
        self._claimed.claim.check_alive()
        journal = self._claimed.journal
        try:
            await journal.shield_write(journal.write((event,)))
        except writer.PositionTaken:
            raise JournalConflict from None
        finally:
            self._reservations.pop(pending, None)

    patch.setattr(budget_guard.BudgetGuard, "_write_reservation", heedless)


@bug("calling")
def a_budget_that_its_account_does_not_hear_of(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> list[str]:
        return []

    patch.setattr(budget_accounts.Accounts, "_sync_limits", nothing)


@bug("calling")
def a_slice_that_is_not_set_aside(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(budget_guard.BudgetGuard, "grant_child_budget", nothing)


@bug("calling")
def accounts_that_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    update = account._account_update

    def blind(*arguments: Any, **values: Any) -> Any:
        return msgspec.structs.replace(update(*arguments, **values), condition=None)

    patch.setattr(account, "_account_update", blind)


@bug("calling")
def what_may_have_been_paid_is_given_back(patch: pytest.MonkeyPatch) -> None:
    settle = budget_accounts.Accounts.release_unspent

    async def generous(self: Any, hands: Any, head: Any, spent: Any) -> None:
        await settle(self, hands, head, NO_SPENDING)

    patch.setattr(budget_accounts.Accounts, "release_unspent", generous)


@bug("calling")
def nobody_gives_back(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(budget_accounts.Accounts, "release_unspent", nothing)


# --- quotas ---------------------------------------------------------------------------------------


@bug("calling")
def a_slot_that_is_kept_though_the_run_was_lost(patch: pytest.MonkeyPatch) -> None:
    """Its worker goes on under another name, and renews it for ever."""

    async def admit(self: Any, quota: Any, cost: Any, told_ms: Any) -> Any:
        held, desk = self._claimed, self.resources.quota_limiter
        tenant = held.head.key.tenant
        admission = await held.claim.retry_store_errors(
            lambda: desk.acquire(quota, tenant, cost=cost, retry_at_ms=told_ms)
        )
        held.claim.check_alive()
        return admission

    patch.setattr(external_effects.ExternalEffects, "acquire_permit", admit)


@bug("calling")
def a_quota_that_nobody_heeds(patch: pytest.MonkeyPatch) -> None:
    async def always(*arguments: Any) -> None: ...

    patch.setattr(visit_permits.VisitPermits, "acquire", always)


@bug("calling")
def a_slot_released_twice(patch: pytest.MonkeyPatch) -> None:
    """Slots are counted, and not known by their tokens; and a call gives its own back twice."""
    let_go = quota_item.QuotaItem.release

    def twice(self: Any, token: str) -> None:
        let_go(self, token)
        self.submit(quota_changes.PermitRelease(token))

    def any_one(
        before: quota_level.QuotaLevel, tokens: Any, *, now_ms: int
    ) -> quota_level.QuotaLevel:
        left = sorted(before.permits)[len(list(tokens)) :]
        slots = {token: before.permits[token] for token in left}
        return msgspec.structs.replace(before, permits=slots)

    patch.setattr(quota_item.QuotaItem, "release", twice)
    patch.setattr(quota_level, "released", any_one)


@bug("calling")
def a_refused_admission_is_taken_for_a_yes(patch: pytest.MonkeyPatch) -> None:
    settle = kernel.Kernel.resolve_write

    async def hopeful(self: Any, table: Any, write: Any, **values: Any) -> Any:
        try:
            return await settle(self, table, write, **values)
        except ConditionFailed:
            if not write.key.pk.startswith("QUOTA#"):
                raise
            return {**write.item, TOKEN: write.token}

    patch.setattr(kernel.Kernel, "resolve_write", hopeful)
