"""Starts, awaits and cancels children: runs that a node of another run starts.

No child outlives its parent, and none is started twice. The id of a child follows from the visit
that starts it, so a node that runs again finds the same child. Before a child is written, the
parent's row is marked as having children, and an entry in the parent's partition names the child.
Then the parent's claim is checked, and then the child's row is written. The process that ends the
parent reads these entries, and writes a cancelled row where a child does not exist yet. So a
stalled owner that wakes up later finds that it lost the parent, or that the child is cancelled.

A child that has ended sends its parent a signal, under a name that callers cannot use.
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
from holdfast.engine.runs.local_workers import LocalWorkers, reserve_slot
from holdfast.engine.runs.map_lanes import settle_chunk
from holdfast.engine.runs.map_stopping import stop_maps
from holdfast.engine.runs.removal import check_journal_kept
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.engine.runs.starting import (
    START_REFUSALS,
    PreparedInput,
    StartRequest,
    start_prepared,
)
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    InvalidInput,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
    StoreUnavailable,
)
from holdfast.model.budget import BudgetLimits
from holdfast.model.child import child_signal
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.model.function_state import RESULT
from holdfast.model.program import Program
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
    """The checked request of a node for a child."""

    graph: Program
    prepared: PreparedInput
    branch: str
    visit: int
    number: int
    """Its number among the children of the visit, from 1."""
    id: str | None
    """The id that the node chose; None for a derived one."""
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
    """Start a child of a claimed run, unless it exists; return its row.

    ``mark_has_children`` marks the parent's row as having children, and returns it. ``payer`` is
    the run on whose account the child draws, unless the child has a budget of its own.

    Raises:
        ClaimLost: another process has claimed the parent.
        PositionTaken: the parent has ended, or is being cancelled.
        AlreadyExists: there is a run with this id that is not a child of this parent.
        StoreUnavailable: the outcome is unknown; call it again.
    """
    try:
        if child_request.id is not None:
            # A chosen id may belong to another run, and then nothing must be written.
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
    """Return the id of a child: the same one for the same visit, until the run is retried."""
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
    """Write the child's row; a worker of this process runs it if one has a free slot."""
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
    graph, pool = child_request.graph, request.pool
    with reserve_slot(workers, request.run, graph.name, pool, unwritten=START_REFUSALS) as slot:
        started = await start_prepared(
            kernel, workers, graph, child_request.prepared, request, owner=slot.owner
        )
        head = _require_child(started.head, parent)
        if started.loaded is not None:
            slot.start_run(head, started.loaded)
    return head


def _require_child(child: Head, parent: Head) -> Head:
    if child.parent != _as_parent(parent):
        raise AlreadyExists(f"run {child.key.id!r} exists, and is not a child of this run")
    return child


async def _check_claim(kernel: Kernel, parent: Head) -> None:
    item = await kernel.heads.get(parent.key.head)
    current = None if item is None else head_of(item)
    if current is None or _claim_of(current) != _claim_of(parent):
        raise ClaimLost
    if current.status in ENDED or current.cancel is not None:
        raise PositionTaken(f"run {parent.key.id!r} has ended, or is being cancelled")


def _claim_of(head: Head) -> tuple[str, int]:
    """Return the identity of a claim: it changes whenever the run is claimed."""
    return head.generation, head.epoch


async def load_child_rows(
    kernel: Kernel, parent: Head
) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return id, graph and row of every child; the row is None if it is not written yet."""
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


# --- obligations ----------------------------------------------------------------------------------


async def deliver_child_end(
    kernel: Kernel, workers: LocalWorkers, parent: Head, id: str, *, read_journal: bool
) -> bool:
    """Send a run the end of a child, if the child has ended; return whether it has.

    The child may have ended while the parent was not open, before the parent was retried. With
    ``read_journal`` the child's journal is read, too: it has the end before the row.

    Raises:
        RunNotFound: there is no such child, or its result is no longer stored.
    """
    head = await read_row(kernel, RunKey(parent.key.tenant, id))
    if head.parent != _as_parent(parent):
        raise RunNotFound(f"run {id!r} is not a child of this run")
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
    """Tell the parent, or the map, that a run has ended; cancel its children and its maps.

    Raises:
        ClaimLost: another process has claimed the run.
        StoreUnavailable: the outcome of a write is unknown.
    """
    try:
        if head.chunk is not None:
            await settle_chunk(kernel, workers, head, execution)
        else:
            await _notify_parent(kernel, workers, head, execution)
        await _cancel_children(kernel, workers, head)
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


async def _notify_parent(
    kernel: Kernel, workers: LocalWorkers, head: Head, execution: Execution | None
) -> bool:
    """Tell the parent, if it is open, how its child ended; idempotent.

    Return whether the child has ended: it may have been retried meanwhile.
    """
    if head.parent is None:
        return True
    key = RunKey(head.key.tenant, head.parent.id)
    with suppress(RunEnded, RunNotFound):  # there is no parent to tell
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
        # A failed child may be retried and spend the rest of its slice, so that stays reserved.
        if head.budget is not None and execution is not None and payload["status"] not in TROUBLED:
            # Closed first: its own children could draw money that the parent gets back.
            spent = await close_account(kernel, head) or execution.spent
            payload["spent"] = [spent.tokens, spent.nanodollars]
        # The state passed its own limit when it was written; the end is a little larger.
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
    """Return a signal id that differs for each end of a child that is retried."""
    if execution is not None:
        return f"{_END}.{execution.retried}" if execution.retried else _END
    failure = repr(head.failure).encode()
    return f"{_END}.{head.status}.{hashlib.blake2b(failure, digest_size=8).hexdigest()}"


def _end_payload(head: Head, execution: Execution | None) -> dict[str, Any]:
    ending = head.status if execution is None else execution.ending or head.status
    failure = head.failure if execution is None else execution.failure
    state = execution.state if execution is not None and ending == "finished" else {}
    payload: dict[str, Any] = {
        "status": ending,
        "state": state,
        "failure": _failure_map(failure),
    }
    if head.wrapped:
        # The parent knows the input.
        payload |= {"state": {RESULT: state.get(RESULT)}, "wrapped": True}
    if ending in TROUBLED:
        payload["node"] = head.node if execution is None else execution.ending_node
    return payload


def _failure_map(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else msgspec.structs.asdict(failure)


async def _cancel_children(kernel: Kernel, workers: LocalWorkers, head: Head) -> None:
    """Cancel the children of a run that has ended, also those that are not written yet.

    Raises:
        ClaimLost: another process has claimed the run.
    """
    if not head.children:
        return
    found = await load_child_rows(kernel, head)
    # Checked after that: if the run was retried meanwhile, its children must not be cancelled.
    item = await kernel.heads.get(head.key.head)
    if item is None or _claim_of(head_of(item)) != _claim_of(head):
        raise ClaimLost
    for id, graph, row in found:
        if row is None or not has_ended(row):
            await _cancel_child(kernel, workers, head, id, graph)
    if head.maps:
        await stop_maps(kernel, workers, head)


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
                    continue  # the child was written meanwhile
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
