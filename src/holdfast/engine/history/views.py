"""Converts rows and events to what callers see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.errors import JournalDamaged
from holdfast.model.event import Event
from holdfast.model.run import HistoryEntry, Run, RunEntry, SessionQueueEntry
from holdfast.model.spending import NANODOLLARS_PER_DOLLAR
from holdfast.model.wait import with_group_about
from holdfast.records.head import Head
from holdfast.records.index_keys import listed_ms
from holdfast.records.keys import RunKey
from holdfast.records.list_entry import values_of
from holdfast.records.times import utc_datetime

__all__ = ["history_entry_of", "is_shown", "queue_entry_of", "run_entry_of", "run_of"]

# Events that only the engine uses.
_HIDDEN_KINDS = frozenset({"snapshot", "waiting"})


def run_of(head: Head, *, user: str | None) -> Run:
    """Return a row as callers see it; ``user`` is the user's hash.

    Raises:
        JournalDamaged: the row has an impossible time or index key.
    """
    try:
        return _build_run(head, user)
    except (ValueError, OverflowError, OSError) as error:
        raise JournalDamaged(f"the row of run {head.key.id!r} is damaged: {error}") from error


def _build_run(head: Head, user: str | None) -> Run:
    due_at = None
    if head.index_key is not None and head.index_key.pk.startswith("DUE#"):
        due_at = utc_datetime(head.index_key.due_parts()[0])
    return Run(
        id=head.key.id,
        tenant=head.key.tenant,
        graph=head.graph,
        version=head.version,
        schema=head.schema,
        # When a timer fires, the row keeps its status until the run pauses again or ends.
        status="running" if head.status == "waiting" and head.owner is not None else head.status,
        labels=head.labels,
        user=user,
        node=head.node,
        reason=head.reason,
        waits=with_group_about(head.waits) if head.is_paused else (),
        due_at=due_at,
        owner=head.owner,
        retries_left=head.retries_left,
        nodes_run=head.nodes_run,
        spent_seconds=head.spent_ms / 1000,
        journal_records=head.extent.position - 1,
        journal_bytes=head.extent.size,
        generation=head.generation,
        epoch=head.epoch,
        resume_failures=head.resume_failures,
        failure=head.failure,
        created_at=utc_datetime(head.created_ms),
        updated_at=utc_datetime(head.updated_ms),
        expires_at=utc_datetime(head.expires_ms),
        session=head.session,
        into=head.into,
        parent=None if head.parent is None else head.parent.id,
        budget=head.budget,
        budget_of=None if head.payer is None else head.payer.id,
        tokens=head.tokens,
        cost_usd=head.nanodollars / NANODOLLARS_PER_DOLLAR,
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
        known["about"] = values_of(known.get("about", b"") if item["status"] == "waiting" else b"")
        return msgspec.convert(known, RunEntry)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise JournalDamaged(f"the index entry of a run cannot be read: {error!r:.300}") from error


def queue_entry_of(head: Head) -> SessionQueueEntry:
    """Return a run as the list of its session queue shows it."""
    run = run_of(head, user=None)
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


def history_entry_of(event: Event, *, cursor: str) -> HistoryEntry:
    """Return an event as a history shows it."""
    details: dict[str, Any] = msgspec.structs.asdict(event)
    for name in ("failure", "spent", "saved", "most"):
        if isinstance(details.get(name), msgspec.Struct):
            details[name] = msgspec.structs.asdict(details[name])
    at = utc_datetime(details.pop("at_ms"))
    node = details.pop("node", None)
    for name in ("branch", "ops", "fork"):
        if not details.get(name, True):
            del details[name]  # most events have none of them
    kind = event.__struct_config__.tag
    return HistoryEntry(
        at=at,
        kind=str(kind),
        node=node,
        details=msgspec.to_builtins(details),
        cursor=cursor,
    )
