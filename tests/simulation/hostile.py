"""What stands between a process and the truth: latency, and everything that a network can do.

A request is sent; it is carried out at some moment in between (in the world's name: a process that
crashed meanwhile does not call it back); its answer is delivered (in the process' name: to one that
stalls, later; to one that crashed, never).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from holdfast.errors import (
    ConditionFailed,
    EndpointUnreachable,
    HoldfastError,
    OutcomeUnknown,
    StoreClosed,
    Throttled,
    TransactionCancelled,
)
from holdfast.storage.item import Item
from holdfast.storage.layout import TOKEN, Layout
from holdfast.storage.operations import (
    ChangePage,
    GetItems,
    Operation,
    QueryItems,
    ReadOperation,
    Reply,
    TransactItems,
    WriteItem,
    WriteItems,
    WriteOperation,
)
from holdfast.storage.ranges import Prefix
from holdfast.storage.units import NO_UNITS, cancelled_units
from holdfast.storage.writes import Put, Update, Write
from tests.simulation.faults import drawn
from tests.simulation.trace import described
from tests.simulation.truth import fresh

if TYPE_CHECKING:
    from tests.simulation.process import Process

__all__ = ["HostileEngine"]

# Whether a read sees what stands when it is sent, or when it is answered.
_SEEN_AT_ONCE = 0.5
# Which part of a batch is written before it fails.
_WRITTEN_OF_BATCH: dict[str | None, float] = {
    "throttled": 0.5,
    "unreachable": 0.5,
    "unapplied_unknown": 0,
}

# Past a lease: another worker does it, and the run may be retried.
_OWING_STALL_SECONDS = 25.0


class HostileEngine:
    """The table as one process sees it. Implements `holdfast.storage.operations.Engine`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._closed = False
        self.layout: Layout = self._world.truth.layout
        self.poll_seconds = 0.9

    def perform(self, operation: Operation) -> Awaitable[Reply]:
        process, world = self._process, self._world
        if self._closed:
            raise StoreClosed("the table was used after it was closed")
        future = process.promise()
        if process.crashed or world.over:
            return future
        world.operations[type(operation).__name__] += 1
        world.trace.extend((world.loop.now, process.name, "asks", operation))
        latency = world.draw_latency(process)
        process.run_risk(latency)
        if world.watch is not None:
            world.watch.sends(process, operation)
        if world.outages.windows and (kind := world.outages.error("table", process)) is not None:
            error = _error(kind, operation)
            self._deliver_at(world.loop.time() + latency, future, operation, error, "table_outage")
            return future
        if self._stalls_before(operation):
            # Asked when it goes on, and answered before its timers tell it how late it is.
            context = process.context
            world.loop.call_at(world.loop.now, self._see, operation, future, context=context)
        else:
            self._send(operation, future, latency)
        return future

    def _send(self, operation: Operation, future: Future[Reply], latency: float) -> None:
        if type(operation) is QueryItems:  # most of what is asked: workers look for what is due
            self._send_read(operation, future, latency)
            return
        process, world = self._process, self._world
        match operation:
            case WriteItem() | TransactItems():
                if world.plan.slow_signal and (signal := _signal_in(operation)) is not None:
                    latency += world.draw_signal_delay(process, signal.key.pk)
                self._send_write(operation, future, latency)
            case WriteItems():
                self._send_batch(operation, future, latency)
            case _:
                self._send_read(operation, future, latency)

    async def read_changes(self, after: str | None, limit: int) -> ChangePage:
        process, world = self._process, self._world
        if self._closed:
            raise StoreClosed("the table was used after it was closed")
        if not process.silent:
            world.operations["changes"] += 1
        await process.clock.sleep(world.draw_latency(process))
        fault = drawn(world.plan.reads, world.random.random())
        if fault is not None:
            world.note(process, fault, "changes", count=True)
            error = Throttled if fault == "throttled" else EndpointUnreachable
            raise error("changes: simulated")
        return world.read_changes(after, limit)

    async def create(self) -> None: ...

    async def close(self) -> None:
        self._closed = True

    # --- reads ------------------------------------------------------------------------------------

    def _send_read(self, operation: ReadOperation, future: Future[Reply], latency: float) -> None:
        world, random = self._world, self._world.random.random
        moment = world.loop.now + latency
        fault = drawn(world.plan.reads, random())
        if fault is not None:
            error = Throttled if fault == "throttled" else EndpointUnreachable
            self._deliver_at(moment, future, operation, _error(error, operation), fault)
        elif random() < _SEEN_AT_ONCE:
            self._deliver_at(moment, future, operation, world.read(self._process, operation))
        else:
            world.loop.call_at(moment, self._see, operation, future, context=self._process.context)

    def _see(self, operation: ReadOperation, future: Future[Reply]) -> None:
        if not future.done():
            answer = self._world.read(self._process, operation)
            self._deliver(future, operation, answer)

    # --- writes -----------------------------------------------------------------------------------

    def _stalls_before(self, operation: Operation) -> bool:
        """Let the process stand still before it does what a run owes, or not."""
        world, process, kind = self._world, self._process, ""
        if type(operation) is GetItems and operation.keys[-1].sk.startswith("GRANT#"):
            grant = world.truth.item(operation.keys[-1])
            kind = "settle_stall" if grant is not None and not grant.get("closed") else ""
        elif type(operation) is QueryItems and operation.index is None:
            kind = "family_stall" if _lists_children(operation) else ""
        rate = getattr(world.plan, kind) if kind else 0
        if not rate or process.silent or world.random.random() >= rate:
            return False
        world.note(process, kind, operation, count=True)
        process.stall(_OWING_STALL_SECONDS * (1 + world.random.random()))
        return True

    def _send_write(
        self, operation: WriteItem | TransactItems, future: Future[Reply], latency: float
    ) -> None:
        self._world.tell_sent(self._process, operation)
        world = self._world
        sent = world.loop.now
        answered = sent + latency
        plan = world.plan
        if isinstance(operation, TransactItems):
            odds = plan.transactions
        else:
            odds = plan.adding_writes if _adds(operation.write) else plan.writes
        fault = drawn(odds, world.random.random())
        match fault:
            case None | "lost_answer" | "duplicate_write":
                moment = sent + latency * world.random.random()
                self._carry_out_at(moment, operation, future, answered, fault)
                if fault == "duplicate_write":
                    self._repeat_later(operation, answered, fault)
            case "late_write":
                self._repeat_later(operation, answered, fault)
                if plan.abandoned and world.random.random() < plan.abandoned:
                    world.note(self._process, "abandoned", operation, count=True)
                    world.at(answered, self._process.crash)
                self._deliver_at(answered, future, operation, _unknown(operation), None)
            case "unapplied_unknown":
                self._deliver_at(answered, future, operation, _unknown(operation), fault)
            case "cancelled_transaction":
                assert isinstance(operation, TransactItems)
                answer = _cancelled(operation)
                self._deliver_at(answered, future, operation, answer, fault)
            case _:
                error = Throttled if fault == "throttled" else EndpointUnreachable
                self._deliver_at(answered, future, operation, _error(error, operation), fault)

    def _carry_out_at(
        self,
        moment: float,
        operation: WriteItem | TransactItems,
        future: Future[Reply],
        answered: float,
        fault: str | None,
    ) -> None:
        flight = self._world.serial()
        self._process.in_flight[flight] = self._world.at(
            moment, self._carry_out, flight, operation, future, answered, fault
        )

    def _carry_out(
        self,
        flight: int,
        operation: WriteItem | TransactItems,
        future: Future[Reply],
        answered: float,
        fault: str | None,
    ) -> None:
        process, world = self._process, self._world
        process.in_flight.pop(flight, None)
        answer = world.apply(process, operation)
        if fault == "lost_answer":
            world.loop.call_at(
                answered, self._lose, future, operation, answer, context=process.context
            )
        else:
            self._deliver_at(answered, future, operation, answer)

    def _repeat_later(self, operation: WriteOperation, since: float, fault: str) -> None:
        """Carry a write out at some later time, whatever has become of its sender."""
        world = self._world
        moment = since + world.random.random() * world.plan.late_seconds_max
        world.at(moment, self._repeat, operation, fault)

    def _repeat(self, operation: WriteOperation, fault: str) -> None:
        answer = self._world.apply(self._process, operation)
        taken = fault if answer.error is None else f"{fault}_refused"
        self._world.note(self._process, taken, operation, count=True)

    # --- lost answers, as holdfast.storage.dynamodb.writer reports them ---------------------------

    def _lose(
        self, future: Future[Reply], operation: WriteItem | TransactItems, answer: Reply
    ) -> None:
        if future.done():
            return
        world = self._world
        reported: Reply | HoldfastError = _unknown(operation)
        if world.random.random() < world.plan.settled:
            reported = self._settled(operation, answer)
        lost = isinstance(reported, HoldfastError) or reported.error is not None
        kind = "lost_answer" if lost else "lost_answer_settled"
        self._deliver(future, operation, reported, kind)

    def _settled(self, operation: WriteItem | TransactItems, first: Reply) -> Reply:
        """Return what the engine learns when it asks again."""
        if isinstance(operation, TransactItems):
            # By its client token the service tells that it was carried out, and does not do it
            # twice. A refusal may be one of a repetition.
            return first if first.error is None else Reply(error=_outcome_unknown(operation))
        write = operation.write
        if _adds(write):
            standing = fresh(self._world.item(write.key))
        else:
            again = self._world.apply(self._process, operation)
            if not isinstance(again.error, ConditionFailed):
                lost = operation.returning == "old" and again.error is None
                return Reply(error=_outcome_unknown(operation)) if lost else again
            standing = None if again.error.item is None else dict(again.error.item)
        if standing is None or not _is_ours(write, standing):
            return Reply(error=_outcome_unknown(operation, standing))
        match operation.returning:
            case "old":
                return Reply(error=_outcome_unknown(operation, standing))
            case "new":
                return Reply(standing)
            case "nothing":
                return Reply()

    # --- batches ----------------------------------------------------------------------------------

    def _send_batch(self, batch: WriteItems, future: Future[Reply], latency: float) -> None:
        """Carry out each write for itself: a batch is not a transaction."""
        process, world = self._process, self._world
        sent = world.loop.now
        fault = drawn(world.plan.adding_writes, world.random.random())
        spent: list[Reply] = []

        def carry_out(flight: int, part: WriteItems) -> None:
            process.in_flight.pop(flight, None)
            spent.append(world.apply(process, part))

        def deliver() -> None:
            units = sum((answer.units for answer in spent), start=NO_UNITS)
            if fault is None:
                self._deliver(future, batch, Reply(units=units))
                return
            error = _error(Throttled if fault == "throttled" else EndpointUnreachable, batch)
            known = None if fault == "late_write" else fault
            self._deliver(future, batch, Reply(units=units, error=error) if spent else error, known)

        for write in batch.writes:
            part = WriteItems((write,))
            if fault == "late_write":
                self._repeat_later(part, sent + latency, fault)
            elif world.random.random() < _WRITTEN_OF_BATCH.get(fault, 1):
                flight = world.serial()
                moment = sent + latency * world.random.random()
                process.in_flight[flight] = world.at(moment, carry_out, flight, part)
        world.loop.call_at(sent + latency, deliver, context=process.context)

    # --- answers ----------------------------------------------------------------------------------

    def _deliver_at(
        self,
        moment: float,
        future: Future[Reply],
        operation: Operation,
        answer: Reply | HoldfastError,
        fault: str | None = None,
    ) -> None:
        self._world.loop.call_at(
            moment, self._deliver, future, operation, answer, fault, context=self._process.context
        )

    def _deliver(
        self,
        future: Future[Reply],
        operation: Operation,
        answer: Reply | HoldfastError,
        fault: str | None = None,
    ) -> None:
        if future.done():  # whoever asked was cancelled
            return
        world, process = self._world, self._process
        if fault is not None:
            world.note(process, fault, operation, count=True)
        if isinstance(answer, HoldfastError):
            world.note(process, f"gets {type(answer).__name__}", operation)
            future.set_exception(answer)
        else:
            error = answer.error
            what = "gets" if error is None else f"gets {type(error).__name__}"
            world.trace.extend((world.loop.now, process.name, what, operation))
            future.set_result(answer)


