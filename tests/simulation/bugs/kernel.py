"""Bugs to plant in how runs are started, driven, handed over and freed: any fleet finds them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from holdfast.clock import Ids
from holdfast.engine.execution import driver, external_effects, inbox, run_ending, run_exit
from holdfast.engine.journal import in_memory, reader, writer
from holdfast.engine.kernel import kernel
from holdfast.engine.runs import (
    children,
    extension,
    obligations,
    removal,
    session_entry,
    session_queue,
    signalling,
    starting,
)
from holdfast.engine.worker import claims, heartbeat, lease
from holdfast.errors import (
    ConditionFailed,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionCancelled,
)
from holdfast.model.event import Event, Fenced, Snapshot
from holdfast.model.execution import Execution
from holdfast.model.signals import Signal
from holdfast.records import owner_writes, run_conditions, run_writes
from holdfast.records.child import child_write
from holdfast.records.codec import pack
from holdfast.records.head import Head, head_of
from holdfast.records.index_keys import IndexKey
from holdfast.records.journal import Content, record_write
from holdfast.records.keys import RunKey, is_record, journal_key
from holdfast.records.session_queue import SessionQueue
from holdfast.storage import AllOf, Delete, Equals, Key, Present, Put, Update
from tests.simulation.bugs.planting import bug

# What a lost owner sent seldom arrives only after its run has ended, or was freed.
_LATE = {"late_write": 0.06, "late_seconds_max": 100.0}


@bug()
def skip_the_fence(patch: pytest.MonkeyPatch) -> None:
    def untorn(item: Any) -> Head:
        return msgspec.structs.replace(head_of(item), needs_fence=False)

    patch.setattr(claims, "head_of", untorn)


@bug()
def fence_before_head(patch: pytest.MonkeyPatch) -> None:
    taken = claims.Claims._write_claim

    async def fence_first(self: Any, place: IndexKey, run: RunKey, epoch: int) -> Head | None:
        item = await self._kernel.heads.get(run.head)
        if item is not None and item.get("torn"):
            head = head_of(item)
            loaded = await reader.load_run(self._kernel, head)
            put = record_write(
                msgspec.structs.replace(head, epoch=epoch + 1),
                loaded.extent.position,
                Content(pack([Fenced(0, epoch + 1, self._owner.id)])),
                token=self._kernel.ids.new(),
                whole=True,
            )
            try:
                await self._kernel.resolve_write(self._kernel.journals, put)
            except ConditionFailed:
                return None
        head = await taken(self, place, run, epoch)
        return None if head is None else msgspec.structs.replace(head, needs_fence=False)

    patch.setattr(claims.Claims, "_write_claim", fence_first)


@bug()
def no_epoch_check_after_a_stall(patch: pytest.MonkeyPatch) -> None:
    for module in (owner_writes, run_conditions, run_writes):
        patch.setattr(
            module,
            "same_epoch_and_lifetime",
            lambda head: AllOf((Equals("generation", head.generation),)),
        )
    patch.setattr(lease.Lease, "is_valid", lambda self: True)


@bug()
def skip_the_inbox_read_at_the_pause(patch: pytest.MonkeyPatch) -> None:
    paused = owner_writes.pause_write

    def blind(head: Head, execution: Any, **values: Any) -> Update:
        write = paused(head, execution, **values)
        return msgspec.structs.replace(
            write, condition=run_conditions.same_epoch_and_lifetime(head)
        )

    patch.setattr(owner_writes, "pause_write", blind)


@bug()
def no_nudge_on_a_repeated_signal(patch: pytest.MonkeyPatch) -> None:
    class Repeated(Exception):
        pass

    def stop(*arguments: Any) -> None:
        raise Repeated

    send = signalling._send_to_run

    async def once(*arguments: Any, **values: Any) -> IndexKey | None:
        try:
            return await send(*arguments, **values)
        except Repeated:
            return None

    patch.setattr(signalling, "_check_same_signal", stop)
    patch.setattr(signalling, "_send_to_run", once)


@bug()
def acknowledge_before_commit(patch: pytest.MonkeyPatch) -> None:
    append = writer.JournalWriter.append

    async def promise(self: writer.JournalWriter, events: Sequence[Event]) -> None:
        task = asyncio.ensure_future(append(self, events))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    patch.setattr(writer.JournalWriter, "append", promise)


@bug()
def input_after_head(patch: pytest.MonkeyPatch) -> None:
    settle = kernel.Kernel.resolve_write
    late: dict[str, Put] = {}

    async def swapped(self: Any, table: Any, write: Any, **values: Any) -> Any:
        key = write.key
        if isinstance(write, Put) and key.sk.endswith("#00000000"):
            late[key.pk] = write
            return {}
        answer = await settle(self, table, write, **values)
        if key.sk == "HEAD" and isinstance(write, Put) and key.pk in late:
            await settle(self, self.journals, late.pop(key.pk))
        return answer

    patch.setattr(kernel.Kernel, "resolve_write", swapped)


@bug()
def forget_the_generation(patch: pytest.MonkeyPatch) -> None:
    start = starting.start_run

    class Forgetful:
        """Gives every run the same generation."""

        def __init__(self, ids: Ids) -> None:
            self._ids = ids
            self._asked = 0

        def new(self) -> str:
            self._asked += 1
            return "same" if self._asked == 1 else self._ids.new()

        def key(self) -> bytes:
            return self._ids.key()

        def random(self) -> float:
            return self._ids.random()

    async def forgetful(kernel: kernel.Kernel, *arguments: Any, **values: Any) -> Any:
        blind = copy.copy(kernel)
        blind.ids = Forgetful(kernel.ids)
        return await start(blind, *arguments, **values)

    def over_what_stands(*arguments: Any, **values: Any) -> Put:
        return msgspec.structs.replace(record_write(*arguments, **values), condition=None)

    patch.setattr(starting, "start_run", forgetful)
    patch.setattr(starting, "record_write", over_what_stands)


@bug()
def trust_a_stale_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_writes, "at_index_key", lambda place: AllOf((Present("PK"),)))


@bug()
def treat_a_timed_out_write_as_failed(patch: pytest.MonkeyPatch) -> None:
    async def impatient(self: Any, table: Any, write: Any, **values: Any) -> Any:
        try:
            return await table.write(write, returning="new") or {}
        except OutcomeUnknown as error:
            raise StoreUnavailable(str(error)) from error

    patch.setattr(kernel.Kernel, "resolve_write", impatient)


@bug()
def release_before_the_write_is_decided(patch: pytest.MonkeyPatch) -> None:
    """A node's record that is still under way when the run is let go of."""
    commit = driver.Driver._commit

    async def hasty(self: Any, branch: str, outcome: Any, *, alone: bool = True) -> Any:
        try:
            async with asyncio.timeout(0.01):
                return await commit(self, branch, outcome, alone=alone)
        except TimeoutError:
            await self._exit.release("hasty")

    patch.setattr(driver.Driver, "_commit", hasty)


