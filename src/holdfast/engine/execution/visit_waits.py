"""The waits of one visit of a node: for signals, for children and for a time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from holdfast.engine.execution.visit import Visit
from holdfast.errors import NotPausable, WaitBeyondExpiry
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
            WaitBeyondExpiry: the sleep would last longer than the run.
            NotPausable: the node was declared with ``pausable="no"``.
        """
        visit, key = self._visit, kind.key(number)
        if not visit.may_wait:
            raise NotPausable(f"node {visit.node!r} has pausable='no', and so may not wait")
        for wait in visit.claimed.known_waits(visit.branch):
            if (wait.visit, wait.key) == (visit.visit, key):
                return wait
        now = visit.now_ms()
        deadline_ms = None if timeout_ms is None else now + timeout_ms
        if deadline_ms is not None:
            if kind.signal is None:
                await self._check_sleep(deadline_ms, now)
            elif now >= visit.claimed.head.expires_ms and await self._times_out_at_once():
                deadline_ms = now
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

    async def _check_sleep(self, deadline_ms: int, now_ms: int) -> None:
        visit = self._visit
        if _outlasts(deadline_ms, visit.claimed.head, now_ms):
            with visit.remember_loss():
                await visit.claimed.row.refresh()  # a caller may have extended the run
        head = visit.claimed.head
        if _outlasts(deadline_ms, head, now_ms):
            raise WaitBeyondExpiry(
                f"node {visit.node!r} would sleep until {_utc(deadline_ms)}, but the run expires "
                f"at {_utc(head.expires_ms)}: start it with a longer expires=, or extend it"
            )

    async def _times_out_at_once(self) -> bool:
        """Return whether a wait that begins after the expiry times out at once.

        No signal can come any more. But the second such wait of a node would pause the run, which
        ends it: a node that asks again and again would never stop.
        """
        visit = self._visit
        if not await self._close_if_expired():
            return False
        since_ms = visit.claimed.head.expires_ms
        return not visit.claimed.execution.has_timed_out_since(since_ms, node=visit.node)

    async def _close_if_expired(self) -> bool:
        with self._visit.remember_loss():
            return await self._visit.claimed.close_if_expired()

    async def resolve(self, wait: Wait) -> SignalTaken | TimerFired:
        """Return the answer to a wait.

        Raises:
            Paused: there is no answer yet.
        """
        visit, inbox = self._visit, self._visit.claimed.inbox
        timed = wait.signal is not None and wait.deadline_ms is not None
        if timed and visit.now_ms() >= visit.claimed.head.expires_ms:
            # The wait times out, unless a caller has extended the run. A signal that was accepted
            # before the expiry comes first: an inbox that is read after the close is complete.
            await self._close_if_expired()
        expires_ms = visit.claimed.head.expires_ms
        match resolved_wait(wait, inbox.untaken(), (), visit.now_ms(), expires_ms=expires_ms):
            case TakeSignal(signal):
                payload = await self._load_payload(signal)
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
                await visit.pause_on(wait)

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
