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
from holdfast.engine.journal.writer import Conflict
from holdfast.engine.kernel.kernel import Dropped, Kernel
from holdfast.engine.runs.budget_accounts import close
from holdfast.engine.runs.cancelling import cancel_run
from holdfast.engine.runs.local_workers import Hands
from holdfast.engine.runs.removal import check_kept
from holdfast.engine.runs.rows import read_row
from holdfast.engine.runs.signalling import send_signal
from holdfast.engine.runs.starting import Prepared, Start, start_prepared
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
from holdfast.model.budget import Limits
from holdfast.model.child import childs_signal
from holdfast.model.event import Failure
from holdfast.model.execution import Execution
from holdfast.records import changes
from holdfast.records.child import child_in, child_item
from holdfast.records.damage import part
from holdfast.records.head import ENDED, OPEN, TROUBLE, Head, Parent, has_ended, head_of, is_over
from holdfast.records.keys import RunKey, children_range

__all__ = ["Wanted", "ask_child", "child_rows", "id_of", "pay_family", "start_child"]

_ID_BYTES_SHOWN = 60
_END = "end"
_REASON = "the run that started it has ended"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A child that a node asks for, each field checked."""

    graph: Graph
    prepared: Prepared
    branch: str
    visit: int
    number: int
    """Which of the visit's children it is, from 1 on."""
    id: str | None
    """None where it gets one of its own."""
    labels: dict[str, str]
    budget: Limits | None = None


