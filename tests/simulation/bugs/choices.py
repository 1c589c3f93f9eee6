"""Bugs to plant in waits for the first of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.engine.execution import visit_waits
from holdfast.engine.execution.visit_waits import VisitWaits
from holdfast.model import fold, signals
from holdfast.model.event import SignalTaken
from holdfast.model.signals import TakeSignal, TimeOut
from holdfast.model.wait import Wait
from tests.simulation.bugs.planting import bug


@bug(choosers=1.0)
def take_two_of_several(patch: pytest.MonkeyPatch) -> None:
    resolve = VisitWaits.resolve

    async def greedy(self: Any, *waits: Wait) -> Any:
        answer = await resolve(self, *waits)
        visit, inbox = self._visit, self._visit.claimed.inbox
        for wait in waits if len(waits) > 1 else ():
            other = signals.resolved_wait(
                wait, inbox.untaken(), (), visit.now_ms(), expires_ms=visit.claimed.head.expires_ms
            )
            if isinstance(other, TakeSignal):
                taken = msgspec.structs.replace(answer, wait=wait.key)
                if isinstance(taken, SignalTaken):
                    name, id = other.signal.name, other.signal.id
                    taken = msgspec.structs.replace(taken, name=name, id=id)
                    await visit.record(taken, durable=False)
                    break
        return answer

    patch.setattr(VisitWaits, "resolve", greedy)


@bug(choosers=1.0)
def take_the_last_of_several(patch: pytest.MonkeyPatch) -> None:
    resolved = signals.resolved_group

    def last(group: Sequence[Wait], inbox: Any, taken: Any, now_ms: int, *, expires_ms: int) -> Any:
        found = resolved(group, inbox, taken, now_ms, expires_ms=expires_ms)
        if len(group) == 1 or not isinstance(found, TakeSignal):
            return found
        each = [resolved((wait,), inbox, taken, now_ms, expires_ms=expires_ms) for wait in group]
        came = [one for one in each if isinstance(one, TakeSignal)]
        return max(came, key=lambda one: one.signal.order)

    patch.setattr(visit_waits, "resolved_group", last)


@bug(choosers=1.0)
def forget_which_of_several_came_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold, "answer_key", lambda key: key)


@bug(choosers=1.0)
def drop_what_did_not_come_first(patch: pytest.MonkeyPatch) -> None:
    """The owner never looks at it again, and pauses."""
    resolve = VisitWaits.resolve

    async def careless(self: Any, *waits: Wait) -> Any:
        answer = await resolve(self, *waits)
        visit = self._visit
        for wait in waits if len(waits) > 1 else ():
            other = signals.resolved_wait(
                wait,
                visit.claimed.inbox.untaken(),
                (),
                visit.now_ms(),
                expires_ms=visit.claimed.head.expires_ms,
            )
            if isinstance(other, TakeSignal):
                visit.claimed.waits.mark_taking(other.signal.name, other.signal.id)
        return answer

    patch.setattr(VisitWaits, "resolve", careless)


@bug(choosers=1.0)
def a_timer_beats_a_signal_that_came_before(patch: pytest.MonkeyPatch) -> None:
    resolved = signals.resolved_group

    def hasty(
        group: Sequence[Wait], inbox: Any, taken: Any, now_ms: int, *, expires_ms: int
    ) -> Any:
        limit = group[0].due_ms
        if len(group) > 1 and limit is not None and now_ms >= limit:
            return TimeOut()
        return resolved(group, inbox, taken, now_ms, expires_ms=expires_ms)

    patch.setattr(visit_waits, "resolved_group", hasty)


@bug(choosers=1.0)
def the_time_of_several_begins_anew(patch: pytest.MonkeyPatch) -> None:
    begin = VisitWaits.begin_group

    async def forgetful(self: Any, group: str, request: Any) -> Any:
        waits = await begin(self, group, request)
        if request.timeout_ms is None:
            return waits
        deadline_ms = self._visit.now_ms() + request.timeout_ms
        return tuple(msgspec.structs.replace(wait, deadline_ms=deadline_ms) for wait in waits)

    patch.setattr(VisitWaits, "begin_group", forgetful)
