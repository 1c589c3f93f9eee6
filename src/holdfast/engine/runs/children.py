"""Runs that a node starts and awaits: none is left without its parent, and none is made twice.

A child's id follows from the visit that starts it, so whoever runs the node again finds the same
child. Before it is made, the parent's row says that there are children, and its partition which;
then the parent is looked at; then the child's row is written. Whoever ends the parent goes through
what its partition says, and writes a cancelled row where there is none yet: so a stalled owner that
wakes up later finds either that the parent is not its own any more, or that its child has been
there, and is cancelled.

A child that has ended owes its parent to be told: the end is a signal in the parent's inbox, under
a name that nobody else can use, and so it counts once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from holdfast.engine.journal.reader import load_journal
from holdfast.engine.journal.writer import PositionTaken
from holdfast.engine.kernel.kernel import ClaimLost, Kernel
from holdfast.engine.runs.budget_accounts import close_account
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.local_workers import LocalWorkers
from holdfast.engine.runs.removal import check_journal_kept
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.engine.runs.starting import PreparedInput, StartRequest, start_prepared
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    InvalidInput,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
    StoreUnavailable,
)
from holdfast.graph import Graph
from holdfast.model.budget import BudgetLimits
from holdfast.model.child import child_signal
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.records import run_writes
from holdfast.records.child import child_entry_of, child_write
from holdfast.records.damage import attribute_part
from holdfast.records.head import (
    ENDED,
    OPEN,
    TROUBLED,
    Head,
    RunRef,
    has_ended,
    head_of,
    is_past_ttl,
)
from holdfast.records.keys import RunKey, children_range

__all__ = [
    "ChildRequest",
    "child_id",
    "deliver_child_end",
    "load_child_rows",
    "settle_family",
    "start_child",
]

_ID_PREFIX_BYTES = 60
_END = "end"
_REASON = "the run that started it has ended"


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A child that a node asks for, each field checked."""

    graph: Graph
    prepared: PreparedInput
    branch: str
    visit: int
    number: int
    """Which of the visit's children it is, from 1 on."""
    id: str | None
    """None where it gets one of its own."""
    labels: dict[str, str]
    budget: BudgetLimits | None = None


async def start_child(
    kernel: Kernel,
    workers: LocalWorkers,
    parent: Head,
    child_request: ChildRequest,
    *,
    retried: str,
    payer: RunRef | None,
    mark_has_children: Callable[[], Awaitable[Head]],
) -> Head:
    """Make a child of a run that this process holds, unless it is there; return its row.

    ``parenting`` returns the parent's row once that says that there are children; ``draws`` is the
    run on whose account the child draws, unless it has a budget of its own.

    Raises:
        Dropped: the parent is not ours any more.
        Conflict: it is to be cancelled, or has ended.
        AlreadyExists: there is a run of this id, and it is not a child of this one.
        StoreUnavailable: the store did not say what became of it; it may be asked again.
    """
    try:
        if child_request.id is not None:
            # A chosen id may be that of a stranger, and then nothing is to be written.
            current = await _find_run(kernel, RunKey(parent.key.tenant, child_request.id))
            if current is not None:
                return _require_child(current, parent)
        parent = await mark_has_children()
        id = child_id(parent, child_request, retried)
        item = child_write(parent, id, graph=child_request.graph.name, token=kernel.ids.new())
        with suppress(ConditionFailed):  # it was written before
            await kernel.resolve_write(kernel.journals, item)
        await _check_claim(kernel, parent)
        return await _create_child(kernel, workers, parent, child_request, id, payer)
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


def child_id(parent: Head, child_request: ChildRequest, retried: str) -> str:
    """Return the id of a child: the same whenever the same visit starts it, until a retry."""
    if child_request.id is not None:
        return child_request.id
    visit = f"{parent.generation}.{child_request.branch}.{child_request.visit}"
    name = f"{visit}.{child_request.number}.{retried}"
    digest = hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
    shown = parent.key.id.encode()[:_ID_PREFIX_BYTES].decode(errors="ignore").rstrip()
    return f"{shown}.{digest}"


async def _find_run(kernel: Kernel, run: RunKey) -> Head | None:
    with suppress(RunNotFound):
        return await read_row(kernel, run)
    return None