def _lists_children(operation: QueryItems) -> bool:
    return isinstance(operation.range, Prefix) and operation.range.sk.startswith("CHILD#")


def _adds(write: Write) -> bool:
    return isinstance(write, Update) and bool(write.add)


def _is_ours(write: Write, standing: Item) -> bool:
    token = write.token if isinstance(write, Put | Update) else None
    return token is not None and standing.get(TOKEN) == token


def _unknown(operation: WriteItem | TransactItems) -> Reply | HoldfastError:
    """Return what a caller learns who is not to know whether the write was carried out."""
    if isinstance(operation, WriteItem):
        write = operation.write
        if write.condition is None and not _adds(write):
            return _error(EndpointUnreachable, operation)
    return Reply(error=_outcome_unknown(operation))


def _signal_in(operation: WriteOperation) -> Put | None:
    """Return the write by which an operation puts a signal into an inbox, if it does only that."""
    write = operation.write if isinstance(operation, WriteItem) else None
    return write if isinstance(write, Put) and "#IN#" in write.key.sk else None


def _outcome_unknown(operation: Operation, item: Item | None = None) -> OutcomeUnknown:
    return OutcomeUnknown(f"{described(operation)}: the answer was lost", item=item)


def _error(kind: type[HoldfastError], operation: Operation) -> HoldfastError:
    return kind(f"{described(operation)}: simulated")


def _cancelled(operation: TransactItems) -> Reply:
    return Reply(
        units=cancelled_units(operation.writes, {}),
        error=TransactionCancelled(f"{described(operation)}: in conflict with another"),
    )
