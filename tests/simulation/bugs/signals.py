"""Bugs to plant in what is done with signals near an expiry, and behind the end of a run."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from holdfast.engine.execution import claimed_run, driver, visit_waits
from holdfast.engine.journal import reader
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import signalling
from holdfast.errors import RunEnded
from holdfast.model.event import Event, Fenced
from holdfast.model.signals import Signal
from holdfast.model.wait import Wait
from holdfast.records.head import Head
from tests.simulation.bugs.planting import bug


@bug()
def a_resend_past_the_expiry_is_refused(patch: pytest.MonkeyPatch) -> None:
    async def heedless(kernel: Kernel, head: Head, signal: Any) -> Any:
        raise RunEnded(f"run {head.key.id!r} has expired", status="expired")

    patch.setattr(signalling, "_find_accepted", heedless)


@bug()
def signals_of_one_millisecond_in_the_order_of_their_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Signal, "order", property(lambda self: (self.accepted_ms, self.id)))


@bug()
def stamps_without_an_order_within_a_millisecond(patch: pytest.MonkeyPatch) -> None:
    signal_item = signalling.signal_write

    def shuffled(head: Head, *, token: str, **values: Any) -> Any:
        anything = hashlib.blake2b(token.encode(), digest_size=11).hexdigest()
        return signal_item(head, token=token[:14] + anything, **values)

    patch.setattr(signalling, "signal_write", shuffled)


@bug()
def drop_a_signal_that_does_not_fit(patch: pytest.MonkeyPatch) -> None:
    async def silent(visit: Any, signal: Signal, reason: str) -> None: ...

    patch.setattr(visit_waits, "set_aside", silent)


@bug()
def set_a_signal_aside_twice(patch: pytest.MonkeyPatch) -> None:
    once = visit_waits.set_aside

    async def twice(visit: Any, signal: Signal, reason: str) -> None:
        await once(visit, signal, reason)
        await once(visit, signal, reason)

    patch.setattr(visit_waits, "set_aside", twice)


@bug()
def take_a_signal_that_does_not_fit(patch: pytest.MonkeyPatch) -> None:
    async def blind(*_: Any) -> None: ...

    patch.setattr(visit_waits, "find_payload_misfit", blind)


@bug()
def leave_a_refused_signal_in_a_freed_run(patch: pytest.MonkeyPatch) -> None:
    async def careless(kernel: Kernel, put: Any) -> None: ...

    patch.setattr(signalling, "_withdraw", careless)


@bug()
def take_back_a_signal_of_a_run_that_is_only_closing(patch: pytest.MonkeyPatch) -> None:
    """Its sender does not wait to see what becomes of the run, which may take the signal yet."""
    tell = signalling._notify_run

    async def hasty(kernel: Kernel, hands: Any, head: Head, signal: Any, lying: Any) -> None:
        try:
            await tell(kernel, hands, head, signal, lying)
        except signalling.RunClosing:
            await signalling._withdraw(kernel, lying.put)
            raise

    patch.setattr(signalling, "_notify_run", hasty)


@bug()
def a_wait_that_does_not_time_out_at_the_expiry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Wait, "deadline_by", lambda self, expires_ms: self.deadline_ms)


@bug()
def a_closing_run_takes_a_signal_from_after_its_expiry(patch: pytest.MonkeyPatch) -> None:
    """The end of a child is sent to a closing run, too."""
    untaken, goes_on = reader._untaken_signals, driver.continues_past_expiry

    def timeless(head: Head, item: Any, taken: Any) -> Any:
        return untaken(msgspec.structs.replace(head, expires_ms=2**60), item, taken)

    def lenient(waits: Any, inbox: list[Signal], execution: Any, expires_ms: int) -> bool:
        early = [msgspec.structs.replace(signal, accepted_ms=0) for signal in inbox]
        return goes_on(waits, early, execution, expires_ms)

    patch.setattr(reader, "_untaken_signals", timeless)
    patch.setattr(driver, "continues_past_expiry", lenient)


@bug()
def a_fence_behind_the_end(patch: pytest.MonkeyPatch) -> None:
    """A worker that takes over a run which has ended writes a fence there."""
    take_in = claimed_run.ClaimedRun.apply_loaded

    def unended(self: Any, loaded: Any) -> None:
        take_in(self, loaded)
        if self.head.needs_fence and self.execution.ending is not None:
            self.fences_anyway = True

    resume = driver.Driver._resume

    async def fencing(self: Any) -> None:
        await resume(self)
        if getattr(self.claimed, "fences_anyway", False) and self.claimed.head.needs_fence:
            event: Event = Fenced(
                self.claimed.now_ms(), self.claimed.head.epoch, self.claimed.claim.worker_id
            )
            await self.claimed.journal.write((event,))
            self.claimed.row.mark_fenced()

    patch.setattr(claimed_run.ClaimedRun, "apply_loaded", unended)
    patch.setattr(driver.Driver, "_resume", fencing)
