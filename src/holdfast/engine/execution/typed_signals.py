"""Signals with a type, as nodes wait for them: conversion, and what becomes of misfits."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.display import get_logger
from holdfast.engine.execution.visit import Visit
from holdfast.engine.kernel.offload import LARGE_BYTES
from holdfast.engine.runs.graph_items import publish_type
from holdfast.errors import InvalidRequest, SignalMisfit, UnknownSignal
from holdfast.graph.mismatch import Mismatch
from holdfast.graph.signal_types import SignalType, signal_type_of
from holdfast.graph.values import deep_copied
from holdfast.model.event import SignalSetAside, SignalTaken
from holdfast.model.program import Program
from holdfast.model.signals import Signal, SignalName
from holdfast.model.wait import Wait

__all__ = ["awaited_type", "find_payload_misfit", "set_aside", "typed_payload", "with_schema"]

_log = get_logger("holdfast.runs")


def awaited_type(program: Program, condition: SignalName) -> SignalType | None:
    """Return the type that a node waits for; None if it takes any payload.

    Raises:
        UnknownSignal: the program does not take this signal.
        InvalidRequest: a payload cannot have this type, or the program declares another one.
    """
    signals, kind = program.signals, condition.type
    if condition.name not in signals:
        if not program.takes_other_signals:
            known = ", ".join(sorted(signals)) or "none"
            raise UnknownSignal(
                f"graph {program.name!r} declares the signals {known}; got {condition.name!r}: "
                "add it to Graph(signals=[…])",
                field="condition",
            )
    elif kind is msgspec.UNSET:
        kind = signals[condition.name]
    elif signals[condition.name] not in (kind, msgspec.UNSET):
        raise InvalidRequest(
            f"signal {condition.name!r} must have the type that graph {program.name!r} declares: "
            f"{_name(signals[condition.name])}, got {_name(kind)}",
            field="condition",
        )
    return None if kind is msgspec.UNSET else signal_type_of(kind)


def typed_payload(answer: SignalTaken, awaited: SignalType | None) -> Any:
    """Return the payload of a signal that a wait took, converted to the awaited type, if any.

    It is a copy: the node may change it, and its next attempt gets it unchanged.

    Raises:
        SignalMisfit: it does not fit. The code that took it waited for another type.
    """
    payload = deep_copied(answer.payload)
    if awaited is None:
        return payload
    try:
        return awaited.converted(payload)
    except Mismatch as mismatch:
        raise SignalMisfit(
            f"the run took the signal {answer.name!r} before its type changed, and the payload "
            f"does not fit {_name(awaited.type)}: {mismatch}; a retry asks again",
            field="payload",
        ) from None


async def find_payload_misfit(
    visit: Visit, signal: Signal, payload: Any, awaited: SignalType | None
) -> str | None:
    """Return why a payload does not fit the awaited type; None if it fits."""
    if awaited is None:
        return None
    if signal.size > LARGE_BYTES:
        return await visit.run_in_thread(awaited.misfit, payload)
    return awaited.misfit(payload)


async def set_aside(visit: Visit, signal: Signal, reason: str) -> None:
    """Record that no wait takes a signal, because it does not fit; its inbox keeps it."""
    event = SignalSetAside(
        visit.now_ms(), visit.node, visit.visit, signal.name, signal.id, reason, visit.branch
    )
    await visit.record(event, durable=False)
    visit.claimed.inbox.count_taken(signal)
    _log.warning(
        "%s: node %s set the signal %s with the id %s aside and keeps waiting: %s",
        visit.claimed.head.key.log_name,
        visit.node,
        signal.name,
        signal.id,
        reason,
    )


async def with_schema(visit: Visit, wait: Wait, awaited: SignalType | None) -> Wait:
    """Return a wait with the digest of its schema, after the schema is stored for senders."""
    digest = msgspec.UNSET if awaited is None else awaited.digest or msgspec.UNSET
    if awaited is not None and wait.signal is not None:
        kernel, head = visit.claimed.kernel, visit.claimed.head
        known = kernel.known_graphs.get(head.graph, head.version)
        await publish_type(kernel, known, wait.signal, awaited)
    if wait.payload_schema == digest:
        return wait
    return msgspec.structs.replace(wait, payload_schema=digest)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or repr(kind)
