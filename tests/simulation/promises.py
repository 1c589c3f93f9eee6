"""The promises, checked after every write that is applied, against the truth.

P1  an acknowledged start, signal or extension is never lost
P2  one history: a position is written once, by whoever holds the run then
P3  what was recorded never runs again: see `once`
P4  a signal counts once, and those of one name in their order
P5  the runs of a session go on one after the other: see `order`
P6  nothing is stuck
P7  expiry is exact, and frees

and of runs that start others, that none is left alone (see `family`); of maps (see `fanout`); of
answers that runs share (see `shared`); of text as it comes (see `streams`); and of reviews (see
`decided`).

What the kernel believes of a run is never asked: see `journals`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.model.budget import Budget
from holdfast.model.execution import Execution
from holdfast.model.signals import Signal as InboxSignal
from holdfast.model.signals import TakeSignal, is_caller_signal, resolved_wait
from holdfast.records.blob_keys import blob_prefix
from holdfast.records.codec import unpack_value
from holdfast.records.head import ENDED, OPEN, Head
from holdfast.records.index_keys import IndexKey
from holdfast.records.journal import is_emptied, is_fence
from holdfast.records.keys import HEAD, REAPING, RunKey, inbox_key, is_inbox, journal_key
from holdfast.records.lifetime import ttl_of
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key
from tests.simulation.choices import Choices
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.decided import Decided, is_decision
from tests.simulation.family import Family
from tests.simulation.fanout import Fanout, is_of_a_map
from tests.simulation.gate import Gate
from tests.simulation.inboxes import Inboxes
from tests.simulation.journals import INPUT, Journals
from tests.simulation.once import Once
from tests.simulation.oracle import Books
from tests.simulation.order import Order
from tests.simulation.reaping import Reaping
from tests.simulation.senders import Senders
from tests.simulation.shared import Shared
from tests.simulation.streams import Streams, is_text
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from holdfast.engine.execution.context import Context
    from holdfast.storage.operations import Reply, WriteOperation
    from tests.simulation.lot import Lot
    from tests.simulation.truth import Step
    from tests.simulation.world import World

__all__ = ["Broken", "Promises"]

HEAD_BYTES_MAX = 8 * 1024


class Promises:
    """Watches a world, and raises `Broken` at the write that breaks a promise."""

    def __init__(
        self, world: World, *, skew_ms: int, stuck_ms: int, lease_seconds: float, lot: Lot
    ) -> None:
        """``skew_ms``: how far clocks may be apart; ``stuck_ms``: how long nothing may happen."""
        self.seen: Counter[str] = Counter()
        """How often each kind of thing that is to be tested has truly happened."""
        self.reaping = Reaping(
            world, self.seen, lot=lot, lease_seconds=lease_seconds, skew_ms=skew_ms
        )
        skew_ms += round(2 * lot.skew_seconds_max * 1000)
        self._world = world
        self._skew_ms = skew_ms
        self._stuck_ms = stuck_ms
        self._runs = Chronicles(world, skew_ms=skew_ms)
        self._open: dict[str, Chronicle] = {}
        self._served_ms: float = math.inf
        """Until when workers claimed runs."""
        self._checked_ms = 0
        self.steps = 0
        self._order = Order(world, self._runs, self.seen)
        self._family = Family(world, self._runs, self.seen, skew_ms=skew_ms)
        self.fanout = Fanout(world, self._runs, self.seen, skew_ms=skew_ms)
        self.once = Once(world, self._runs, self.seen, skew_ms=skew_ms)
        self.books = Books(world, self._runs, self.seen)
        self.gate = Gate(world, self.seen)
        self.senders = Senders(world, self._runs, self.seen)
        self.inboxes = Inboxes(world, self._runs, self.seen)
        self.choices = Choices(world, self._runs, self.seen)
        self.shared = Shared(world, self._runs, self.seen, skew_ms=skew_ms)
        self.once.apart = self.shared
        self.streams = Streams(world, self._runs, self.seen)
        self.decided = Decided(world, self._runs, self.seen, skew_ms=skew_ms)
        self._journals = Journals(
            world,
            self._runs,
            self._family,
            self.once,
            self.senders,
            self.choices,
            self.seen,
            skew_ms=skew_ms,
        )
        self._journals.heard += [
            self.shared.recorded,
            self.streams.recorded,
            self.books.recorded,
            self.inboxes.recorded,
            self.decided.recorded,
            self.fanout.recorded,
        ]
        world.on_applied(self._applied)

    # --- what a scenario tells --------------------------------------------------------------------

    def started(self, key: RunKey) -> None:
        """Hear that somebody was told that a run is started."""
        head = self._runs.row(key)
        if head is None:
            raise Broken(f"P1: the start of {key.id} was acknowledged, and it is not there")
        self._order.started(head)
        if head.into is not None:
            into = self._promoted_into(head)
            if into is not None:
                into.acknowledged |= {signal for signal in into.accepted if signal[1] == key.id}

    def is_there(self, key: RunKey) -> bool:
        """Return whether there is a run of this id."""
        return self._runs.row(key) is not None

    def signalled(self, key: RunKey, name: str, id: str) -> None:
        """Hear that somebody was told that a signal counts."""
        head = self._runs.row(key)
        if head is None:
            raise Broken(f"P1: a signal to {key.id} was acknowledged, and there is no such run")
        chronicle = self._runs.of_row(head)
        if (name, id) not in chronicle.accepted:
            raise Broken(
                f"P1: the signal {name}/{id} to {key.id} was acknowledged, and is not there"
            )
        if chronicle.accepted[name, id] >= head.expires_ms:
            raise Broken(f"P7: the signal {name}/{id} was accepted after {key.id} expired")
        chronicle.acknowledged.add((name, id))
        self._check_signal_lasts(chronicle, head, name, id)
        if chronicle.execution is not None and chronicle.execution.ending == "expired":
            self._journals.check_expiry(
                chronicle, head, "P1: it was acknowledged, and the run expired"
            )

    def extended(self, key: RunKey, until_ms: int) -> None:
        """Hear that somebody was told that a run does not expire before that."""
        head = self._runs.row(key)
        if head is None or head.expires_ms < until_ms:
            raise Broken(f"P1: {key.id} was extended until {until_ms}, and its row is {head}")

    def funded(self, key: RunKey, budget: Budget) -> None:
        """Hear that somebody was told that a run may spend so much."""
        head = self._runs.row(key)
        if head is None or head.budget != budget.limits:
            raise Broken(f"P1: {key.id} was given {budget}, and its row is {head}")

    def entered(self, context: Context, held: bool) -> None:
        """Hear that a node begins: whatever came before it must be durable, unless it is held."""
        head = context._visit.claimed.head
        chronicle = self._runs.of_row(head)
        chronicle.performed = max(chronicle.performed, head.epoch)
        broken = self._order.began(head, chronicle) or self._begins_too_early(
            chronicle, context.branch, context.visit
        )
        if broken is not None and (not held or "P5" in str(broken)):
            # Not raised: in a node it would only make the node fail.
            self._world.loop.fail(broken)

    def _begins_too_early(self, chronicle: Chronicle, branch: str, visit: int) -> Broken | None:
        execution = chronicle.execution
        if execution is None or execution.ending is not None:
            return None
        where = f"visit {visit} of {chronicle.key.id} {branch}"
        strand = execution.strand(branch)
        if strand is None:
            if branch in chronicle.branches:
                return None  # given up meanwhile by somebody else, of whom the owner will learn
            return Broken(f"P1: {where} begins, and its fork is not durable")
        if strand.visit < visit:
            return Broken(f"P1: {where} begins, and {strand.visit} is durable")
        if strand.visit == visit and strand.fork is not None:
            return Broken(f"P1: {where} begins before its branches have ended")
        return None

    def expiring(self, within_ms: int) -> list[RunKey]:
        """Return the runs that are open and expire within that time."""
        now = self._world.now_ms()
        rows = {pk: self._world.truth.row(pk) for pk in self._open}
        # Asked for so often that only rows that may be meant are read.
        heads = [
            self._runs.own_row(self._open[pk])
            for pk, row in rows.items()
            if row is not None and 0 < row["expires_ms"] - now < within_ms
        ]
        return [head.key for head in heads if head is not None and head.status in OPEN]

    def is_due_within(self, seconds: float) -> bool:
        """Return whether a run becomes due within that time, or is so by now."""
        until_ms = self._world.now_ms() + round(seconds * 1000)
        rows = [self._runs.own_row(chronicle) for chronicle in self._open.values()]
        places = [row.index_key for row in rows if row is not None and row.index_key is not None]
        return any(_is_due(place) and place.due_parts()[0] <= until_ms for place in places)

    def dismissed(self) -> None:
        """Hear that all workers leave now, and claim nothing any more."""
        self._served_ms = self._world.now_ms()

    def forgive(self) -> None:
        """Hear that workers come back after none was there: what lay still is not stuck yet."""
        self._served_ms = math.inf
        for chronicle in self._open.values():
            chronicle.moved_ms = self._world.now_ms()

    def settled(self) -> None:
        """Check what must hold once everything has come to rest."""
        self.gate.settled()
        self.streams.settled()
        for chronicle in list(self._open.values()):
            self._check_not_stuck(chronicle, at_rest=True)
            head = self._runs.own_row(chronicle)
            if head is not None and self._family.is_orphan(head):
                raise Broken(f"P6: {head.key.id} goes on, and its parent {head.parent} does not")
        for item in self._world.items("RUN#"):
            if item["SK"] == HEAD and item["status"] == "expired" and not item.get("freed"):
                raise Broken(f"P7: {item['PK']} has expired, and was not freed")

    def state(self, key: RunKey) -> dict[str, Any]:
        """Return the state of a run as its journal tells it."""
        head = self._runs.row(key)
        assert head is not None
        execution = self._runs.of_row(head).execution
        return {} if execution is None else execution.state

    # --- every write ------------------------------------------------------------------------------

    def _applied(
        self,
        now_ms: int,
        process: str,
        operation: WriteOperation,
        answer: Reply,
        steps: list[Step],
    ) -> None:
        self.steps += 1
        # Of what is written together, the row is looked at last: it speaks of the others.
        if len(steps) > 1:
            steps = sorted(steps, key=lambda step: step[0].sk == HEAD)
        for key, old, new in steps:
            kind = key.pk.partition("#")[0]
            if kind == "LANE":
                self._order.ticket(key, old, new, process)
            elif kind == "QUOTA":
                self.gate.item(key, new)
            elif kind == "WORKER":
                self.reaping.worker(key, old, new, process, now_ms)
            elif key == REAPING:
                self.reaping.turn(old, new, now_ms)
            elif kind == "ANSWER":
                self.shared.item(key, old, new, process)
            elif kind != "RUN":
                continue
            elif key.sk == HEAD:
                self._head(key, old, new, process, now_ms)
            elif key.sk.startswith("CHILD#"):
                if old is None:  # otherwise it is only prolonged, or deleted
                    _, generation, id = key.sk.split("#", 2)
                    self._family.named(key.pk, generation, id, process=process)
            elif key.sk.startswith("CALL#"):
                continue  # looked at when a row says that somebody is to find it
            elif key.sk.startswith(("ACCOUNT#", "GRANT#")):
                self.books.account(key, new)
            elif is_text(key):
                self.streams.item(key, old, new, process)
            elif key.sk.startswith("REVIEW#"):
                self.decided.item(key, old, new, process)
            elif is_of_a_map(key):
                self.fanout.item(key, old, new, process)
            elif is_inbox(key.sk):
                self._inbox(key, old, new, process)
            else:
                self._journals.record(key, old, new, process, now_ms)
        self.books.balance()
        if now_ms - self._checked_ms > 5_000:
            self._checked_ms = now_ms
            for chronicle in list(self._open.values()):
                self._check_not_stuck(chronicle, at_rest=False)

    def _inbox(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        if is_decision(key):
            self.decided.fence(key, old, new, process)
            # A fence is no signal.
            old, new = (None if item and is_fence(item) else item for item in (old, new))
            if old is new:
                return
        self._journals.inbox(key, old, new, process)
        if old is None and new is not None:
            generation, _, name, id = key.sk.split("#")[1:]
            self.fanout.accepted(self._runs.of(key.pk, generation), name, id)
        if is_decision(key):
            self.decided.put(key, new, None if new is None else self._journals.data(new))

    # --- rows -------------------------------------------------------------------------------------

    def _head(
        self, key: Key, old: Item | None, new: Item | None, process: str, now_ms: int
    ) -> None:
        if new is None:
            if process != TTL_SWEEPER:
                raise Broken(f"P1: {process} deleted the row {key.pk}")
            self._open.pop(key.pk, None)
            return
        before = None if old is None else self._runs.read(old)
        head = self._runs.read(new)
        if (size := self._world.truth.bytes_of(new)) > HEAD_BYTES_MAX:
            raise Broken(f"the row {key.pk} has {size} bytes")
        if before is None or before.generation != head.generation:
            if before is not None and before.ttl * 1000 > now_ms + self._skew_ms:
                raise Broken(f"P1: {process} replaced {key.pk}, which was still kept")
            before = None
            self._born(head)
        chronicle = self._runs.of_row(head)
        if before is not None:
            self._check_change(before, head, chronicle, process)
        self._order.row(before, head)
        self._family.row(before, head, process=process)
        self.fanout.row(before, head)
        self.once.row(before, head)
        self.books.row(before, head)
        self.reaping.row(before, head, chronicle)
        self.inboxes.row(before, head, new, chronicle)
        self.choices.row(head)
        self.shared.row(head)
        self.streams.row(head)
        chronicle.moved_ms = now_ms
        if head.status in ENDED:
            chronicle.over = True
            self._check_ending(head, chronicle)
            self._check_freed(head, chronicle)
        if head.status not in ENDED or self._owes(head):
            self._open[key.pk] = chronicle
        else:
            self._open.pop(key.pk, None)

    def _owes(self, head: Head) -> bool:
        debts = (self._order, self._family, self.books, self.fanout)
        return any(each.owes(head) for each in debts)

    def _check_change(self, before: Head, head: Head, chronicle: Chronicle, process: str) -> None:
        where = f"{process} changed the row of {head.key.id}"
        if head.epoch < before.epoch:
            raise Broken(f"P2: {where}, and set its epoch back")
        if head.owner != before.owner and head.owner is not None:
            chronicle.seen[head.epoch] = set(chronicle.accepted)
            ended = chronicle.execution is not None and chronicle.execution.ending is not None
            self.seen["claimed to pay"] += ended and self._owes(head)
        if head.expires_ms < before.expires_ms or head.ttl < before.ttl:
            raise Broken(f"P7: {where}, and took time from it")
        if head.status == "quarantined" and before.status in OPEN and before.cancel is not None:
            raise Broken(f"P1: {where}: it is quarantined, and was to be cancelled")
        moved = head.snapshot != before.snapshot and not head.freed
        if moved and head.snapshot not in chronicle.snapshots:
            raise Broken(f"P1: {where}: readers begin at {head.snapshot}, which is no snapshot")
        if moved and head.snapshot < before.snapshot:
            raise Broken(f"P1: {where}: readers begin at {head.snapshot} again")
        if head.expires_ms > before.expires_ms:
            self.seen["extended"] += 1
            self._check_lasts(chronicle, head)

    def _check_lasts(self, chronicle: Chronicle, head: Head) -> None:
        """What a run that is extended needs does not vanish before its time is over."""
        first = min(head.snapshot, chronicle.position)
        for position in range(first, chronicle.position):
            item = self._world.truth.item(journal_key(head.key, head.generation, position))
            if item is None and position == INPUT and head.input is not None:
                continue
            if item is None or item["ttl"] < head.ttl:
                raise Broken(f"P1: {head.key.id} is extended, and record {position} does not last")
        for name, id in chronicle.acknowledged:
            self._check_signal_lasts(chronicle, head, name, id)
        ended = chronicle.execution is not None and chronicle.execution.ending is not None
        if not ended and not chronicle.over:
            self._order.check_lasts(head)  # one that has ended may have left its session queue

    def _check_signal_lasts(self, chronicle: Chronicle, head: Head, name: str, id: str) -> None:
        execution = chronicle.execution
        if head.status in ENDED or execution is None or (name, id) in execution.taken:
            return
        item = self._world.truth.item(inbox_key(head.key, head.generation, name, id))
        # While the run is being extended its row lasts longer already. Until it says that the run
        # expires later, a signal need only last as long as the run that its sender knew of.
        yet_to_come = ttl_of(max(head.expires_ms, head.extends_ms), 0) - ttl_of(head.expires_ms, 0)
        if item is None or item["ttl"] < head.ttl - yet_to_come:
            raise Broken(f"P1: the signal {name}/{id} of {head.key.id} does not last")

    def _born(self, head: Head) -> None:
        chronicle = self._runs.of_row(head)
        if head.into is not None:
            self.seen["promoted"] += 1
            into = self._promoted_into(head)
            if into is None or not any(id == head.key.id for _, id in into.accepted):
                raise Broken(f"P1: {head.key.id} is promoted into {head.into}, which has no signal")
            return
        if head.freed:
            return  # a child that is cancelled before it was made
        if head.input is not None:
            chronicle.execution = self._begun(head, head.input)
        elif INPUT not in chronicle.written:
            raise Broken(f"P1: {head.key.id} stands in the table before its input does")
        else:
            item = self._world.item(journal_key(head.key, head.generation, INPUT))
            assert item is not None
            chronicle.execution = self._begun(head, self._journals.data(item))
        # What began in memory wrote records before its row.
        early = len(chronicle.early) if head.extent.position > 1 else 0
        if len(chronicle.written.keys() - {INPUT}) > early:
            raise Broken(f"P2: {head.key.id} is new, and finds records of another run")
        self.seen["begun in memory"] += early > 0
        for number, (item, process) in enumerate(chronicle.early, start=1):
            self._journals.take_in(chronicle, number, item, process)

    def _promoted_into(self, head: Head) -> Chronicle | None:
        assert head.into is not None
        into = self._runs.row(RunKey(head.key.tenant, head.into))
        return None if into is None else self._runs.of_row(into)

    def _begun(self, head: Head, data: bytes) -> Execution:
        return Execution(seed=head.seed, state=unpack_value(data), node=head.first)

    def _check_ending(self, head: Head, chronicle: Chronicle) -> None:
        if head.into is not None or chronicle.execution is None:
            return
        told = chronicle.execution.ending
        if head.status != "quarantined" and head.status != told:
            raise Broken(f"P1: the row of {head.key.id} says {head.status}, its journal {told}")

    # --- nothing is stuck -------------------------------------------------------------------------

    def _check_not_stuck(self, chronicle: Chronicle, *, at_rest: bool) -> None:
        head = self._runs.own_row(chronicle)
        if head is None or (head.status in ENDED and not self._owes(head)):
            self._open.pop(chronicle.key.pk, None)
            return
        now = self._world.now_ms()
        allowed = 0 if at_rest else self._stuck_ms
        since = chronicle.moved_ms
        due = head.index_key is not None and _is_due(head.index_key)
        if due and head.index_key is not None:
            since = max(since, head.index_key.due_parts()[0])
        execution = chronicle.execution
        assert execution is not None
        waiting = due and since > now
        if waiting and self._is_awaited(chronicle, head, execution):
            waiting, since = False, chronicle.moved_ms
        if due and since > self._served_ms:
            waiting = True  # P6 is a promise of workers, and none was left when it became due
        if not waiting and now - since >= allowed:
            raise Broken(
                f"P6: {chronicle.key.id} is {head.status} at {execution.node} and stuck for "
                f"{(now - since) / 1000:.0f} s; its place is "
                f"{head.index_key}, its waits {head.waits}"
            )

    def _is_awaited(self, chronicle: Chronicle, head: Head, execution: Execution) -> bool:
        """Return whether what a run waits for has come."""
        if head.reason == "queued":
            return self._order.is_in_front(head)
        signals = self._journals.untaken(chronicle, head) + [
            InboxSignal(name, id, accepted_ms)
            for (name, id), accepted_ms in chronicle.accepted.items()
            if not is_caller_signal(name)
        ]
        return any(
            isinstance(
                resolved_wait(
                    wait,
                    signals,
                    execution.taken,
                    self._world.now_ms(),
                    expires_ms=head.expires_ms,
                ),
                TakeSignal,
            )
            for wait in self._journals.all_waits(execution, head.waits)
        )

    def _check_freed(self, head: Head, chronicle: Chronicle) -> None:
        """What lay there when a run expired is gone when its row says so."""
        if head.status != "expired":
            return
        there = {
            item["SK"]
            for item in self._world.truth.items(head.key.pk)
            if item["SK"].startswith(f"J#{head.generation}#")
            and not (item.get("stays") == "whole" or is_emptied(item))
            # The network may repeat a write of what was deleted. No reader looks there, and the
            # ttl takes it.
            and not {item.get(TOKEN), item["SK"]} & chronicle.deleted
        }
        for kept in (head.kept, *head.kept_before):
            prefix = blob_prefix(kept, head.key, head.generation)
            there |= {entry.key for entry in self._world.blobs.list_page(prefix, None, 100).entries}
        if not head.freed:
            chronicle.to_be_freed = there
        elif left := there & chronicle.to_be_freed:
            raise Broken(f"P7: {head.key.id} has expired, and {sorted(left)} are still there")


def _is_due(place: IndexKey) -> bool:
    """Return whether a place is in the due index, and not under a worker."""
    return place.pk.startswith("DUE#")
