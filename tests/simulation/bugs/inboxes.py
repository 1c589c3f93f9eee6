"""Bugs to plant in how inboxes are bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.engine.execution import inbox
from holdfast.engine.runs import signalling
from holdfast.records.head import InboxSize
from tests.simulation.bugs.planting import bug

_CROWDS = {"crowds": 1.0}


@bug(**_CROWDS)
def an_inbox_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(signalling, "inbox_overflow", lambda *args: None)


@bug(**_CROWDS)
def a_signal_that_is_sent_again_counts_again(patch: pytest.MonkeyPatch) -> None:
    accept = signalling._put_in_inbox

    async def counting(*args: Any) -> Any:
        return msgspec.structs.replace(await accept(*args), inbox_added=InboxSize(1, 1))

    patch.setattr(signalling, "_put_in_inbox", counting)


@bug(**_CROWDS)
def a_signal_that_wakes_a_run_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    woken = signalling.wake_run

    async def heedless(*args: Any, inbox_added: InboxSize, **values: Any) -> Any:
        return await woken(*args, **values)

    patch.setattr(signalling, "wake_run", heedless)


@bug(**_CROWDS)
def a_pause_forgets_what_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inbox.Inbox, "size", lambda self: InboxSize())


@bug(**_CROWDS)
def a_pause_counts_what_was_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(inbox.Inbox, "size", lambda self: inbox._size(self.signals))


@bug(**_CROWDS)
def an_owner_that_never_says_what_it_took(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Any) -> None: ...

    patch.setattr(inbox.Inbox, "update_size", nothing)


@bug(**_CROWDS)
def an_owner_that_knows_only_what_it_took_itself(patch: pytest.MonkeyPatch) -> None:
    take_in = inbox.Inbox.load

    def forgetful(self: Any, signals: Any) -> None:
        take_in(self, signals)
        self._taken_since_update = InboxSize()

    patch.setattr(inbox.Inbox, "load", forgetful)


@bug(**_CROWDS, crash=0.006, throttled=0.1)
def what_is_not_durably_taken_counts_as_taken(patch: pytest.MonkeyPatch) -> None:
    relieve = inbox.Inbox._write_size

    async def hasty(self: Any) -> None:
        async def at_once() -> None: ...

        self._journal.wait_durable = at_once
        try:
            await relieve(self)
        finally:
            del self._journal.wait_durable

    patch.setattr(inbox.Inbox, "_write_size", hasty)


@bug(**_CROWDS)
def a_signal_that_lies_in_a_full_inbox_is_refused(patch: pytest.MonkeyPatch) -> None:
    accept = signalling._put_in_inbox

    async def hasty(kernel: Any, head: Any, signal: Any) -> Any:
        if signalling.is_caller_signal(signal.name):
            packed = await signalling._pack_payload(kernel, signal)
            full = signalling.inbox_overflow(kernel.limits, head, packed.plain_bytes)
            if full is not None:
                raise full
        return await accept(kernel, head, signal)

    patch.setattr(signalling, "_put_in_inbox", hasty)
