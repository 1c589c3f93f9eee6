"""What is written into journals and inboxes, checked record by record.

Each journal is folded along as it is written, by the same `folded` that the kernel uses, and never
from a snapshot: what a snapshot holds is compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.model.event import (
    AttemptFailed,
    BranchFailed,
    CallFinished,
    CallIntended,
    CallReserved,
    CallRetried,
    CallVoided,
    Cancelled,
    ChildStarted,
    Event,
    Expired,
    Extended,
    Fenced,
    Finished,
    NodeFinished,
    Rerouted,
    SignalSetAside,
    SignalTaken,
    Snapshot,
    TimerFired,
    WaitsRecorded,
)
from holdfast.model.execution import Branch, Execution
from holdfast.model.fold import folded, restored, snapshot
from holdfast.model.signals import Signal as InboxSignal
from holdfast.model.signals import TakeSignal, is_open_wait, resolved_wait
from holdfast.model.wait import ReviewWait, Wait, is_group_key, signal_kind
from holdfast.records.codec import unpack_events
from holdfast.records.head import ENDED, Head
from holdfast.records.journal import content_of, is_emptied
from holdfast.records.keys import journal_position
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Key
from tests.simulation.choices import Choices
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.family import Family
from tests.simulation.once import Once
from tests.simulation.outages import check_blame
from tests.simulation.senders import MISFIT, Senders
from tests.simulation.world import TTL_SWEEPER

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["INPUT", "Journals"]

INPUT = 0
"""The position of a run's input."""


class _Deed:
    """Who wrote which event where. Text only when somebody asks: that of an event may be long."""

    def __init__(self, process: str, event: Event, where: str) -> None:
        self._parts = process, event, where

    def __str__(self) -> str:
        process, event, where = self._parts
        return f"{process} wrote {event!r:.200} as {where}"


