"""The waits of one visit of a node: for signals, for children and for a time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from holdfast.engine.execution.typed_signals import (
    find_payload_misfit,
    set_aside,
    with_schema,
)
from holdfast.engine.execution.visit import Visit
from holdfast.errors import NotPausable, WaitBeyondExpiry
from holdfast.graph.signal_types import SignalType
from holdfast.model.event import SignalTaken, TimerFired
from holdfast.model.signals import Pending, Signal, TakeSignal, TimeOut, WaitStale, resolved_wait
from holdfast.model.wait import SignalWait, TimerWait, Wait, WaitKind
from holdfast.records.head import Head

__all__ = ["VisitWaits"]


class VisitWaits:
    """What one visit of a node waits for."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._counts: Counter[WaitKind] = Counter()

    def next_number(self, kind: SignalWait | TimerWait) -> int:
        """Return the number of the visit's next wait for that signal, or of its next sleep."""
        self._visit.check_open()
        self._counts[kind] += 1
        return self._counts[kind]

    async def begin(
        self, kind: WaitKind, timeout_ms: int | None, *, number: int = 1, about: str = ""
    ) -> Wait:
        """Return a wait as it began, perhaps in an earlier process.

        Raises:
            WaitBeyondExpiry: the wait would last longer than the run.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        visit, key = self._visit, kind.key(number)
        head = visit.claimed.head
        if not visit.may_wait:
            raise NotPausable(f"node {visit.node!r} has pausable='no', and so may not wait")
        for wait in visit.claimed.known_waits(visit.branch):
            if (wait.visit, wait.key) == (visit.visit, key):
                return wait
        now = visit.now_ms()
        deadline_ms = None if timeout_ms is None else now + timeout_ms
        if _outlasts(deadline_ms, head, now):
            with visit.remember_loss():
                await visit.claimed.row.refresh()  # a caller may have extended the run
            head = visit.claimed.head
        if deadline_ms is not None and _outlasts(deadline_ms, head, now):
            raise WaitBeyondExpiry(
                f"node {visit.node!r} would wait until {_utc(deadline_ms)}, but the run expires at "
                f"{_utc(head.expires_ms)}"
            )
        max_pause_ms = visit.max_pause_ms
        return Wait.of(
            kind,
            visit=visit.visit,
            branch=visit.branch,
            number=number,
            since_ms=now,
            deadline_ms=deadline_ms,
            stale_ms=None if max_pause_ms is None else now + max_pause_ms,
            about=about,
        )

    async def resolve(
        self, wait: Wait, awaited: SignalType | None = None
    ) -> SignalTaken | TimerFired:
        """Return the answer to a wait; set the signals aside that do not fit the awaited type.

        Raises:
            Paused: there is no answer yet.
        """
        answer: SignalTaken | TimerFired | None = None
        while answer is None:
            answer = await self._resolve_once(wait, awaited)
        return answer

    async def _resolve_once(
        self, wait: Wait, awaited: SignalType | None
    ) -> SignalTaken | TimerFired | None:
        """Return the answer to a wait; None if a signal was set aside."""
        visit, inbox = self._visit, self._visit.claimed.inbox
        match resolved_wait(wait, inbox.untaken(), (), visit.now_ms()):
            case TakeSignal(signal):
                payload = await self._load_payload(signal)
                misfit = await find_payload_misfit(visit, signal, payload, awaited)
                if misfit is not None:
                    await set_aside(visit, signal, misfit)
                    return None
                taken = SignalTaken(
                    visit.now_ms(),
                    visit.node,
                    wait.visit,
                    wait.key,
                    signal.name,
                    signal.id,
                    payload,
                    visit.branch,
                )
                # It is buffered: like the result of a call, it is durable before the next call.
                await visit.record(taken, durable=False)
                inbox.count_taken(signal)
                return taken
            case TimeOut():
                fired = self.timer_fired(wait.key)
                await visit.record(fired, durable=True)
                return fired
            case WaitStale():
                visit.pause_as_stale()
            case Pending():
                await visit.pause_on(await with_schema(visit, wait, awaited))

    async def _load_payload(self, signal: Signal) -> Any:
        """Return the payload of a signal that no other wait may take from now on."""
        waits = self._visit.claimed.waits
        waits.mark_taking(signal.name, signal.id)
        try:
            with self._visit.remember_loss():
                payload = await self._visit.claimed.inbox.load_payload(signal)
                self._visit.check_open()
        except BaseException:
            waits.unmark_taking(signal.name, signal.id)
            raise
        return payload

    def timer_fired(self, key: str) -> TimerFired:
        """Return the event that the time of a wait is up."""
        visit = self._visit
        return TimerFired(visit.now_ms(), visit.node, visit.visit, key, visit.branch)

    async def sleep_or_pause(self, kind: WaitKind, wake_at_ms: int, about: str) -> None:
        """Return at that time, or pause the run until then; nothing is written.

        When the node runs again it must check again whether it has to wait.
        """
        visit = self._visit
        span = wake_at_ms - visit.now_ms()
        if span <= visit.hold_ms or not visit.may_wait:
            await visit.claimed.sleep(max(span, 0) / 1000)
            return
        await visit.pause_until(kind, wake_at_ms, about)


def _outlasts(deadline_ms: int | None, head: Head, now_ms: int) -> bool:
    """Return whether a run that has not expired yet expires before a wait ends."""
    return deadline_ms is not None and deadline_ms > head.expires_ms and now_ms < head.expires_ms


def _utc(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