async def start_child(
    kernel: Kernel,
    hands: Hands,
    parent: Head,
    wanted: Wanted,
    *,
    retried: str,
    draws: Parent | None,
    parenting: Callable[[], Awaitable[Head]],
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
        if wanted.id is not None:
            # A chosen id may be that of a stranger, and then nothing is to be written.
            standing = await _standing(kernel, RunKey(parent.key.tenant, wanted.id))
            if standing is not None:
                return _checked(standing, parent)
        parent = await parenting()
        id = id_of(parent, wanted, retried)
        item = child_item(parent, id, graph=wanted.graph.name, token=kernel.ids.new())
        with suppress(ConditionFailed):  # it was written before
            await kernel.settle(kernel.journals, item)
        await _check_held(kernel, parent)
        return await _made(kernel, hands, parent, wanted, id, draws)
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


def id_of(parent: Head, wanted: Wanted, retried: str) -> str:
    """Return the id of a child: the same whenever the same visit starts it, until a retry."""
    if wanted.id is not None:
        return wanted.id
    visit = f"{parent.generation}.{wanted.branch}.{wanted.visit}"
    name = f"{visit}.{wanted.number}.{retried}"
    digest = hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
    shown = parent.key.id.encode()[:_ID_BYTES_SHOWN].decode(errors="ignore").rstrip()
    return f"{shown}.{digest}"


async def _standing(kernel: Kernel, run: RunKey) -> Head | None:
    with suppress(RunNotFound):
        return await read_row(kernel, run)
    return None


async def _made(
    kernel: Kernel,
    hands: Hands,
    parent: Head,
    wanted: Wanted,
    id: str,
    draws: Parent | None,
) -> Head:
    """Write the child's row; a worker of this process goes on with it if one has room."""
    asked = Start(
        run=RunKey(parent.key.tenant, id),
        user=None,
        user_hash=parent.user,
        labels=wanted.labels,
        starts_ms=None,
        expires_in_ms=max(1, parent.expires_ms - kernel.clock.now_ms()),
        retention_ms=0,
        parent=_as_parent(parent),
        budget=wanted.budget,
        draws=None if wanted.budget is not None else draws,
        on_pause=wanted.graph.durability == "on_pause",
    )
    room = hands.reserve(asked.run, wanted.graph.name, asked.pool)
    owner = None if room is None else room.owner
    try:
        started = await start_prepared(
            kernel, hands, wanted.graph, wanted.prepared, asked, owner=owner
        )
        head = _checked(started.head, parent)
    except BaseException as error:
        if room is not None:
            room.give_back(unsure=not isinstance(error, AlreadyExists | InvalidInput))
        raise
    if room is not None and started.loaded is not None:
        room.take(head, started.loaded)
    elif room is not None:
        room.give_back()
    elif started.loaded is not None and head.place is not None:
        hands.offer(head.place)
    return head


def _checked(child: Head, parent: Head) -> Head:
    if child.parent != _as_parent(parent):
        raise AlreadyExists(f"there is a run {child.key.id!r}, which is no child of this one")
    return child


async def _check_held(kernel: Kernel, parent: Head) -> None:
    item = await kernel.heads.get(parent.key.head)
    standing = None if item is None else head_of(item)
    if standing is None or _life(standing) != _life(parent):
        raise Dropped
    if standing.status in ENDED or standing.cancel is not None:
        raise Conflict(f"run {parent.key.id!r} is about to end")


def _life(head: Head) -> tuple[str, int]:
    """Return what changes whenever a run changes hands."""
    return head.generation, head.epoch


async def child_rows(kernel: Kernel, parent: Head) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Return id, graph and row of every run that is, or may be about to become, a child."""
    if not parent.children:
        return []
    items = kernel.journals.every(parent.key.pk, children_range(parent.generation))
    named = [child_in(item) async for item in items]
    keys = [RunKey(parent.key.tenant, id).head for id, _ in named]
    rows: list[tuple[str, str, dict[str, Any] | None]] = []
    for (id, graph), item in zip(named, await kernel.heads.get_many(keys), strict=True):
        if item is None or is_over(item, kernel.clock.now_ms()):
            rows.append((id, graph, None))
        elif part(item, "parent", "generation") == parent.generation:
            rows.append((id, graph, item))
    return rows


def _as_parent(head: Head) -> Parent:
    return Parent(head.key.id, head.generation)


# --- what is owed ---------------------------------------------------------------------------------


async def ask_child(kernel: Kernel, hands: Hands, parent: Head, id: str, *, closely: bool) -> bool:
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
        check_kept(head)
    elif head.status not in ENDED:
        execution = (await load_journal(kernel, head)).execution if closely else None
        if execution is None or execution.ending is None:
            return False
    return await _tell_parent(kernel, hands, head, execution)


async def pay_family(kernel: Kernel, hands: Hands, head: Head, execution: Execution | None) -> None:
    """Tell the parent of a run that has ended, and cancel its children.

    Raises:
        Dropped: the run is not ours any more.
        StoreUnavailable: the store did not say what became of it.
    """
    try:
        await _tell_parent(kernel, hands, head, execution)
        await _cancel_children(kernel, hands, head)
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


async def _tell_parent(
    kernel: Kernel, hands: Hands, head: Head, execution: Execution | None
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
        name, id, told = childs_signal(head.key.id), _end_id(head, execution), _end(head, execution)
        # One that failed may be retried, and then spends what it has left: that stays set aside.
        if head.budget is not None and execution is not None and told["status"] not in TROUBLE:
            # Its own children may still draw, and what the parent has back would be spent twice.
            spent = await close(kernel, head) or execution.spent
            told["spent"] = [spent.tokens, spent.nanodollars]
        # Its state was admitted when it was written; how it ended takes a little more.
        send = partial(
            send_signal,
            kernel,
            hands,
            key,
            name=name,
            id=id,
            ends_child=True,
            bytes_max=kernel.limits.record_bytes_max,
        )
        try:
            await send(payload=told)
        except InvalidInput as error:  # its state is too large for a store without a bucket
            failure = _plain(Failure("", str(error)))
            lost: dict[str, Any] = {**told, "status": "failed", "state": {}, "failure": failure}
            await send(payload=lost)
    return True


def _end_id(head: Head, execution: Execution | None) -> str:
    """Return what tells this end of a child from those that it comes to when it is retried."""
    if execution is not None:
        return f"{_END}.{execution.retried}" if execution.retried else _END
    failure = repr(head.failure).encode()
    return f"{_END}.{head.status}.{hashlib.blake2b(failure, digest_size=8).hexdigest()}"


def _end(head: Head, execution: Execution | None) -> dict[str, Any]:
    ending = head.status if execution is None else execution.ending or head.status
    failure = head.failure if execution is None else execution.failure
    return {
        "status": ending,
        "state": execution.state if execution is not None and ending == "finished" else {},
        "failure": _plain(failure),
    }


def _plain(failure: Failure | None) -> dict[str, Any] | None:
    return None if failure is None else msgspec.structs.asdict(failure)


async def _cancel_children(kernel: Kernel, hands: Hands, head: Head) -> None:
    """Cancel the children of a run that has ended, also those that are not made yet.

    Raises:
        Dropped: the run is not ours any more.
    """
    if not head.children:
        return
    found = await child_rows(kernel, head)
    # Looked at after that: children of a run that was retried meanwhile are not to be cancelled.
    item = await kernel.heads.get(head.key.head)
    if item is None or _life(head_of(item)) != _life(head):
        raise Dropped
    for id, graph, row in found:
        if row is None or not has_ended(row):
            await _cancel_child(kernel, hands, head, id, graph)


async def _cancel_child(kernel: Kernel, hands: Hands, parent: Head, id: str, graph: str) -> None:
    key = RunKey(parent.key.tenant, id)
    while True:
        with suppress(RunEnded):
            try:
                row = await read_row(kernel, key)
                if row.parent == _as_parent(parent):
                    row = await cancel_run(kernel, key, reason=_REASON, hands=hands)
                    hands.interrupt(key)
                    if row.status not in ENDED and row.owner is None and row.place is not None:
                        hands.offer(row.place)
                return
            except RunNotFound:
                never = _cancelled_before_made(kernel, parent, key, graph)
                write = changes.created(never, now_ms=kernel.clock.now_ms(), token=kernel.ids.new())
                try:
                    await kernel.settle(kernel.heads, write)
                except ConditionFailed:
                    continue  # it was made meanwhile
        return


def _cancelled_before_made(kernel: Kernel, parent: Head, key: RunKey, graph: str) -> Head:
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