class Journals:
    """Checks that each record follows from those before it, and was written by who may."""

    def __init__(
        self,
        world: World,
        runs: Chronicles,
        family: Family,
        once: Once,
        senders: Senders,
        choices: Choices,
        seen: Counter[str],
        *,
        skew_ms: int,
    ) -> None:
        self._world = world
        self._runs = runs
        self._family = family
        self._once = once
        self._senders = senders
        self._choices = choices
        self._seen = seen
        self._skew_ms = skew_ms
        self.heard: list[Callable[[Chronicle, Event, object], None]] = []
        """Hear of each event, before it is folded."""

    def inbox(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check a write into an inbox."""
        generation, _, name, id = key.sk.split("#")[1:]
        chronicle = self._runs.of(key.pk, generation)
        if new is None:
            if process == TTL_SWEEPER and (name, id) in chronicle.acknowledged:
                self._check_not_needed(chronicle, key, taken=(name, id))
            if old is not None:
                self._signal_deleted(chronicle, old, process, f"{name}/{id}")
            return
        if old is not None:
            if (old["accepted_ms"], new["ttl"] > old["ttl"]) != (new["accepted_ms"], True):
                raise Broken(f"P4: the signal {name}/{id} of {key.pk} was written over")
            self.data(new)
        chronicle.accepted[name, id] = new["accepted_ms"]
        chronicle.stamps[name, id] = new[TOKEN]
        chronicle.put_by.setdefault(new[TOKEN], process)

    def _signal_deleted(self, chronicle: Chronicle, old: Item, process: str, signal: str) -> None:
        head = self._runs.own_row(chronicle)
        if process != TTL_SWEEPER and head is not None and head.status not in ENDED:
            raise Broken(f"P1: {process} deleted the signal {signal} of {head.key.id}")
        chronicle.deleted |= {old[TOKEN], old["SK"]}
        if head is not None and head.freed:
            self._seen["taken back out of a freed run"] += 1

    def _check_not_needed(
        self, chronicle: Chronicle, key: Key, *, taken: tuple[str, str] | None = None
    ) -> None:
        """What vanishes by its ttl is nothing that an open run needs."""
        head, execution = self._runs.own_row(chronicle), chronicle.execution
        if head is None or head.status in ENDED or head.ttl * 1000 <= self._world.now_ms():
            return
        if taken is None:
            needed = journal_position(key.sk) >= head.snapshot
        else:
            needed = execution is not None and taken not in execution.taken
        if needed:
            raise Broken(f"P1: {key.sk} of {head.key.id} has vanished, which is {head.status}")

    def record(
        self, key: Key, old: Item | None, new: Item | None, process: str, now_ms: int
    ) -> None:
        """Check a write into a journal."""
        generation, position = key.sk.split("#")[1], journal_position(key.sk)
        chronicle = self._runs.of(key.pk, generation)
        where = f"record {position} of {chronicle.key.id}"
        if new is None:
            self._removed(chronicle, key, old, process, where)
            return
        if is_emptied(new):
            self._emptied(chronicle, old, process, where)
            return
        if old is not None or position in chronicle.written:
            raise Broken(f"P2: {process} wrote {where} a second time")
        chronicle.written[position] = new[TOKEN]
        chronicle.moved_ms = now_ms
        if position == INPUT:
            return
        if position != chronicle.position:
            raise Broken(f"P2: {process} wrote {where}, where {chronicle.position} comes next")
        chronicle.position += 1
        if chronicle.execution is None:
            chronicle.early.append((new, process))
        else:
            self.take_in(chronicle, position, new, process)

    def take_in(self, chronicle: Chronicle, position: int, record: Item, process: str) -> None:
        """Fold one more record, and check that it follows from what stands before it."""
        where = f"record {position} of {chronicle.key.id}"
        if chronicle.execution is not None and record["ttl"] < chronicle.execution.ttl:
            raise Broken(f"P1: {process} wrote {where}, which is gone before what it follows")
        events = unpack_events(self.data(record))
        self._once.put(events)
        for number, event in enumerate(events):
            what = _Deed(process, event, where)
            if isinstance(event, Snapshot):
                self._check_snapshot(chronicle, event, number, what)
                chronicle.snapshots.add(position)
                continue
            check_blame(event, what)
            self._check_event(chronicle, event, record["epoch"], what)
            self._choices.recorded(
                chronicle,
                event,
                what,
                epoch=record["epoch"],
                beside=_beside(chronicle, event),
            )
            self._once.recorded(chronicle, event, what)
            for hear in self.heard:
                hear(chronicle, event, what)
            self._fold(chronicle, event)

    def _fold(self, chronicle: Chronicle, event: Event) -> None:
        before = chronicle.execution
        assert before is not None
        execution = chronicle.execution = folded(before, [event])
        if isinstance(event, Fenced):
            chronicle.fence = event.epoch
        if execution.ending is not None:
            chronicle.over = True
            self._seen["ended in branches"] += bool(execution.branches)
        if isinstance(event, BranchFailed):
            self._seen["branch failed"] += 1
        if isinstance(event, SignalTaken | TimerFired | AttemptFailed) and event.branch:
            self._seen[f"{type(event).__name__} in a branch"] += 1
        if execution.branches.keys() != before.branches.keys():
            new = execution.branches.keys() - before.branches.keys()
            chronicle.branches |= new
            self._seen["forked"] += bool(new)
            self._seen["forked in a branch"] += any("/" in path for path in new)
            self._seen["joined"] += not new and execution.ending is None

    def _check_snapshot(
        self, chronicle: Chronicle, event: Snapshot, number: int, what: object
    ) -> None:
        assert chronicle.execution is not None
        if number:
            raise Broken(f"P1: {what}, behind other events")
        truly = snapshot(chronicle.execution, event.at_ms, size=event.size, blobs=event.blobs)
        if restored(event) != restored(truly):
            raise Broken(f"P1: {what}, and what came before it folds to {chronicle.execution}")
        self._seen["snapshot"] += 1
        self._seen["snapshot of branches"] += bool(chronicle.execution.branches)
        self._seen["snapshot of taken signals"] += bool(chronicle.execution.taken)
        self._seen["snapshot of calls"] += any(
            strand.calls for _, strand in chronicle.execution.runnable_strands()
        )

    def _check_event(self, chronicle: Chronicle, event: Event, epoch: int, what: object) -> None:
        execution = chronicle.execution
        assert execution is not None
        head = self._runs.own_row(chronicle)
        if isinstance(event, Fenced):
            if event.epoch <= chronicle.fence:
                raise Broken(f"P2: {what}, after the fence of epoch {chronicle.fence}")
            if head is None or head.epoch < event.epoch:
                raise Broken(f"P2: {what}, before the row says so")
            if execution.ending is not None and head.retry is None:
                raise Broken(f"P2: {what}, after the run was {execution.ending}")
            return
        if isinstance(event, Rerouted) and event.reason == "retried":
            return
        if isinstance(event, Extended) and execution.ending == "failed":
            return  # so that it can be retried
        if execution.ending is not None:
            raise Broken(f"P2: {what}, after the run was {execution.ending}")
        if isinstance(event, Cancelled | Extended):
            return  # anybody may, at the next position
        if epoch < chronicle.fence:
            raise Broken(f"P2: {what}, in epoch {epoch}, behind the fence of {chronicle.fence}")
        if epoch < chronicle.performed:
            raise Broken(f"P2: {what}, in epoch {epoch}, when {chronicle.performed} was at work")
        if head is None or (head.epoch > epoch and not head.needs_fence):
            raise Broken(f"P2: {what}, in epoch {epoch}, after it had let go of the run")
        self._check_branch(execution, event, what)
        if isinstance(event, SignalSetAside):
            self._check_set_aside(chronicle, event, what)
        if isinstance(event, SignalTaken):
            if event.id.endswith(MISFIT):
                raise Broken(f"P1: {what}, which does not fit")
            self._check_taken(chronicle, event, epoch, what)
            self._family.taken(chronicle, event, what)
            late = chronicle.accepted[event.name, event.id] >= head.expires_ms
            if late and not _is_review_at_expiry(event):
                raise Broken(f"P7: {what}, which was accepted after the run had expired")
        if isinstance(event, TimerFired):
            self._check_timed_out(execution, event, head, what)
        if isinstance(event, Expired):
            self.check_expiry(chronicle, head, what)

    def _check_branch(self, execution: Execution, event: Event, what: object) -> None:
        """What happens in a branch happens where the branch stands."""
        match event:
            case (
                NodeFinished()
                | AttemptFailed()
                | SignalTaken()
                | SignalSetAside()
                | TimerFired()
                | ChildStarted()
                | CallFinished()
                | CallIntended()
                | CallVoided()
                | CallRetried()
                | CallReserved()
            ):
                strand = execution.strand(event.branch)
                if strand is None or (event.node, event.visit) != (strand.node, strand.visit):
                    raise Broken(f"P2: {what}, where the branch is {strand}")
                if strand.fork is not None or (isinstance(strand, Branch) and strand.over):
                    raise Broken(f"P2: {what}, where the branch does not stand at a node")
                if isinstance(event, SignalTaken | TimerFired) and event.wait in strand.answers:
                    raise Broken(f"P4: {what}, which was answered before")
            case BranchFailed():
                branch = execution.branches.get(event.branch)
                if branch is None or branch.over:
                    raise Broken(f"P2: {what}, where the branch is {branch}")
            case WaitsRecorded():
                if not all(is_open_wait(wait, execution) for wait in event.waits):
                    raise Broken(f"P2: {what}, and some of that is over")
            case Finished():
                if execution.branches:
                    raise Broken(f"P2: {what}, and some branches are not over")
            case _:
                pass

    def _check_set_aside(self, chronicle: Chronicle, event: SignalSetAside, what: object) -> None:
        """Only what does not fit is set aside, and only once."""
        assert chronicle.execution is not None
        signal = (event.name, event.id)
        if signal in chronicle.execution.taken:
            raise Broken(f"P4: {what}, which was taken or set aside before")
        if signal not in chronicle.accepted:
            raise Broken(f"P4: {what}, which nobody sent")
        if not event.id.endswith(MISFIT):
            raise Broken(f"P1: {what}, which fits")
        self._seen["set aside"] += 1

    def _check_taken(
        self, chronicle: Chronicle, event: SignalTaken, epoch: int, what: object
    ) -> None:
        assert chronicle.execution is not None
        taken, accepted = chronicle.execution.taken, chronicle.accepted
        if (event.name, event.id) in taken:
            raise Broken(f"P4: {what}, which was taken before")
        if (event.name, event.id) not in accepted:
            raise Broken(f"P4: {what}, which nobody sent")
        stamps, names = chronicle.stamps, self._choices.names_of(chronicle, event)
        earlier = [
            id
            for name, id in chronicle.seen.get(epoch, set()) - taken
            if name in names
            and accepted[name, id] <= accepted[event.name, event.id]
            and stamps[name, id] < stamps[event.name, event.id]
        ]
        beside = _beside(chronicle, event)
        if len(earlier) > beside:
            raise Broken(f"P4: {what}, and {earlier} came before it")
        untimely = self._senders.check_order(chronicle, event, names, beside=beside)
        if untimely is not None:
            raise Broken(f"P4: {what}, and {untimely}")

    def check_expiry(self, chronicle: Chronicle, head: Head, what: object) -> None:
        """Check that a run expired in time, and held no signal that counts."""
        assert chronicle.execution is not None
        if self._world.now_ms() + self._skew_ms < head.expires_ms:
            raise Broken(f"P7: {what}, before its time")
        signals = self.untaken(chronicle, head)
        if head.waits:
            chronicle.waits = head.waits
        for wait in self.all_waits(chronicle.execution, chronicle.waits):
            answer = resolved_wait(
                wait,
                signals,
                chronicle.execution.taken,
                head.expires_ms,
                expires_ms=head.expires_ms,
            )
            if isinstance(answer, TakeSignal):
                raise Broken(f"P7: {what}, though a signal was accepted in time")
            if _times_out_at_the_expiry(wait, head):
                raise Broken(f"P7: {what}, though the wait {wait.key} times out at the expiry")

    def _check_timed_out(
        self, execution: Execution, event: TimerFired, head: Head, what: object
    ) -> None:
        """Check that a wait ended at its deadline, or at the expiry of a run that was closed."""
        for wait in self.all_waits(execution, head.waits):
            if (wait.branch, wait.visit, wait.key) != (event.branch, event.visit, event.wait):
                continue
            if wait.deadline_ms is None or event.at_ms >= wait.deadline_ms:
                continue
            # A sleep is never shortened. The timer of several conditions wins at the expiry.
            is_sleep = wait.signal is None and not is_group_key(wait.key)
            if is_sleep or event.at_ms < head.expires_ms:
                raise Broken(f"P7: {what}, before its time")
            if head.status != "closing":
                raise Broken(f"P7: {what}, while the run is {head.status}")
            self._seen["timed out at the expiry"] += 1

    def untaken(self, chronicle: Chronicle, head: Head) -> list[InboxSignal]:
        """Return the signals that count, and were not taken yet."""
        assert chronicle.execution is not None
        return [
            InboxSignal(name, id, chronicle.accepted[name, id])
            for name, id in sorted(chronicle.acknowledged - chronicle.execution.taken)
            if chronicle.accepted[name, id] < head.expires_ms
        ]

    def all_waits(self, execution: Execution, waits: Iterable[Wait]) -> list[Wait]:
        """Return what a run waits for: what its row says, and what only its journal does."""
        journalled = [wait for _, strand in execution.runnable_strands() for wait in strand.waits]
        return [
            wait
            for wait in (*waits, *journalled)
            if is_open_wait(wait, execution) and not self._once.is_moot(wait, execution)
        ]

    def _removed(
        self, chronicle: Chronicle, key: Key, old: Item | None, process: str, where: str
    ) -> None:
        if old is None:
            return
        chronicle.deleted.add(old[TOKEN])
        if process == TTL_SWEEPER:
            self._check_not_needed(chronicle, key)
            return
        head = self._runs.own_row(chronicle)
        if head is not None and head.status not in ENDED:
            raise Broken(f"P1: {process} deleted {where} of a run that is {head.status}")
        raise Broken(f"P2: {process} deleted {where}, whose place keeps late writes out")

    def _emptied(self, chronicle: Chronicle, old: Item | None, process: str, where: str) -> None:
        head = self._runs.own_row(chronicle)
        if head is not None and head.status not in ENDED:
            raise Broken(f"P1: {process} emptied {where} of a run that is {head.status}")
        if old is not None and old.get("stays") == "whole":
            raise Broken(f"P2: {process} emptied {where}, which stays whole")
        self._seen["emptied"] += 1

    def data(self, item: Item) -> bytes:
        """Return what a record or a signal holds, wherever that lies."""
        content = content_of(item)
        if content.blob is None:
            assert content.data is not None
            return content.data
        found: Any = self._world.blobs.read(content.blob.key, content.blob.size)
        if found is None or found.data is None:
            raise Broken(f"P1: {item['SK']} names the blob {content.blob.key}, which is not there")
        return found.data


def _beside(chronicle: Chronicle, event: Event) -> int:
    """Return how many branches beside that of an event may be about to take a signal."""
    if not isinstance(event, SignalTaken | TimerFired) or chronicle.execution is None:
        return 0
    paths = [path for path, _ in chronicle.execution.runnable_strands()]
    return sum(path != event.branch for path in paths)


def _is_review_at_expiry(event: SignalTaken) -> bool:
    """Return whether the owner itself decided a review, at its expiry: see `decided`.

    It has expired, or votes that were cast in time decide it.
    """
    if not isinstance(signal_kind(event.name), ReviewWait):
        return False
    return event.payload["status"] == "expired" or bool(event.payload.get("votes"))


def _times_out_at_the_expiry(wait: Wait, head: Head) -> bool:
    """Return whether a wait ends at the expiry of its run at the latest, and its node acts then."""
    stale = wait.stale_ms is not None and wait.stale_ms < head.expires_ms
    return (
        wait.signal is not None
        and wait.deadline_ms is not None
        and wait.since_ms < head.expires_ms
        and not stale
    )
