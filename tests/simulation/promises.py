"""The promises, checked after every write that is applied, against the truth.

P1  an acknowledged start or signal is never lost
P2  one history: a position is written once, by whoever holds the run then
P4  a signal counts once
P6  nothing is stuck
P7  expiry is exact, and frees

Each journal is folded along as it is written, by the same `folded` that the kernel uses; what the
kernel believes of a run is never asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.model.event import (
    AttemptFailed,
    Cancelled,
    Event,
    Expired,
    Extended,
    Fenced,
    NodeFinished,
    Rerouted,
    SignalTaken,
    Snapshot,
    TimerFired,
)
from holdfast.model.execution import Execution, folded, restored
from holdfast.model.signals import Signal as InboxSignal
from holdfast.model.signals import Take, resolved
from holdfast.model.wait import Wait
from holdfast.records.codec import unpack_events, unpack_value
from holdfast.records.head import ENDED, Head, head_of
from holdfast.records.journal import content_of
from holdfast.records.keys import HEAD, RunKey, blob_prefix, inbox_key, is_inbox, position_in
from holdfast.storage.item import Item, item_bytes
from holdfast.storage.layout import TOKEN, Key
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from holdfast.storage.operations import Answer, WriteOperation
    from tests.simulation.truth import Step
    from tests.simulation.world import World

__all__ = ["Broken", "Promises"]

HEAD_BYTES_MAX = 8 * 1024
INPUT = 0


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Chronicle:
    """One generation of a run, as its journal truly tells it."""

    key: RunKey
    generation: str
    execution: Execution | None = None
    position: int = 1
    fence: int = 0
    performed: int = 0
    """The last epoch in which something was performed."""
    written: dict[int, str] = field(default_factory=dict)
    """Who wrote which position: the token of the write."""
    to_be_freed: set[str] = field(default_factory=set)
    """What lay there when the run expired."""
    accepted: dict[tuple[str, str], int] = field(default_factory=dict)
    """The signals in the inbox, and when they were accepted."""
    acknowledged: set[tuple[str, str]] = field(default_factory=set)
    """The signals whose sender was told that they count."""
    snapshots: set[int] = field(default_factory=set)
    """The positions at which readers may begin."""
    waits: tuple[Wait, ...] = ()
    """What the run waited for when it expired."""
    moved_ms: int = 0
    """When something last happened to the run."""


class Promises:
    """Watches a world, and raises `Broken` at the write that breaks a promise."""

    def __init__(self, world: World, *, skew_ms: int, stuck_ms: int) -> None:
        """``skew_ms``: how far clocks may be apart; ``stuck_ms``: how long nothing may happen."""
        self._world = world
        self._skew_ms = skew_ms
        self._stuck_ms = stuck_ms
        self._runs: dict[tuple[str, str], Chronicle] = {}
        self._open: dict[str, Chronicle] = {}
        self._checked_ms = 0
        self.steps = 0
        world.on_applied(self._applied)

    # --- what a scenario tells --------------------------------------------------------------------

    def started(self, key: RunKey) -> None:
        """Hear that somebody was told that a run is started."""
        head = self._truth(key)
        if head is None:
            raise Broken(f"P1: the start of {key.id} was acknowledged, and it is not there")

    def signalled(self, key: RunKey, name: str, id: str) -> None:
        """Hear that somebody was told that a signal counts."""
        head = self._truth(key)
        if head is None:
            raise Broken(f"P1: a signal to {key.id} was acknowledged, and there is no such run")
        chronicle = self._chronicle(head)
        if (name, id) not in chronicle.accepted:
            raise Broken(
                f"P1: the signal {name}/{id} to {key.id} was acknowledged, and is not there"
            )
        if chronicle.accepted[name, id] >= head.expires_ms:
            raise Broken(f"P7: the signal {name}/{id} was accepted after {key.id} expired")
        if chronicle.execution is not None and (name, id) not in chronicle.execution.taken:
            self._check_lasts(head, name, id)
        chronicle.acknowledged.add((name, id))
        if chronicle.execution is not None and chronicle.execution.ending == "expired":
            self._check_expiry(chronicle, head, "P1: it was acknowledged, and the run expired")

    def entered(self, key: RunKey, generation: str, epoch: int, visit: int, *, held: bool) -> None:
        """Hear that a node begins: whatever came before it must be durable."""
        chronicle = self._of(key.pk, generation)
        chronicle.performed = max(chronicle.performed, epoch)
        execution = chronicle.execution
        if execution is not None and execution.visit < visit and not held:
            # Not raised: in a node it would only make the node fail.
            self._world.loop.fail(
                Broken(f"P1: visit {visit} of {key.id} begins, and {execution.visit} is durable")
            )

    def settled(self) -> None:
        """Check what must hold once everything has come to rest."""
        for chronicle in list(self._open.values()):
            self._check_not_stuck(chronicle, at_rest=True)
        for item in self._world.items("RUN#"):
            if item["SK"] == HEAD and item["status"] == "expired" and not item.get("freed"):
                raise Broken(f"P7: {item['PK']} has expired, and was not freed")

    # --- every write ------------------------------------------------------------------------------

    def _applied(
        self,
        now_ms: int,
        process: str,
        operation: WriteOperation,
        answer: Answer,
        steps: list[Step],
    ) -> None:
        self.steps += 1
        for key, old, new in steps:
            if not key.pk.startswith("RUN#"):
                continue
            if key.sk == HEAD:
                self._head(key, old, new, process, now_ms)
            elif is_inbox(key.sk):
                self._inbox(key, old, new)
            else:
                self._record(key, old, new, process, now_ms)
        if now_ms - self._checked_ms > 5_000:
            self._checked_ms = now_ms
            for chronicle in list(self._open.values()):
                self._check_not_stuck(chronicle, at_rest=False)

    def _head(
        self, key: Key, old: Item | None, new: Item | None, process: str, now_ms: int
    ) -> None:
        if new is None:
            if process != TTL_SWEEPER:
                raise Broken(f"P1: {process} deleted the row {key.pk}")
            self._open.pop(key.pk, None)
            return
        head = head_of(new)
        if item_bytes(new) > HEAD_BYTES_MAX:
            raise Broken(f"the row {key.pk} has {item_bytes(new)} bytes")
        before = None if old is None else head_of(old)
        if before is None or before.generation != head.generation:
            if before is not None and before.ttl * 1000 > now_ms + self._skew_ms:
                raise Broken(f"P1: {process} replaced {key.pk}, which was still kept")
            self._born(head, now_ms)
        elif head.epoch < before.epoch:
            raise Broken(f"P2: {process} set the epoch of {key.pk} back")
        chronicle = self._chronicle(head)
        if before is not None and before.generation == head.generation and not head.freed:
            self._check_lifetime(before, head, chronicle, process)
        chronicle.moved_ms = now_ms
        if head.status in ENDED:
            self._check_ending(head, chronicle)
            self._check_freed(head, chronicle)
            self._open.pop(key.pk, None)
        else:
            self._open[key.pk] = chronicle

    def _check_lifetime(self, before: Head, head: Head, chronicle: Chronicle, process: str) -> None:
        """A run gets more time only once everything that it needs lasts as long."""
        what = f"{process} changed the row of {head.key.id}"
        if head.snapshot < before.snapshot:
            raise Broken(f"P1: {what}, and readers begin at records that may be gone")
        if head.snapshot and head.snapshot not in chronicle.snapshots:
            raise Broken(f"P1: {what}, and there is no snapshot where readers begin")
        if head.expires_ms < before.expires_ms or head.ttl < before.ttl:
            raise Broken(f"P7: {what}, and its life is shorter")
        if head.expires_ms == before.expires_ms:
            return
        for position in range(head.snapshot, chronicle.position):
            item = self._world.item(Key(head.key.pk, f"J#{head.generation}#{position:08d}"))
            if item is None or item["ttl"] < head.ttl:
                raise Broken(f"P1: {what}, and record {position} does not last as long")
        assert chronicle.execution is not None
        for name, id in chronicle.acknowledged - chronicle.execution.taken:
            self._check_lasts(head, name, id)

    def _check_lasts(self, head: Head, name: str, id: str) -> None:
        item = self._world.item(inbox_key(head.key, head.generation, name, id))
        if item is None or item["ttl"] < head.ttl:
            raise Broken(f"P1: the signal {name}/{id} to {head.key.id} is gone before the run")

    def _born(self, head: Head, now_ms: int) -> None:
        place = (head.key.pk, head.generation)
        chronicle = self._runs.setdefault(place, Chronicle(head.key, head.generation))
        if head.input is not None:
            chronicle.execution = self._begun(head.generation, head.first, head.input)
        elif INPUT not in chronicle.written:
            raise Broken(f"P1: {head.key.id} stands in the table before its input does")
        else:
            item = self._world.item(Key(head.key.pk, f"J#{head.generation}#{INPUT:08d}"))
            assert item is not None
            chronicle.execution = self._begun(head.generation, head.first, self._data(item))
        if any(position != INPUT for position in chronicle.written):
            raise Broken(f"P2: {head.key.id} is new, and finds records of another run")

    def _begun(self, generation: str, first: str, data: bytes) -> Execution:
        return Execution(seed=generation, state=unpack_value(data), node=first)

    def _inbox(self, key: Key, old: Item | None, new: Item | None) -> None:
        generation, _, name, id = key.sk.split("#")[1:]
        chronicle = self._of(key.pk, generation)
        if new is None:
            return
        if old is not None:
            if (old["accepted_ms"], new["ttl"] > old["ttl"]) != (new["accepted_ms"], True):
                raise Broken(f"P4: the signal {name}/{id} of {key.pk} was written over")
            self._data(new)
        chronicle.accepted[name, id] = new["accepted_ms"]

    def _record(
        self, key: Key, old: Item | None, new: Item | None, process: str, now_ms: int
    ) -> None:
        generation, position = key.sk.split("#")[1], position_in(key.sk)
        chronicle = self._of(key.pk, generation)
        where = f"record {position} of {chronicle.key.id}"
        if new is None:
            self._removed(chronicle, old, process, where)
            return
        if old is not None or position in chronicle.written:
            # The network may repeat a write when the position was freed: nobody reads it there.
            if old is not None or chronicle.written[position] != new[TOKEN]:
                raise Broken(f"P2: {process} wrote {where} a second time")
            return
        chronicle.written[position] = new[TOKEN]
        chronicle.moved_ms = now_ms
        if position == INPUT:
            return
        if position != chronicle.position or chronicle.execution is None:
            raise Broken(f"P2: {process} wrote {where}, where {chronicle.position} comes next")
        if new["ttl"] < chronicle.execution.ttl:
            raise Broken(f"P1: {process} wrote {where}, which is gone before what it follows")
        chronicle.position += 1
        for event in unpack_events(self._data(new)):
            self._check_event(chronicle, event, new["epoch"], f"{process} wrote {event} as {where}")
            chronicle.execution = folded(chronicle.execution, [event])
            if isinstance(event, Fenced):
                chronicle.fence = event.epoch
            if isinstance(event, Snapshot):
                chronicle.snapshots.add(position)

    def _check_event(self, chronicle: Chronicle, event: Event, epoch: int, what: str) -> None:
        execution = chronicle.execution
        assert execution is not None
        head = self._truth(chronicle.key)
        if isinstance(event, Fenced):
            if event.epoch <= chronicle.fence:
                raise Broken(f"P2: {what}, after the fence of epoch {chronicle.fence}")
            if head is None or head.epoch < event.epoch:
                raise Broken(f"P2: {what}, before the row says so")
            return
        if isinstance(event, Snapshot):
            if restored(event) != execution:
                raise Broken(f"P2: {what}, which is not the fold of what stands before it")
            return
        if isinstance(event, Rerouted) and event.reason == "retried":
            return
        if execution.ending is not None:
            raise Broken(f"P2: {what}, after the run was {execution.ending}")
        if isinstance(event, Cancelled | Extended):
            return
        if epoch < chronicle.fence:
            raise Broken(f"P2: {what}, in epoch {epoch}, behind the fence of {chronicle.fence}")
        if epoch < chronicle.performed:
            raise Broken(f"P2: {what}, in epoch {epoch}, when {chronicle.performed} was at work")
        if head is None or (head.epoch > epoch and not head.torn):
            raise Broken(f"P2: {what}, in epoch {epoch}, after it had let go of the run")
        if isinstance(event, NodeFinished | AttemptFailed | SignalTaken | TimerFired) and (
            event.node,
            event.visit,
        ) != (execution.node, execution.visit):
            raise Broken(f"P2: {what}, at {execution.node}, visit {execution.visit}")
        if isinstance(event, SignalTaken):
            self._check_taken(chronicle, event, what)
        if isinstance(event, Expired):
            self._check_expiry(chronicle, head, what)

    def _check_taken(self, chronicle: Chronicle, event: SignalTaken, what: str) -> None:
        assert chronicle.execution is not None
        if (event.name, event.id) in chronicle.execution.taken:
            raise Broken(f"P4: {what}, which was taken before")
        if (event.name, event.id) not in chronicle.accepted:
            raise Broken(f"P4: {what}, which nobody sent")

    def _check_expiry(self, chronicle: Chronicle, head: Head, what: str) -> None:
        assert chronicle.execution is not None
        if self._world.now_ms() + self._skew_ms < head.expires_ms:
            raise Broken(f"P7: {what}, before its time")
        signals = self._untaken(chronicle, head)
        if head.waits:
            chronicle.waits = head.waits
        if any(
            isinstance(resolved(wait, signals, chronicle.execution.taken, head.expires_ms), Take)
            for wait in chronicle.waits
            if wait.visit == chronicle.execution.visit
        ):
            raise Broken(f"P7: {what}, though a signal was accepted in time")

    def _untaken(self, chronicle: Chronicle, head: Head) -> list[InboxSignal]:
        assert chronicle.execution is not None
        return [
            InboxSignal(name, id, chronicle.accepted[name, id])
            for name, id in sorted(chronicle.acknowledged - chronicle.execution.taken)
            if chronicle.accepted[name, id] < head.expires_ms
        ]

    def _removed(self, chronicle: Chronicle, old: Item | None, process: str, where: str) -> None:
        if process == TTL_SWEEPER or old is None:
            return
        head = self._truth(chronicle.key)
        gone = head is None or head.generation != chronicle.generation
        if not gone and head is not None and head.status not in ENDED:
            raise Broken(f"P1: {process} deleted {where} of a run that is {head.status}")
        if old.get("stays"):
            raise Broken(f"P2: {process} deleted {where}, which keeps stalled owners out")

    def _check_ending(self, head: Head, chronicle: Chronicle) -> None:
        assert chronicle.execution is not None
        told = chronicle.execution.ending
        if head.status != "quarantined" and head.status != told:
            raise Broken(f"P1: the row of {head.key.id} says {head.status}, its journal {told}")

    # --- nothing is stuck -------------------------------------------------------------------------

    def _check_not_stuck(self, chronicle: Chronicle, *, at_rest: bool) -> None:
        head = self._truth(chronicle.key)
        if head is None or head.generation != chronicle.generation or head.status in ENDED:
            return
        now = self._world.now_ms()
        allowed = 0 if at_rest else self._stuck_ms
        since = chronicle.moved_ms
        due = head.place is not None and head.place.pk.startswith("DUE#")
        if due and head.place is not None:
            since = max(since, head.place.due_parts()[0])
        execution = chronicle.execution
        assert execution is not None
        waiting = due and since > now
        if waiting and any(
            isinstance(resolved(wait, self._untaken(chronicle, head), execution.taken, now), Take)
            for wait in head.waits
            if wait.visit == execution.visit and wait.key not in execution.answers
        ):
            waiting, since = False, chronicle.moved_ms
        if not waiting and now - since >= allowed:
            raise Broken(
                f"P6: {chronicle.key.id} is {head.status} at {execution.node} and stuck for "
                f"{(now - since) / 1000:.0f} s; its place is {head.place}, its waits {head.waits}"
            )

    def _check_freed(self, head: Head, chronicle: Chronicle) -> None:
        """What lay there when a run expired is gone when its row says so."""
        if head.status != "expired":
            return
        there = {
            item["SK"]
            for item in self._world.truth.items(head.key.pk)
            if item["SK"].startswith(f"J#{head.generation}#") and not item.get("stays")
        }
        for kept in (head.kept, *head.kept_before):
            prefix = blob_prefix(kept, head.key, head.generation)
            there |= {entry.key for entry in self._world.blobs.page(prefix, None, 100).entries}
        if not head.freed:
            chronicle.to_be_freed = there
        elif left := there & chronicle.to_be_freed:
            raise Broken(f"P7: {head.key.id} has expired, and {sorted(left)} are still there")

    # --- the truth --------------------------------------------------------------------------------

    def _truth(self, key: RunKey) -> Head | None:
        item = self._world.truth.item(key.head)
        return None if item is None else head_of(item)

    def _chronicle(self, head: Head) -> Chronicle:
        return self._of(head.key.pk, head.generation)

    def _of(self, pk: str, generation: str) -> Chronicle:
        _, tenant, id = pk.split("#")
        return self._runs.setdefault((pk, generation), Chronicle(RunKey(tenant, id), generation))

    def _data(self, item: Item) -> bytes:
        content = content_of(item)
        if content.blob is None:
            assert content.data is not None
            return content.data
        found: Any = self._world.blobs.read(content.blob.key, content.blob.size)
        if found is None or found.data is None:
            raise Broken(f"P1: {item['SK']} names the blob {content.blob.key}, which is not there")
        return found.data