async def _create_child(
    kernel: Kernel,
    workers: LocalWorkers,
    parent: Head,
    child_request: ChildRequest,
    id: str,
    payer: RunRef | None,
) -> Head:
    """Write the child's row; a worker of this process goes on with it if one has room."""
    request = StartRequest(
        run=RunKey(parent.key.tenant, id),
        user=None,
        user_hash=parent.user,
        labels=child_request.labels,
        starts_ms=None,
        expires_in_ms=max(1, parent.expires_ms - kernel.clock.now_ms()),
        retention_ms=0,
        parent=_as_parent(parent),
        budget=child_request.budget,
        payer=None if child_request.budget is not None else payer,
        on_pause=child_request.graph.durability == "on_pause",
    )
    slot = workers.reserve(request.run, child_request.graph.name, request.pool)
    owner = None if slot is None else slot.owner
    try:
        started = await start_prepared(
            kernel, workers, child_request.graph, child_request.prepared, request, owner=owner
        )
        head = _require_child(started.head, parent)
    except BaseException as error:
        if slot is not None:
            slot.release(maybe_claimed=not isinstance(error, AlreadyExists | InvalidInput))
        raise
    if slot is not None and started.loaded is not None:
        slot.start_run(head, started.loaded)
    elif slot is not None:
        slot.release()
    elif started.loaded is not None and head.index_key is not None:
        workers.offer(head.index_key)
    return head


def _require_child(child: Head, parent: Head) -> Head:
    if child.parent != _as_parent(parent):
        raise AlreadyExists(f"there is a run {child.key.id!r}, which is no child of this one")
    return child


async def _check_claim(kernel: Kernel, parent: Head) -> None:
    item = await kernel.heads.get(parent.key.head)
    current = None if item is None else head_of(item)
    if current is None or _claim_of(current) != _claim_of(parent):
        raise ClaimLost
    if current.status in ENDED or current.cancel is not None:
        raise PositionTaken(f"run {parent.key.id!r} is about to end")


def _claim_of(head: Head) -> tuple[str, int]:
    """Return what changes whenever a run changes hands."""
    return head.generation, head.epoch


