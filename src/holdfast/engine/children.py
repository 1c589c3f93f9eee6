"""Runs that a node starts and awaits: none is left without its parent, and none is made twice.

A child's id follows from the visit that starts it, so whoever runs the node again finds the same
child. Before it is made, the parent's partition says that it may be; then the parent is looked at;
then the child's row is written. Whoever ends the parent goes through what its partition says, and
writes a cancelled row where there is none yet: so a stalled owner that wakes up later finds either
that the parent is not its own any more, or that its child has been there, and is cancelled.

A child that has ended owes its parent to be told: the end is a signal in the parent's inbox, under
a name that nobody else can use, and so it counts once.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.engine import runs
from holdfast.engine.hands import Hands
from holdfast.engine.kernel import Dropped, Kernel
from holdfast.engine.ledger import load
from holdfast.engine.starting import Start, start
from holdfast.errors import (
    AlreadyExists,
    ConditionFailed,
    OutcomeUnknown,
    RunEnded,
    RunNotFound,
    StoreUnavailable,
)
from holdfast.graph import Graph
from holdfast.model.child import childs_signal
from holdfast.model.execution import Execution
from holdfast.records import changes
from holdfast.records.child import child_in, child_item
from holdfast.records.head import ENDED, OPEN, Head, Parent, head_of
from holdfast.records.keys import RunKey, children_range

__all__ = ["ask_child", "child_id", "pay_family", "start_child"]

_ID_SHOWN = 60
_END = "end"
_REASON = "the run that started it has ended"


def child_id(parent: Head, visit_key: str, number: int, retried: str) -> str:
    """Return the id of a child: the same whenever the same visit starts it, until a retry."""
    name = f"{visit_key}.{number}.{retried}"
    digest = hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
    return f"{parent.key.id[:_ID_SHOWN].rstrip()}.{digest}"


async def start_child(
    kernel: Kernel, hands: Hands, parent: Head, graph: Graph, input: Any, asked: Start
) -> Head:
    """Make a child of a run that this process holds, unless it is there; return its row.

    Raises:
        Dropped: the parent is not ours any more, or about to end.
        AlreadyExists: there is a run of this id, and it is not a child of this one.
        InvalidInput: the input does not fit the graph's state.
    """
    item = child_item(parent, asked.run.id, graph=graph.name, token=kernel.ids.new())
    with suppress(ConditionFailed):  # it was written before
        await kernel.settle(kernel.journals, item)
    standing = await kernel.heads.get(parent.key.head)
    if standing is None or not _is_same(head_of(standing), parent):
        raise Dropped
    room = hands.reserve(asked.run, graph.name, asked.pool)
    try:
        started = await start(
            kernel, hands, graph, input, asked, owner=None if room is None else room.owner
        )
    except BaseException as error:
        if room is not None:
            room.give_back(unsure=not isinstance(error, AlreadyExists))
        raise
    head = started.head
    if head.parent != asked.parent:
        if room is not None:
            room.give_back()
        raise AlreadyExists(f"there is a run {asked.run.id!r}, which is no child of this one")
    if room is not None and started.loaded is not None and head.owner == room.owner:
        room.take(head, started.loaded)
    elif room is not None:
        room.give_back()
    if room is None and started.loaded is not None and head.place is not None:
        hands.offer(head.place)
    return head


def _is_same(standing: Head, held: Head) -> bool:
    return (
        (standing.generation, standing.epoch) == (held.generation, held.epoch)
        and standing.status not in ENDED
        and standing.cancel is None
    )


async def ask_child(kernel: Kernel, hands: Hands, parent: Head, id: str) -> bool:
    """See to it that a run is told of a child that has ended; return whether it has.

    It may have ended when there was nobody to tell, and the run was retried since.

    Raises:
        RunNotFound: there is no such run.
        AlreadyExists: it is not a child of this one.
    """
    head = await runs.read(kernel, RunKey(parent.key.tenant, id))
    if head.parent != Parent(parent.key.id, parent.generation):
        raise AlreadyExists(f"the run {id!r} is no child of this one")
    if head.status not in ENDED:
        return False
    await _tell_parent(kernel, hands, head, None)
    return True


async def pay_family(kernel: Kernel, hands: Hands, head: Head, execution: Execution | None) -> None:
    """Tell the parent of a run that has ended, and cancel its children.

    Raises:
        StoreUnavailable: the store did not say what became of it.
    """
    await _tell_parent(kernel, hands, head, execution)
    await _cancel_children(kernel, hands, head, execution)


async def _tell_parent(
    kernel: Kernel, hands: Hands, head: Head, execution: Execution | None
) -> None:
    """Tell the parent how its child ended, if it still goes on; do nothing if it was told before.

    Raises:
        StoreUnavailable: the store did not say what became of it.
    """
    parent = head.parent
    if parent is None:
        return
    key = RunKey(head.key.tenant, parent.id)
    try:
        row = await runs.read(kernel, key)
        if row.generation != parent.generation or row.status not in OPEN:
            return
        if execution is None and head.status != "quarantined" and not head.freed:
            execution = (await load(kernel, head)).execution
        ending = head.status if execution is None else execution.ending or head.status
        failure = head.failure if execution is None else execution.failure
        payload = {
            "status": ending,
            "state": execution.state if execution and ending == "finished" else {},
            "failure": None if failure is None else msgspec.structs.asdict(failure),
        }
        name = childs_signal(head.key.id)
        await runs.send(kernel, hands, key, name=name, id=_END, payload=payload)
    except (RunEnded, RunNotFound, AlreadyExists):
        return  # nobody is left to be told, or somebody told it before
    except OutcomeUnknown as error:
        raise StoreUnavailable(str(error)) from error


async def _cancel_children(
    kernel: Kernel, hands: Hands, head: Head, execution: Execution | None
) -> None:
    """Cancel the children of a run that has ended, also those that are not made yet."""
    if not head.children:
        return
    known = set[str]() if execution is None else {name for name, _ in execution.taken}
    async for item in kernel.journals.every(head.key.pk, children_range(head.generation)):
        id, graph = child_in(item)
        if childs_signal(id) not in known:
            await _cancel_child(kernel, hands, head, id, graph)


async def _cancel_child(kernel: Kernel, hands: Hands, parent: Head, id: str, graph: str) -> None:
    key = RunKey(parent.key.tenant, id)
    while True:
        with suppress(RunEnded):
            try:
                row = await runs.read(kernel, key)
                if row.parent == Parent(parent.key.id, parent.generation):
                    row = await runs.cancel(kernel, key, reason=_REASON, hands=hands)
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
        input_hash=b"",
        input=None,
        first="",
        node="",
        created_ms=now,
        updated_ms=now,
        starts_ms=now,
        expires_ms=parent.expires_ms,
        ttl=parent.ttl,
        kept=parent.kept,
        parent=Parent(parent.key.id, parent.generation),
        freed=True,
    )