@bug()
def nobody_audits_lost_claims(patch: pytest.MonkeyPatch) -> None:
    """A claim whose answer never came stays with a worker that does not know of it."""
    settle = kernel.Kernel.resolve_write

    async def resigned(self: Any, table: Any, write: Any, **values: Any) -> Any:
        claims = isinstance(write, Update) and "owner" in write.set
        if not claims:
            return await settle(self, table, write, **values)
        try:
            return await table.write(write, returning="new") or {}
        except OutcomeUnknown as error:
            raise ConditionFailed(str(error)) from error

    async def nothing(self: Any) -> None: ...

    patch.setattr(kernel.Kernel, "resolve_write", resigned)
    patch.setattr(heartbeat.Heartbeat, "_requeue_strays", nothing)


@bug(**_LATE)
def free_the_fences(patch: pytest.MonkeyPatch) -> None:
    """An expiry that deletes every record lets a stalled owner back in."""
    patch.setattr(removal, "free_item_write", lambda item: Delete(Key(item["PK"], item["SK"])))


@bug()
def snapshot_without_taken_signals(patch: pytest.MonkeyPatch) -> None:
    snapshot = writer.snapshot

    def forgetful(execution: Execution, at_ms: int, **values: Any) -> Snapshot:
        blank = msgspec.structs.replace(execution, taken=frozenset())
        return snapshot(blank, at_ms, **values)

    patch.setattr(writer, "snapshot", forgetful)


@bug()
def compaction_that_deletes(patch: pytest.MonkeyPatch) -> None:
    """A freed position lets a stalled owner back in."""
    point = writer.JournalWriter._point_to_snapshot

    async def tidy(self: Any, position: int) -> None:
        await point(self, position)
        head = self._head
        for covered in range(1, position):
            key = journal_key(head.key, head.generation, covered)
            await self._kernel.journals.write(Delete(key))

    patch.setattr(writer.JournalWriter, "_point_to_snapshot", tidy)


@bug()
def point_before_the_snapshot_stands(patch: pytest.MonkeyPatch) -> None:
    content = writer.JournalWriter._build_content

    async def hasty(self: Any, *arguments: Any) -> Any:
        made = await content(self, *arguments)
        if made[0]:
            await self._point_to_snapshot(self.extent.position)
        return made

    patch.setattr(writer.JournalWriter, "_build_content", hasty)


@bug()
def records_that_do_not_last_as_long_as_their_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Head, "with_journal_lifetime", lambda self, execution: self)