async def load_child_rows(
    kernel: Kernel, parent: Head
) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return id, graph and row of every run that is, or may be about to become, a child."""
    if not parent.children:
        return []
    items = kernel.journals.query_all(parent.key.pk, children_range(parent.generation))
    named = [child_entry_of(item) async for item in items]
    keys = [RunKey(parent.key.tenant, id).head for id, _ in named]
    rows: list[tuple[str, str, dict[str, Any] | None]] = []
    for (id, graph), item in zip(named, await kernel.heads.get_many(keys), strict=True):
        if item is None or is_past_ttl(item, kernel.clock.now_ms()):
            rows.append((id, graph, None))
        elif attribute_part(item, "parent", "generation") == parent.generation:
            rows.append((id, graph, item))
    return rows


def _as_parent(head: Head) -> RunRef:
    return RunRef(head.key.id, head.generation)


# --- what is owed ---------------------------------------------------------------------------------


async def deliver_child_end(
    kernel: Kernel, workers: LocalWorkers, parent: Head, id: str, *, read_journal: bool
) -> bool:
    """See to it that a run is told of a child that has ended; return whether it has.

    It may have ended when there was nobody to tell, and the run was retried since. ``closely``
    looks into its journal as well, which says so before its row does.

    Raises:
        RunNotFound: there is no such child, or its result is no longer kept.
    """
    head = await read_row(kernel, RunKey(parent.key.tenant, id))
    if head.parent != _as_parent(parent):
        raise RunNotFound(f"the run {id!r} is no child of this one")
    execution: Execution | None = None
    if head.status == "finished":
        check_journal_kept(head)
    elif head.status not in ENDED:
        execution = (await load_journal(kernel, head)).execution if read_journal else None
        if execution is None or execution.ending is None:
            return False
    return await _notify_parent(kernel, workers, head, execution)


async def settle_family(
    kernel: Kernel, workers: LocalWorkers, head: Head, execution: Execution | None
) -> None:
    """Tell the parent of a run that has ended, and cancel its children.

    Raises:
        Dropped: the run is not ours any more.
        StoreUnavailable: the store did not say what became of it.
    """
    try:
        await _notify_parent(kernel, workers, head, execution)
        await _cancel_children(kernel, workers, head)
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


async def _notify_parent(
    kernel: Kernel, workers: LocalWorkers, head: Head, execution: Execution | None
) -> bool:
    """Tell the parent how its child ended, if it still goes on; do nothing if it was told before.

    Return whether it has ended: somebody may have retried it meanwhile.
    """
    if head.parent is None:
        return True
    key = RunKey(head.key.tenant, head.parent.id)
    with suppress(RunEnded, RunNotFound):  # there is no run to tell
        row = await read_row(kernel, key)
        if row.generation != head.parent.generation or row.status not in OPEN:
            return True
        if head.freed or head.status in ("expired", "quarantined"):
            execution = None  # its journal is gone, or cannot be read
        elif execution is None:
            execution = (await load_journal(kernel, head)).execution
            if execution.ending is None:
                return False
        name, id, payload = (
            child_signal(head.key.id),
            _end_signal_id(head, execution),
            _end_payload(head, execution),
        )
        # One that failed may be retried, and then spends what it has left: that stays set aside.
        if head.budget is not None and execution is not None and payload["status"] not in TROUBLED:
            # Its own children may still draw, and what the parent has back would be spent twice.
            spent = await close_account(kernel, head) or execution.spent
            payload["spent"] = [spent.tokens, spent.nanodollars]
        # Its state was admitted when it was written; how it ended takes a little more.
        send = partial(
            send_signal,
            kernel,
            workers,
            key,
            name=name,
            id=id,
            ends_child=True,
            bytes_max=kernel.limits.record_bytes_max,
        )
        try:
            await send(payload=payload)
        except InvalidInput as error:  # its state is too large for a store without a bucket
            failure = _failure_map(Failure("", str(error)))
            failed_payload: dict[str, Any] = {
                **payload,
                "status": "failed",
                "state": {},
                "failure": failure,
            }
            await send(payload=failed_payload)
    return True


def _end_signal_id(head: Head, execution: Execution | None) -> str:
    """Return what tells this end of a child from those that it comes to when it is retried."""
    if execution is not None:
        return f"{_END}.{execution.retried}" if execution.retried else _END
    failure = repr(head.failure).encode()
    return f"{_END}.{head.status}.{hashlib.blake2b(failure, digest_size=8).hexdigest()}"


def _end_payload(head: Head, execution: Execution | None) -> dict[str, Any]:
    ending = head.status if execution is None else execution.ending or head.status
    failure = head.failure if execution is None else execution.failure
    return {
        "status": ending,
        "state": execution.state if execution is not None and ending == "finished" else {},
        "failure": _failure_map(failure),
    }


def _failure_map(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else msgspec.structs.asdict(failure)


async def _cancel_children(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Cancel the children of a run that has ended, also those that are not made yet.

    Raises:
        Dropped: the run is not ours any more.
    """
    if not head.children:
        return
    found = await load_child_rows(kernel, head)
    # Looked at after that: children of a run that was retried meanwhile are not to be cancelled.
    item = await kernel.heads.get(head.key.head)
    if item is None or _claim_of(head_of(item)) != _claim_of(head):
        raise ClaimLost
    for id, graph, row in found:
        if row is None or not has_ended(row):
            await _cancel_child(kernel, workers, head, id, graph)


async def _cancel_child(
    kernel: Kernel, workers: LocalWorkers, parent: Head, id: str, graph: str
) -> None:
    key = RunKey(parent.key.tenant, id)
    while True:
        with suppress(RunEnded):
            try:
                row = await read_row(kernel, key)
                if row.parent == _as_parent(parent):
                    row = await cancel_run(kernel, key, reason=_REASON, workers=workers)
                    workers.interrupt(key)
                    if row.status not in ENDED and row.owner is None and row.index_key is not None:
                        workers.offer(row.index_key)
                return
            except RunNotFound:
                placeholder = _cancelled_placeholder(kernel, parent, key, graph)
                write = run_writes.create_write(
                    placeholder, now_ms=kernel.clock.now_ms(), token=kernel.ids.new()
                )
                try:
                    await kernel.resolve_write(kernel.heads, write)
                except ConditionFailed:
                    continue  # it was made meanwhile
        return


def _cancelled_placeholder(kernel: Kernel, parent: Head, key: RunKey, graph: str) -> Head:
    now = kernel.clock.now_ms()
    return Head(
        key=key,
        graph=graph,
        version=parent.version,
        list_shards=parent.list_shards,
        status="cancelled",
        generation=kernel.ids.new(),
        epoch=1,
        owner=None,
        input=None,
        created_ms=now,
        updated_ms=now,
        starts_ms=now,
        expires_ms=parent.expires_ms,
        ttl=parent.ttl,
        kept=parent.kept,
        parent=_as_parent(parent),
        user=parent.user,
        freed=True,
    )
