"""Checked after every write: no child without its parent, none that is not told of, none twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.model.child import child_id_of, child_signal
from holdfast.model.event import SignalTaken
from holdfast.model.execution import Execution
from holdfast.model.map import NO_LANE
from holdfast.records.head import ENDED, OPEN, TROUBLED, Head
from holdfast.records.keys import RunKey, child_key
from tests.simulation.chronicle import Broken, Chronicle, Chronicles

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Family"]


class Family:
    """Watches runs that start others."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str], *, skew_ms: int) -> None:
        self._world = world
        self._skew_ms = skew_ms
        self._runs = runs
        self._seen = seen
        self._children: dict[tuple[str, str], dict[str, None]] = {}
        """What stands under a run and its generation: the ids that its partition names."""
        self._holders: dict[tuple[str, str], str] = {}
        """Which process holds a run and its generation."""
        self._vain: dict[tuple[str, str], dict[str, str]] = {}
        """Those of the ids that came since the run was last claimed, and from a process that does
        not hold it; and which one. After that write the process looks at the row, and finds that
        the epoch has changed: it makes no such child. Another owner may, and so must see the id.
        """

    def named(self, pk: str, generation: str, id: str, *, process: str) -> None:
        """Hear that a run's partition names a child, and which process wrote that."""
        run = (pk, generation)
        self._children.setdefault(run, {})[id] = None
        if self._holders.get(run) != process:
            self._seen["named by an owner that lost the run"] += 1
            self._vain.setdefault(run, {})[id] = process

    def row(self, before: Head | None, head: Head, *, process: str) -> None:
        """Check a row that was written, and hear which process wrote it."""
        self._note_holder(before, head, process)
        if before is None and head.parent is not None:
            self._born(head, process)
        if head.status in ENDED and not self._runs.is_seen_to(head) and self.owes(head):
            raise Broken(
                f"{head.key.id} is {head.status}, and nobody will see to what it owes to "
                f"{head.parent} and to its children {self._unsettled(head)}"
            )
        if head.parent is not None and head.cancel and (before is None or not before.cancel):
            self._seen["cancelled with its parent"] += head.cancel.startswith("the run that")

    def _note_holder(self, before: Head | None, head: Head, process: str) -> None:
        run = (head.key.pk, head.generation)
        if head.owner is None:
            self._holders.pop(run, None)
        elif before is None or (before.owner, before.epoch) != (head.owner, head.epoch):
            self._holders[run] = process
            self._vain.pop(run, None)

    def _born(self, head: Head, process: str) -> None:
        assert head.parent is not None
        if head.chunk is not None:
            return  # see `fanout`
        parent = RunKey(head.key.tenant, head.parent.id)
        if head.status in ENDED:
            self._seen["cancelled before it was made"] += 1
            return
        self._seen["child"] += 1
        self._seen["grandchild"] += head.parent.id.startswith("run-") and "." in head.parent.id
        named = child_key(parent, head.parent.generation, head.key.id)
        if self._world.truth.item(named) is None:
            raise Broken(f"{head.key.id} was made before its parent's partition names it")
        row = self._runs.row(parent)
        gone = row is None or row.generation != head.parent.generation
        if gone or (row is not None and row.status in ENDED and not self._runs.is_seen_to(row)):
            raise Broken(f"{head.key.id} is an orphan: its parent is {row and row.status}")
        if self._vain.get((parent.pk, head.parent.generation), {}).get(head.key.id) == process:
            raise Broken(f"{process} made {head.key.id}, and named it when it had lost the parent")

    def owes(self, head: Head) -> bool:
        """Return whether a run that has ended owes something to its family."""
        return self._is_untold(head) or bool(self._unsettled(head))

    def _is_untold(self, head: Head) -> bool:
        """Return whether the parent of a run goes on, and has not been told of its end."""
        if head.parent is None or head.chunk is not None:
            return False
        chronicle = self._runs.of(
            RunKey(head.key.tenant, head.parent.id).pk, head.parent.generation
        )
        parent = self._runs.own_row(chronicle)
        if parent is None or parent.status not in OPEN or chronicle.over:
            return False  # one that failed, and was retried, asks
        if parent.expires_ms <= self._world.now_ms() + self._skew_ms:
            return False  # it may take nothing any more
        return not any(name == child_signal(head.key.id) for name, _ in chronicle.accepted)

    def _unsettled(self, head: Head) -> list[str]:
        """Return the children that go on, or may yet be made, though nobody has told them."""
        if head.expires_ms + self._skew_ms < self._world.now_ms():
            return []  # they have expired as well, and their rows may be gone
        found: list[str] = []
        run = (head.key.pk, head.generation)
        for id in self._children.get(run, ()):
            row = self._runs.row(RunKey(head.key.tenant, id))
            if row is None:
                if id not in self._vain.get(run, ()):
                    found.append(id)
            elif row.parent is not None and row.parent.generation == head.generation:
                chronicle = self._runs.of_row(row)
                ending = chronicle.execution is not None and chronicle.execution.ending
                # One that is past its expiry ends by itself.
                late = row.expires_ms <= self._world.now_ms() + self._skew_ms
                retried = row.retry is not None or _was_retried(chronicle.execution)
                going = row.status not in ENDED and row.cancel is None and not ending
                if going and not late and not retried:
                    found.append(id)
        return found

    def taken(self, chronicle: Chronicle, event: SignalTaken, what: object) -> None:
        """Check that what a parent hears of its child is true."""
        child = child_id_of(event.name)
        if not child:
            return
        self._seen["child heard of"] += 1
        self._seen[f"child {event.payload['status']}"] += 1
        row = self._runs.row(RunKey(chronicle.key.tenant, child))
        if row is None or row.parent is None or row.parent.generation != chronicle.generation:
            raise Broken(f"{what}, which is no child of it")
        execution = self._runs.of_row(row).execution
        if event.payload["status"] in TROUBLED and (row.retry or _was_retried(execution)):
            return  # it had failed before it was retried
        ending = row.status if execution is None else execution.ending or row.status
        if event.payload["status"] != ending:
            raise Broken(f"{what}, which is {ending}")
        if ending == "finished" and execution and event.payload["state"] != execution.state:
            raise Broken(f"{what}, whose state is {execution.state}")

    def is_orphan(self, head: Head) -> bool:
        """Return whether a run goes on whose parent does not."""
        if head.parent is None or head.status in ENDED or head.retry is not None:
            return False
        if head.chunk is not None and head.chunk.lane == NO_LANE:
            return False  # whoever retries an item wants it
        if _was_retried(self._runs.of_row(head).execution):
            return False  # whoever retries a run wants it, whatever became of its parent
        row = self._runs.row(RunKey(head.key.tenant, head.parent.id))
        return row is None or row.generation != head.parent.generation or row.status in ENDED


def _was_retried(execution: Execution | None) -> bool:
    return execution is not None and bool(execution.retried)
