"""Bugs to plant in what is done with signals near an expiry, and behind the end of a run."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from holdfast.engine.execution import claimed_run, driver
from holdfast.engine.kernel.kernel import Kernel
from holdfast.engine.runs import signalling
from holdfast.errors import RunEnded
from holdfast.model.event import Event, Fenced
from holdfast.model.signals import Signal
from holdfast.records.head import Head
from tests.simulation.bugs.planting import bug


@bug()
def a_resend_past_the_expiry_is_refused(patch: pytest.MonkeyPatch) -> None:
    async def heedless(kernel: Kernel, head: Head, signal: Any) -> Any:
        raise RunEnded(f"run {head.key.id!r} has expired", status="expired")

    patch.setattr(signalling, "_accepted_before", heedless)


@bug()
def signals_of_one_millisecond_in_the_order_of_their_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Signal, "order", property(lambda self: (self.accepted_ms, self.id)))


@bug()
def stamps_without_an_order_within_a_millisecond(patch: pytest.MonkeyPatch) -> None:
    signal_item = signalling.signal_item

    def shuffled(head: Head, *, token: str, **values: Any) -> Any:
        anything = hashlib.blake2b(token.encode(), digest_size=11).hexdigest()
        return signal_item(head, token=token[:14] + anything, **values)

    patch.setattr(signalling, "signal_item", shuffled)


@bug()
def leave_a_refused_signal_in_a_freed_run(patch: pytest.MonkeyPatch) -> None:
    async def careless(kernel: Kernel, put: Any) -> None: ...

    patch.setattr(signalling, "_withdraw", careless)


@bug()
def take_back_a_signal_of_a_run_that_is_only_closing(patch: pytest.MonkeyPatch) -> None:
    """Its sender does not wait to see what becomes of the run, which may take the signal yet."""
    tell = signalling._tell_run

    async def hasty(kernel: Kernel, hands: Any, head: Head, signal: Any, lying: Any) -> None:
        try:
            await tell(kernel, hands, head, signal, lying)
        except signalling.RunClosing:
            await signalling._withdraw(kernel, lying.put)
            raise

    patch.setattr(signalling, "_tell_run", hasty)


@bug()
def a_fence_behind_the_end(patch: pytest.MonkeyPatch) -> None:
    """A worker that takes over a run which has ended writes a fence there."""
    take_in = claimed_run.Hold.take_in

    def unended(self: Any, loaded: Any) -> None:
        take_in(self, loaded)
        if self.head.torn and self.execution.ending is not None:
            self.fences_anyway = True

    resume = driver.Driver._resume

    async def fencing(self: Any) -> None:
        await resume(self)
        if getattr(self.hold, "fences_anyway", False) and self.hold.head.torn:
            event: Event = Fenced(self.hold.now_ms(), self.hold.head.epoch, self.hold.worker)
            await self.hold.write((event,))
            self.hold.head = msgspec.structs.replace(self.hold.head, torn=False)

    patch.setattr(claimed_run.Hold, "take_in", unended)
    patch.setattr(driver.Driver, "_resume", fencing)