@bug()
def more_time_before_the_signals_last(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(extension, "extend_signals", nothing)


@bug()
def records_that_stay_with_their_state(patch: pytest.MonkeyPatch) -> None:
    freed = removal.free_item_write
    patch.setattr(
        removal, "free_item_write", lambda item: None if is_record(item["SK"]) else freed(item)
    )


# --- branches -------------------------------------------------------------------------------------


@bug()
def a_signal_that_two_branches_take(patch: pytest.MonkeyPatch) -> None:
    """What one branch is about to take is free for the others until it is written.

    Only a large signal is written at once; here all of them are.
    """
    patch.setattr(writer, "GROUP_BYTES_MAX", 0)

    def careless(self: inbox.Inbox) -> list[Signal]:
        taken = self._journal.execution.taken
        return [signal for signal in self.signals if (signal.name, signal.id) not in taken]

    patch.setattr(inbox.Inbox, "untaken", careless)


@bug()
def a_failure_written_while_others_go_on(patch: pytest.MonkeyPatch) -> None:
    """What ends other branches is written before these have stopped."""
    commit = driver.Driver._commit

    async def at_once(self: Any, branch: str, outcome: Any, *, alone: bool = True) -> Any:
        return await commit(self, branch, outcome)

    patch.setattr(driver.Driver, "_commit", at_once)


# --- sessions -------------------------------------------------------------------------------------


@bug()
def ticket_without_head(patch: pytest.MonkeyPatch) -> None:
    """The ticket and the run in two writes."""

    async def one_by_one(self: Any, table: Any, writes: Sequence[Put | Update]) -> None:
        for number in reversed(range(len(writes))):
            try:
                await self.resolve_write(table, writes[number])
            except ConditionFailed as failed:
                raise TransactionCancelled(
                    str(failed), failed=(number,), items={number: failed.item or {}}
                ) from failed

    patch.setattr(kernel.Kernel, "resolve_transaction", one_by_one)


@bug()
def leave_the_index_before_the_session_is_passed_on(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any, **values: Any) -> None: ...

    patch.setattr(obligations, "leave_queue", nothing)


@bug()
def reuse_a_number(patch: pytest.MonkeyPatch) -> None:
    """A session that is empty counts from the beginning again."""

    def forgetful(queue: SessionQueue) -> int:
        return max((ticket.number for ticket in queue.tickets), default=0) + 1

    patch.setattr(session_entry, "next_ticket_number", forgetful)


@bug()
def begin_without_looking_at_those_before(patch: pytest.MonkeyPatch) -> None:
    async def careless(*arguments: Any) -> bool:
        return False

    patch.setattr(run_exit, "prune_earlier", careless)


@bug()
def tell_nobody_that_it_stands_in_front(patch: pytest.MonkeyPatch) -> None:
    """A run that is queued is not woken, and asks by itself when it is too late."""

    async def nothing(*arguments: Any) -> None: ...

    def never(head: Head, now_ms: int) -> int:
        return head.expires_ms

    patch.setattr(session_queue, "wake_queued", nothing)
    patch.setattr(run_exit, "next_recheck_ms", never)
    patch.setattr(session_entry, "next_recheck_ms", never)


@bug()
def a_place_that_does_not_last_as_long_as_its_run(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(extension, "extend_ticket", nothing)


# --- children -------------------------------------------------------------------------------------


@bug()
def leave_the_index_before_the_parent_is_told(patch: pytest.MonkeyPatch) -> None:
    async def silent(kernel: Any, hands: Any, head: Head, execution: Any) -> None:
        await children._cancel_children(kernel, hands, head)

    patch.setattr(run_ending, "settle_family", silent)


@bug()
def a_childs_head_before_its_item(patch: pytest.MonkeyPatch) -> None:
    async def hasty(
        kernel: Any, hands: Any, parent: Head, wanted: Any, *, retried: str, parenting: Any
    ) -> Head:
        parent = await parenting()
        id = children._id_of(parent, wanted, retried)
        head = await children._create_child(kernel, hands, parent, wanted, id)
        item = child_write(parent, id, graph=wanted.graph.name, token=kernel.ids.new())
        with suppress(ConditionFailed):
            await kernel.resolve_write(kernel.journals, item)
        return head

    patch.setattr(external_effects, "start_child", hasty)


@bug(**_LATE)
def no_cancelled_head_for_a_child_that_is_not_made_yet(patch: pytest.MonkeyPatch) -> None:
    cancel = children._cancel_child

    async def careless(kernel: Any, hands: Any, parent: Head, id: str, graph: str) -> None:
        if await kernel.heads.get(RunKey(parent.key.tenant, id).head) is not None:
            await cancel(kernel, hands, parent, id, graph)

    patch.setattr(children, "_cancel_child", careless)


@bug()
def children_that_outlive_their_parent(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*arguments: Any) -> None: ...

    patch.setattr(children, "_cancel_children", nothing)


# --- runs in memory -------------------------------------------------------------------------------


@bug()
def acknowledge_what_is_only_in_memory(patch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Any) -> None: ...

    patch.setattr(in_memory.InMemoryRun, "wait", hasty)
