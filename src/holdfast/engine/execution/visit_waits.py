"""The waits of one visit of a node: for signals, for children and for a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.engine.execution.typed_signals import find_payload_misfit, set_aside, with_schema
from holdfast.engine.execution.visit import Visit
from holdfast.errors import NotPausable, WaitBeyondExpiry
from holdfast.graph.signal_types import SignalType
from holdfast.model.event import SignalTaken, TimerFired, WaitDescribed
from holdfast.model.signals import (
    Pending,
    Resolution,
    Signal,
    TakeSignal,
    TimeOut,
    WaitStale,
    resolved_group,
)
from holdfast.model.wait import (
    ResolutionWait,
    SignalWait,
    TimerWait,
    Wait,
    WaitKind,
    answer_key,
    group_digest,
    group_key,
)
from holdfast.records.head import Head

__all__ = ["GroupRequest", "VisitWaits"]

_NO_TYPES: Mapping[str, SignalType | None] = {}


class GroupRequest(msgspec.Struct, frozen=True):
    """What a node asks for that waits for the first of several conditions."""

    kinds: tuple[WaitKind, ...]
    max_wait_ms: int | None = None
    timer_ms: int | None = None
    """The duration of the timer among the conditions."""
    packed_about: bytes | msgspec.UnsetType = msgspec.UNSET

    @property
    def timeout_ms(self) -> int | None:
        """How long the node waits at most."""
        limits = [limit for limit in (self.max_wait_ms, self.timer_ms) if limit is not None]
        return min(limits, default=None)

    @property
    def times_out(self) -> bool:
        """Whether ``max_wait`` ends before the timer, so that the timer cannot win."""
        limit, timer = self.max_wait_ms, self.timer_ms
        return limit is not None and timer is not None and limit < timer


class VisitWaits:
    """What one visit of a node waits for."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._counts: Counter[tuple[int, WaitKind | str]] = Counter()

    def next_number(self, kind: SignalWait | TimerWait) -> int:
        """Return the number of the visit's next wait for that signal, or of its next sleep."""
        return self._count(kind)

    def next_review(self) -> int:
        """Return the number of the visit's next review."""
        return self._count("review")

    def next_group(self, kinds: Sequence[WaitKind]) -> str:
        """Return the key of the visit's next wait for the first of these."""
        digest = group_digest(kinds)
        return group_key(digest, self._count(digest))

    def _count(self, of: WaitKind | str) -> int:
        self._visit.check_open()
        offset = self._visit.call_ids.number_offset()
        self._counts[offset, of] += 1
        return offset + self._counts[offset, of]

    async def begin(
        self,
        kind: WaitKind,
        timeout_ms: int | None,
        *,
        key: str | None = None,
        about: str = "",
        packed_about: bytes | msgspec.UnsetType = msgspec.UNSET,
    ) -> Wait:
        """Return a wait as it began, perhaps in an earlier process.

        Raises:
            WaitBeyondExpiry: the sleep would last longer than the run.
            NotPausable: the node was declared with ``pausable="no"``.
            WaitInsideTimeout: the node's code has a timeout around the wait.
        """
        visit, key = self._visit, key or kind.key()
        if not visit.may_wait:
            raise NotPausable(f"node {visit.node!r} has pausable='no', and so may not wait")
        if not isinstance(kind, ResolutionWait):
            visit.check_outer_timeout()
        for wait in visit.claimed.known_waits(visit.branch):
            if (wait.visit, wait.key) == (visit.visit, key):
                if wait.packed_about == packed_about:
                    return wait
                # The row had no room for it, or the node has something else to say by now.
                return msgspec.structs.replace(wait, packed_about=packed_about)
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
            key=key,
            since_ms=now,
            deadline_ms=deadline_ms,
            stale_ms=None if max_pause_ms is None else now + max_pause_ms,
            about=about,
            packed_about=packed_about,
        )

    async def begin_group(self, group: str, request: GroupRequest) -> tuple[Wait, ...]:
        """Return the waits of a group as they began, perhaps in an earlier process.

        They have one deadline. If ``max_wait`` ends before the timer, the timer's wait has the key
        of the group: at the deadline it does not win, but times out.

        Raises:
            WaitBeyondExpiry, NotPausable: as `begin` does.
        """
        visit, kinds = self._visit, request.kinds
        keys = [f"{group}/{index}" for index in range(len(kinds))]
        if request.timer_ms is not None:
            waits = visit.claimed.known_waits(visit.branch)
            known = {wait.key for wait in waits if wait.visit == visit.visit}
            index = kinds.index(TimerWait())
            if group in known or (request.times_out and keys[index] not in known):
                keys[index] = group
        # The row and the journal store the waits of a group together: if one is known, all are.
        # A wait for a signal leads: the group ends at the expiry, and is not refused as a sleep.
        lead = next((n for n, kind in enumerate(kinds) if kind.signal is not None), 0)
        said = request.packed_about
        begun = await self.begin(
            kinds[lead],
            request.timeout_ms,
            key=keys[lead],
            packed_about=msgspec.UNSET if lead else said,
        )
        return tuple(
            msgspec.structs.replace(
                begun, key=key, signal=kind.signal, packed_about=msgspec.UNSET if number else said
            )
            for number, (key, kind) in enumerate(zip(keys, kinds, strict=True))
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

    async def resolve(
        self,
        *waits: Wait,
        types: Mapping[str, SignalType | None] = _NO_TYPES,
        on_timeout: Callable[[], Awaitable[Signal]] | None = None,
    ) -> SignalTaken | TimerFired:
        """Return the answer to a wait; to several, which are a group, their one answer.

        ``types`` has the awaited types by name of the signal. A signal that does not fit its type
        is set aside. With ``on_timeout``, the answer at the deadline is the signal that it returns:
        it puts one into the inbox, unless another process was first.

        Raises:
            Paused: there is no answer yet.
        """
        answer: SignalTaken | TimerFired | None = None
        while answer is None:
            answer = await self._resolve_once(waits, types, on_timeout)
        return answer

    async def _resolve_once(
        self,
        waits: tuple[Wait, ...],
        types: Mapping[str, SignalType | None],
        on_timeout: Callable[[], Awaitable[Signal]] | None,
    ) -> SignalTaken | TimerFired | None:
        """Return the answer to a wait; None if a signal was set aside."""
        visit, typed = self._visit, list[Wait]()
        with visit.call_ids.keep_running():
            resolution = await self._resolution(waits)
            match resolution:
                case TakeSignal():
                    pass
                case TimeOut() if on_timeout is not None:
                    with visit.remember_loss():
                        resolution = TakeSignal(await on_timeout())
                case TimeOut():
                    # Where the expiry comes before its time, the timer wins at the expiry.
                    timers = (wait.key for wait in waits if wait.signal is None)
                    fired = self.timer_fired(next(timers, answer_key(waits[0].key)))
                    await visit.record(*self._described(waits), fired, durable=True)
                    return fired
                case WaitStale():
                    visit.pause_as_stale()
                case Pending():
                    typed = [
                        await with_schema(visit, wait, types.get(wait.signal or ""))
                        for wait in waits
                    ]
        if isinstance(resolution, TakeSignal):
            # The reserved signal delays a pause, but not the failure of the attempt.
            return await self._take_answer(resolution.signal, waits, types)
        await visit.pause_on(*typed)

    async def _resolution(self, waits: tuple[Wait, ...]) -> Resolution:
        """Return whether a wait has ended, and how."""
        visit, inbox = self._visit, self._visit.claimed.inbox
        timed = any(wait.signal is not None and wait.deadline_ms is not None for wait in waits)
        if timed and visit.now_ms() >= visit.claimed.head.expires_ms:
            # The wait times out, unless a caller has extended the run. A signal that was accepted
            # before the expiry comes first: an inbox that is read after the close is complete.
            await self._close_if_expired()
        expires_ms = visit.claimed.head.expires_ms
        return resolved_group(waits, inbox.untaken(), (), visit.now_ms(), expires_ms=expires_ms)

    async def _take_answer(
        self,
        signal: Signal,
        waits: tuple[Wait, ...],
        types: Mapping[str, SignalType | None],
    ) -> SignalTaken | None:
        """Take a signal as the answer to a wait; None if it was set aside."""
        visit, inbox = self._visit, self._visit.claimed.inbox
        visit.check_open()
        with visit.reserved_signals.reserve(signal):
            with visit.remember_loss():
                payload = await inbox.load_payload(signal)
            awaited = types.get(signal.name)
            # The check runs code of the type, which may raise anything.
            misfit = await find_payload_misfit(visit, signal, payload, awaited)
            visit.check_open()
        if misfit is not None:
            await set_aside(visit, signal, misfit)
            return None
        taken = SignalTaken(
            visit.now_ms(),
            visit.node,
            visit.visit,
            next(wait.key for wait in waits if wait.signal == signal.name),
            signal.name,
            signal.id,
            payload,
            visit.branch,
        )
        # It is buffered: like the result of a call, it is durable before the next call.
        await visit.record(*self._described(waits), taken, durable=False)
        inbox.count_taken(signal)
        return taken

    def _described(self, waits: Sequence[Wait]) -> list[WaitDescribed]:
        """Return what the history shows of waits that the node said something about."""
        visit = self._visit
        return [
            WaitDescribed(
                visit.now_ms(),
                visit.node,
                visit.visit,
                answer_key(wait.key),
                wait.about,
                visit.branch,
            )
            for wait in waits
            if wait.packed_about is not msgspec.UNSET
        ]

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
