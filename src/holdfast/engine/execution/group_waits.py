"""Waits for the first of several conditions: one answer ends the whole group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine.execution.conditions import (
    ChildCondition,
    packed_about,
    validated_conditions,
)
from holdfast.engine.execution.typed_signals import awaited_type, typed_payload
from holdfast.engine.execution.visit import Visit
from holdfast.engine.execution.visit_children import VisitChildren
from holdfast.engine.execution.visit_waits import GroupRequest, VisitWaits
from holdfast.engine.journal.endings import result_of
from holdfast.errors import WaitTimedOut
from holdfast.graph.signal_types import SignalType
from holdfast.model.conditions import Timer, WaitAnswer
from holdfast.model.durations import Duration, milliseconds_of
from holdfast.model.event import SignalTaken, TimerFired
from holdfast.model.signals import SignalName
from holdfast.model.wait import ChildWait, WaitKind

__all__ = ["wait_for_first"]


async def wait_for_first(
    visit: Visit,
    waits: VisitWaits,
    children: VisitChildren,
    conditions: Sequence[SignalName | Timer | ChildCondition],
    *,
    about: Any,
    max_wait: Duration | None,
) -> WaitAnswer:
    """Return which condition comes first; see `Context.wait_any`."""
    kinds = validated_conditions(conditions)
    timers = [one.duration_ms for one in conditions if isinstance(one, Timer)]
    request = GroupRequest(
        kinds,
        max_wait_ms=None if max_wait is None else milliseconds_of(max_wait, "max_wait"),
        timer_ms=next(iter(timers), None),
        packed_about=packed_about(about),
    )
    signals = [one for one in conditions if isinstance(one, SignalName)]
    types = {one.name: awaited_type(visit.external.program, one) for one in signals}
    group = waits.next_group(kinds)
    answer = visit.strand.answers.get(group)
    if answer is None:
        answer = await _find_answer(waits, children, group, request, types)
    if answer.wait == group:
        raise WaitTimedOut(f"none of the {len(kinds)} conditions came in time")
    index = _winner(answer, kinds)
    condition, payload = conditions[index], None
    if isinstance(condition, ChildCondition):
        outcome = await children.outcome(condition.id, answer)
        payload = result_of(condition.id, outcome, condition.graph)
    elif isinstance(answer, SignalTaken):
        payload = typed_payload(answer, types[answer.name])
    return WaitAnswer(condition, index, payload)


async def _find_answer(
    waits: VisitWaits,
    children: VisitChildren,
    group: str,
    request: GroupRequest,
    types: Mapping[str, SignalType | None],
) -> SignalTaken | TimerFired:
    """Return the answer to a group of waits; pause the run until there is one."""
    ids = [kind.subject for kind in request.kinds if isinstance(kind, ChildWait)]
    async with children.locked(ids):
        # A child that this visit knows to have ended wins, now and whenever the node runs again.
        for id in ids:
            known = children.known_end(id)
            if known is not None:
                return known
        begun = await waits.begin_group(group, request)
        for kind, wait in zip(request.kinds, begun, strict=True):
            if isinstance(kind, ChildWait):
                await children.poll(kind.subject, wait)
        return await waits.resolve(*begun, types=types)


def _winner(answer: SignalTaken | TimerFired, kinds: Sequence[WaitKind]) -> int:
    """Return the index of the condition that an answer is of."""
    signal = answer.name if isinstance(answer, SignalTaken) else None
    return next(index for index, kind in enumerate(kinds) if kind.signal == signal)
