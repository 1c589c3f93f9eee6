"""Converts rows and events to what callers see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.engine.history.prompts import Prompts
from holdfast.errors import JournalDamaged
from holdfast.model.arguments import Arguments, Recorded, omission_text
from holdfast.model.event import Event, RecordedCall, SignalTaken
from holdfast.model.run import HistoryEntry, Run, RunEntry, SessionQueueEntry, Status
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR, Spending
from holdfast.model.wait import ReviewWait, Wait, shown_key, signal_kind
from holdfast.model.wait_texts import with_group_about
from holdfast.records.head import ENDED, Head, head_of
from holdfast.records.index_keys import listed_ms
from holdfast.records.keys import RunKey
from holdfast.records.shown_status import due_ms_of, shown_status
from holdfast.records.times import utc_datetime

__all__ = [
    "history_entry_of",
    "is_shown",
    "queue_entry_of",
    "run_entry_of",
    "run_of",
    "shown_entry",
    "shown_waits",
]

# Reasons for which a worker released a run.
_RELEASES = frozenset({"draining", "newer_version", "resume_failed", "store_unusable"})
# Events that only the engine uses.
_HIDDEN_KINDS = frozenset({"snapshot", "waiting"})


def run_of(head: Head, *, user: str | None, now_ms: int) -> Run:
    """Return a row as callers see it; ``user`` is the user's hash.

    Raises:
        JournalDamaged: the row has an impossible time or index key.
    """
    try:
        return _build_run(head, user, now_ms)
    except (ValueError, OverflowError, OSError) as error:
        raise JournalDamaged(f"the row of run {head.key.id!r} is damaged: {error}") from error


def _build_run(head: Head, user: str | None, now_ms: int) -> Run:
    due_ms = due_ms_of(head)
    status = shown_status(head, now_ms=now_ms)
    return Run(
        id=head.key.id,
        tenant=head.key.tenant,
        graph=head.graph,
        version=head.version,
        schema=head.schema,
        status=status,
        labels=head.labels,
        user=user,
        node=head.node,
        reason=_reason(head, status),
        waits=shown_waits(head.waits, head) if head.is_paused else (),
        due_at=None if due_ms is None else utc_datetime(due_ms),
        owner=head.owner,
        # Ended rows keep the number that holds after a retry.
        retries_left=0 if head.status in ENDED else head.retries_left,
        nodes_run=head.nodes_run,
        spent_seconds=head.spent_ms / 1000,
        journal_records=head.extent.position - 1,
        journal_bytes=head.extent.size,
        generation=head.generation,
        epoch=head.epoch,
        resume_failures=head.resume_failures,
        # An owner that has claimed the run again leaves the reason of a failed resume in the row.
        failure=None if status == "running" else head.failure,
        created_at=utc_datetime(head.created_ms),
        updated_at=utc_datetime(head.updated_ms),
        expires_at=utc_datetime(head.expires_ms),
        session=head.session,
        into=head.into,
        parent=None if head.parent is None else head.parent.id,
        chunk=head.chunk,
        budget=head.budget,
        budget_of=None if head.payer is None else head.payer.id,
        tokens=head.tokens,
        cost_usd=head.nanodollars / NANODOLLARS_PER_DOLLAR,
    )


def _reason(head: Head, status: Status) -> str | None:
    """Return why a run is paused. A run that was woken or claimed has an old reason in its row."""
    if status == "waiting" or (head.reason in _RELEASES and status == "ready"):
        return head.reason
    return None


def shown_waits(waits: Sequence[Wait], head: Head) -> tuple[Wait, ...]:
    """Return waits of a run as callers see them: none lasts longer than the run.

    The stored deadlines stay, so an extension of the run gives the waits their time back.
    """
    expires_ms = head.expires_ms
    return tuple(
        msgspec.structs.replace(wait, deadline_ms=expires_ms)
        if wait.deadline_ms is not None and wait.since_ms < expires_ms < wait.deadline_ms
        else wait
        for wait in with_group_about(waits)
    )


def shown_entry(entry: RunEntry, item: Mapping[str, Any], *, now_ms: int) -> RunEntry:
    """Return an entry of the index with what the run's row tells.

    Raises:
        JournalDamaged: the row cannot be read.
    """
    run = run_of(head_of(item), user=None, now_ms=now_ms)
    return msgspec.structs.replace(
        entry,
        status=run.status,
        reason=run.reason,
        waits=run.waits,
        node=run.node,
        updated_at=run.updated_at,
        cost_usd=run.cost_usd,
        failure=run.failure,
        tokens=run.tokens,
    )


def run_entry_of(item: Mapping[str, Any]) -> RunEntry:
    """Return an entry of the index as a list shows it.

    Raises:
        JournalDamaged: it is not an entry of a run.
    """
    try:
        run = RunKey.parsed(item["PK"])
        created_at = utc_datetime(listed_ms(item["GSI2SK"]))
        known: dict[str, Any] = {"labels": {}, **item["show"], "created_at": created_at}
        known |= {"status": item["status"], "id": run.id, "tenant": run.tenant}
        known["updated_at"] = created_at  # until its row says more
        return msgspec.convert(known, RunEntry)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise JournalDamaged(f"the index entry of a run cannot be read: {error!r:.300}") from error


def queue_entry_of(head: Head, *, now_ms: int) -> SessionQueueEntry:
    """Return a run as the list of its session queue shows it."""
    run = run_of(head, user=None, now_ms=now_ms)
    return SessionQueueEntry(
        number=head.ticket,
        id=run.id,
        status=run.status,
        reason=run.reason,
        created_at=run.created_at,
    )


def is_shown(event: Event) -> bool:
    """Return whether an event is shown to callers."""
    return event.__struct_config__.tag not in _HIDDEN_KINDS


def history_entry_of(event: Event, *, run: str, cursor: str, prompts: Prompts) -> HistoryEntry:
    """Return an event of a run as a history shows it.

    ``prompts`` knows the earlier messages of a conversation that the event continues.
    """
    details: dict[str, Any] = msgspec.structs.asdict(event)
    arguments = details.pop("arguments", None)
    for name, value in details.items():
        if isinstance(value, Spending):
            details[name] = value.as_dict()
        elif name in ("failure", "fork") and isinstance(value, msgspec.Struct):
            details[name] = msgspec.structs.asdict(value)
    if isinstance(details.get("wait"), str):
        details["wait"] = shown_key(details["wait"])
    at = utc_datetime(details.pop("at_ms"))
    node = details.pop("node", None)
    for name in ("branch", "ops", "fork"):
        if not details.get(name, True):
            del details[name]  # most events have none of them
    kind = event.__struct_config__.tag
    shown = msgspec.to_builtins(details)
    if arguments is not None:
        # Right behind the call: its result may be long.
        first = {name: shown.pop(name) for name in ("visit", "call")}
        shown = {**first, **_shown_arguments(event, arguments, prompts), **shown}
    if isinstance(event, SignalTaken):
        shown = {**_shown_decision(event, run), **shown}
    return HistoryEntry(at=at, kind=str(kind), node=node, details=shown, cursor=cursor)


def _shown_decision(event: SignalTaken, run: str) -> dict[str, Any]:
    """Return what became of a review if a signal has its decision; nothing otherwise."""
    kind = signal_kind(event.name)
    if not isinstance(kind, ReviewWait):
        return {}
    shown: dict[str, Any] = {"review": kind.review_id(run)}
    payload: Any = event.payload
    if isinstance(payload, dict):
        decision = cast(dict[str, Any], payload)
        shown |= {"status": decision.get("status"), "by": decision.get("by")}
    return shown


def _shown_arguments(event: Event, arguments: Recorded, prompts: Prompts) -> dict[str, Any]:
    """Return what a history shows of the arguments of a call."""
    if not isinstance(arguments, Arguments):
        return {"arguments_omitted": omission_text(arguments)}
    shown = {"arguments": arguments.values}
    if not arguments.after:
        return shown
    messages = prompts.messages_of(event, arguments) if isinstance(event, RecordedCall) else None
    if messages is None:
        return {
            **shown,
            "arguments_omitted": "the messages before these: those of call "
            f"{arguments.after}, and its answer",
        }
    # Not copied: the calls of a conversation share their messages.
    return {"arguments": {**arguments.values, "messages": messages}}
