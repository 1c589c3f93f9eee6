"""A run while a worker holds it: its row, its journal and its inbox, and who writes into them.

Nothing here decides what becomes of the run. It sees to it that nothing is written once the run is
not ours any more, that no write is cut short, and that what is known follows what stands.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.engine.execution.memory_use import Weight
from holdfast.engine.execution.owner import Holder
from holdfast.engine.execution.waits import Parking
from holdfast.engine.journal.in_memory import Stood
from holdfast.engine.journal.reader import Loaded, read_inbox
from holdfast.engine.journal.signal_payloads import Payloads
from holdfast.engine.journal.writer import Conflict, Journal
from holdfast.engine.kernel.kernel import Dropped, Kernel, Outage
from holdfast.engine.runs.starting import made, with_input
from holdfast.errors import ConditionFailed, InvalidInput, InvalidResult
from holdfast.model.event import CallFinished, Event, SignalTaken
from holdfast.model.execution import Execution, folded
from holdfast.model.signals import Signal, is_callers
from holdfast.model.wait import Wait
from holdfast.records import changes
from holdfast.records.head import OPEN, Head, InboxSize, head_of
from holdfast.records.head import Context as JournalContext
from holdfast.storage import Update

__all__ = ["Hold", "Overtaken"]

T = TypeVar("T")

_RELIEF_TRIES = 3
# What a node may act on: nothing is begun before it is durable.
_PRESSING = (CallFinished, SignalTaken)


class Overtaken(BaseException):
    """Somebody else wrote into the journal: what a node is about may no longer be wanted."""


class Hold:
    """One claimed run."""

    def __init__(self, kernel: Kernel, holder: Holder, head: Head, loaded: Loaded | None) -> None:
        """Take a run over; ``loaded`` is what is known of one that was only just made."""
        self.head = head
        self.execution = _as_far_as_known(head)
        self.inbox: list[Signal] = []
        self.parking = Parking()
        self.journal: Journal | None = None
        """None where what we know of it may not be all there is: then it is read again."""
        self.kernel = kernel
        self.holder = holder
        # As it was when the run was claimed: a worker that takes a new name holds nothing of it.
        self.worker = holder.id
        self.in_node = False
        self.over = False
        """Whether nobody drives it any more."""
        self.let_go = False
        """Whether the row says that the run is not ours any more."""
        self.begun = None if loaded is None else loaded.unwritten
        """Who started it, where it began in memory."""
        self.unwritten = self.begun
        """The same as long as nothing of it is written."""
        self.outage: Outage | None = None
        """Why what happened could not be written in time: then it is lost, and the run released."""
        self._writing: set[asyncio.Future[Any]] = set()
        # Events that are being written, and not folded yet.
        self._under_way: dict[int, Sequence[Event]] = {}
        # What was taken of callers' signals since the row last said what waits in the inbox.
        self._taken = InboxSize()
        self._payloads = Payloads(kernel, head.key)
        self._parenting = asyncio.Lock()
        if loaded is not None:
            self.take_in(loaded)

    def now_ms(self) -> int:
        """Return the time."""
        return self.kernel.clock.now_ms()

    async def sleep(self, seconds: float) -> None:
        """Wait without letting go of the run."""
        await self.kernel.clock.sleep(seconds)

    def alive(self) -> bool:
        """Return whether the run may be written into, as far as our lease tells."""
        return self.holder.id == self.worker and self.holder.alive()

    def lost(self) -> bool:
        """Return whether it is not ours any more, and will not be.

        One that is not alive may be so again: the renewal of its lease may have been carried out
        in time, and its answer come late, to a process that stood still.
        """
        return self.over or self.holder.id != self.worker

    def check_alive(self) -> None:
        """Check that it is still ours.

        Raises:
            Dropped: it is not.
            Outage: it is, but something that happened could not be written in time.
        """
        if not self.alive():
            raise Dropped
        if self.outage is not None:
            raise self.outage

    async def patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        """Do something again until the store can be used, as long as the run is ours.

        Raises:
            Outage: the store could not be used for too long.
            Dropped: the run is no longer ours.
        """
        return await self.kernel.patiently(
            action, self.alive, seconds_max=self.holder.patience_seconds
        )

    def end(self) -> None:
        """Hear that its driver has stopped."""
        self.over = True
        if not self.undecided:
            # The journal knows us, and we know it: only the garbage collector would free them, and
            # all that the run holds with them, at some later time.
            self.journal = None

    def take_in(self, loaded: Loaded) -> None:
        """Begin with what was read of it."""
        self.execution = loaded.execution
        self.weight = Weight(self.kernel.limits, loaded.plain_bytes)
        self.inbox = loaded.inbox
        self.parking.begin(self.execution, self.all_waits())
        # An owner before us may have taken what the row still counts.
        counted, waits = self.head, self.inbox_size()
        self._taken = InboxSize(
            max(counted.inbox_items - waits.items, 0), max(counted.inbox_bytes - waits.bytes, 0)
        )
        self.answered()
        self.journal = Journal(
            self.kernel,
            self.head,
            loaded,
            alive=self.alive,
            apart=self._begin,
            lost=self._lose,
            admit=self._admit,
            patience_seconds=self.holder.patience_seconds,
        )

    # --- the journal ------------------------------------------------------------------------------

    @property
    def context(self) -> JournalContext:
        """How far the journal reaches."""
        return self.head.context if self.journal is None else self.journal.context

    @property
    def undecided(self) -> bool:
        """Whether a write is under way of which nobody knows yet what becomes of it."""
        return bool(self._writing) or (self.journal is not None and self.journal.undecided)

    async def write(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Write down what happened, and fold it.

        Raises:
            Conflict: somebody else wrote into the journal.
        """
        journal = self.journal
        if self.outage is not None:
            raise self.outage
        if journal is None:  # interrupted: somebody else wrote into it
            raise Conflict
        self._under_way[id(events)] = events
        try:
            if durable or not journal.hold(events):
                await journal.append(events)
        finally:
            self._under_way.pop(id(events), None)  # the empty tuple is one for all
        self._fold(events)

    async def record(
        self, *events: Event, durable: bool, decided: Callable[[], None] | None = None
    ) -> None:
        """Write down what happened inside a node, and fold it.

        What need not be durable is so after some milliseconds, or with what is written before.
        ``decided`` is called in the step that folds what was written durably, or when that failed,
        also where the node was cancelled meanwhile; but not where no write began.

        Raises:
            Dropped: the run is no longer ours, or the node is over.
            Overtaken: somebody else wrote into its journal.
            InvalidResult: it cannot be kept.
        """
        self.check_alive()
        if not self.in_node:
            raise Dropped  # the node is over, though something that it began goes on
        journal, pressing = self.journal, any(isinstance(event, _PRESSING) for event in events)
        taken = [event for event in events if isinstance(event, SignalTaken)]
        for event in taken:
            self.parking.take(event.name, event.id)
        try:
            if not durable and journal is not None and journal.hold(events, pressing=pressing):
                self._fold(events)
                if journal.presses:
                    self.holder.flusher.soon(self)
                return
            await self.uncut(self._write_and_tell(events, decided))
        except Conflict:
            raise Overtaken from None
        except InvalidResult:
            for event in taken:
                self.parking.give_back(event.name, event.id)
            raise

    async def _write_and_tell(
        self, events: Sequence[Event], decided: Callable[[], None] | None
    ) -> None:
        try:
            await self.write(events)
        finally:
            if decided is not None:
                decided()

    def flush_held(self) -> None:
        """Begin to write what is still held back."""
        journal = self.journal
        # What is on its way already needs nobody to send it.
        if not self.over and journal is not None and journal.presses and journal.holds_back:
            journal.begin_flush()

    async def settled(self) -> None:
        """Return when all that was recorded is durable.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: somebody else wrote into its journal.
        """
        self.check_alive()
        journal = self.journal
        if journal is None:
            raise Overtaken
        if journal.presses:
            try:
                await journal.flushed()
            except Conflict:
                self.check_alive()
                raise Overtaken from None
            self.check_alive()

    async def uncut(self, write: Coroutine[Any, Any, T]) -> T:
        """Write in a task of its own.

        What cancels a node must not cut a write short, whose fate would then be unknown.
        """
        return await asyncio.shield(self._begin(write))

    async def written(self) -> None:
        """Return when every write that was begun is decided."""
        if self._writing:
            await asyncio.wait(self._writing)

    def _begin(self, write: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        writing = asyncio.ensure_future(write)
        self._writing.add(writing)
        writing.add_done_callback(self._was_written)
        return writing

    def _was_written(self, writing: asyncio.Future[Any]) -> None:
        self._writing.discard(writing)
        # No caller may be left to hear of it, where the node was cancelled.
        error = None if writing.cancelled() else writing.exception()
        if error is not None:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """Hear that a write did not come about."""
        if isinstance(error, Conflict | Outage):
            self.journal = None
        if isinstance(error, Outage):
            self.outage = error  # or the run would go on without what is lost

    def _fold(self, events: Sequence[Event]) -> None:
        before, self.execution = self.execution, folded(self.execution, events)
        if self.execution.spent != before.spent:
            self.parking.relent()

    def _admit(self, events: Sequence[Event], plain_bytes: int) -> None:
        """Check that the run does not hold more than it may.

        Raises:
            ResultTooLarge: it would.
        """
        if self.weight.leaves_room(plain_bytes):
            self.weight.bytes += plain_bytes
            return
        others = [each for each in self._under_way.values() if each is not events]
        under_way = itertools.chain.from_iterable(others)
        self.weight.admit(events, plain_bytes, before=self.execution, under_way=under_way)

    # --- the inbox --------------------------------------------------------------------------------

    async def read_inbox(self) -> None:
        """Read the inbox again."""
        self.inbox = await self.patiently(
            lambda: read_inbox(self.kernel, self.head, self.execution.taken)
        )
        self.parking.stir()

    def inbox_size(self) -> InboxSize:
        """Return how much of what callers sent was not taken."""
        return _inbox_size(self.free_signals())

    def took(self, signal: Signal) -> None:
        """Hear that a signal was taken."""
        taken = _inbox_size((signal,))
        self._taken = InboxSize(self._taken.items + taken.items, self._taken.bytes + taken.bytes)

    async def relieve(self) -> None:
        """Say in the row what waits in the inbox, if much was taken since the run last paused.

        A run with many branches may not pause for days, and would seem to have a full inbox.

        Raises:
            Dropped: the run is no longer ours.
            Overtaken: somebody else wrote into its journal.
        """
        limits = self.kernel.limits
        if (
            2 * self._taken.items < limits.inbox_items_max
            and 2 * self._taken.bytes < limits.inbox_bytes_max
        ):
            return
        await self.uncut(self._relieve())

    async def _relieve(self) -> None:
        async with self._parenting:
            for _ in range(_RELIEF_TRIES):
                known, taken = self.execution.taken, self._taken
                # What is taken, but not durably, waits again if we crash.
                await self.settled()
                signals = self.head.signals
                inbox = _inbox_size(one for one in self.inbox if (one.name, one.id) not in known)
                try:
                    await self.change(changes.relieved, signals=signals, inbox=inbox)
                except ConditionFailed as failed:
                    await self.look_again(failed)  # another signal came meanwhile
                else:
                    items, bytes = self._taken.items - taken.items, self._taken.bytes - taken.bytes
                    self._taken = InboxSize(items, bytes)
                    self._keep_unseen(signals)
                    return

    async def payload_of(self, signal: Signal) -> Any:
        """Return what a signal carries that is about to be taken.

        Raises:
            JournalDamaged: it cannot be read.
        """
        return await self.patiently(lambda: self._payloads.read(signal, self.free_signals()))

    def free_signals(self) -> list[Signal]:
        """Return the signals in the inbox that were not taken, nor are about to be."""
        return self.parking.free(self.inbox, self.execution)

    def was_taken(self, name: str) -> bool:
        """Return whether a signal of that name was taken, or is about to be."""
        return self.parking.was_taken(name, self.execution)

    def answered(self) -> list[str]:
        """Return the branches whose wait is over by now; they no longer wait."""
        return self.parking.answered(self.inbox, self.execution, self.now_ms())

    def known_waits(self, branch: str) -> list[Wait]:
        """Return what a branch is known to wait for, as it began."""
        known = [*self.parking.waited(branch), *self.head.waits, *self.journalled_waits(branch)]
        return [wait for wait in known if wait.branch == branch]

    def journalled_waits(self, branch: str) -> tuple[Wait, ...]:
        """Return what a branch waits for, as far as the journal tells."""
        strand = self.execution.strand(branch)
        return () if strand is None else strand.waits

    def all_waits(self) -> list[Wait]:
        """Return what the run waits for: what its row says, and what only its journal does."""
        journalled = [wait for _, strand in self.execution.open() for wait in strand.waits]
        return [*self.head.waits, *journalled]

    # --- the row ----------------------------------------------------------------------------------

    async def change(self, change: Callable[..., Update], **values: Any) -> None:
        """Change the row.

        Raises:
            ConditionFailed: it was not changed.
            Dropped: our lease ended before we knew.
        """
        head = self.head
        write = change(head, now_ms=self.now_ms(), token=self.kernel.ids.new(), **values)
        item = await self.kernel.settle(
            self.kernel.heads,
            write,
            alive=self.alive,
            stands=lambda standing: _stands(write, head, standing),
        )
        self.head = msgspec.structs.replace(head_of(item), torn=head.torn)

    async def change_or_drop(self, change: Callable[..., Update], **values: Any) -> None:
        """Change the row, also where the run is extended, or to be cancelled, meanwhile.

        Raises:
            Dropped: something else is against it.
        """
        while True:
            before = self.head
            try:
                await self.change(change, **values)
                return
            except ConditionFailed as failed:
                # Not the inbox, too: its blobs may be what cannot be read, and the run is released.
                self._take_row(failed.item)
                if _asked(self.head) == _asked(before):
                    raise Dropped from None  # what else is against it stays

    async def look_again(self, failed: ConditionFailed) -> None:
        """Take in what the row says by now, if the run is still ours, and read the inbox."""
        self._take_row(failed.item)
        await self.read_inbox()

    async def read_row(self) -> None:
        """Read the row again: what is new in the journal may be so there, too."""
        self._take_row(await self.patiently(lambda: self.kernel.heads.get(self.head.key.head)))

    async def refresh_row(self) -> None:
        """Read the row again while a node runs: the run may have been given more time, or money.

        Raises:
            Dropped: the run is no longer ours.
        """
        if self.unwritten is not None:
            return
        signals = self.head.signals
        await self.read_row()
        self._keep_unseen(signals)

    async def stop_accepting(self) -> bool:
        """Take no signal any more if the run is past its expiry; return whether it is.

        Whoever reads the inbox after this misses none.
        """
        while self.now_ms() >= self.head.expires_ms:
            if self.head.status not in OPEN:
                return True
            try:
                await self.change(changes.closing, status="closing")
            except ConditionFailed as failed:
                await self.look_again(failed)  # it may have been extended
        return False

    async def as_parent(self) -> Head:
        """Return the row once it says that the run has children."""
        async with self._parenting:
            self.check_alive()
            if not self.head.children:
                await self.write_down()
                signals = self.head.signals
                await self.change_or_drop(changes.parenting)
                self._keep_unseen(signals)
            return self.head

    def _keep_unseen(self, signals: int) -> None:
        """The inbox was not read: what came since is still unseen, and a pause must say so."""
        self.head = msgspec.structs.replace(self.head, signals=signals)

    def _take_row(self, item: Mapping[str, Any] | None) -> None:
        standing = None if item is None else head_of(item)
        if (
            standing is None
            or standing.generation != self.head.generation
            or standing.epoch != self.head.epoch
        ):
            raise Dropped
        self.head = msgspec.structs.replace(
            standing,
            torn=self.head.torn,
            # When its waits began we may know better: the row hears of it at the next pause.
            waits=self.head.waits,
            # What was read may be older than what another branch wrote since.
            children=standing.children or self.head.children,
        )

    # --- a run that began in memory ---------------------------------------------------------------

    async def write_down_in_node(self) -> None:
        """Make it durable because a node wants something that others would see."""
        self.check_alive()
        async with self._parenting:
            await self.uncut(self.write_down())

    async def write_down(self) -> None:
        """Make a run durable that was only in memory so far: its journal first, then its row."""
        unwritten, journal = self.unwritten, self.journal
        if unwritten is None or journal is None:
            return
        try:
            head = await self.patiently(lambda: self._with_input(unwritten.packed))
            await journal.write_down(head, self.execution)
            context = msgspec.structs.replace(
                journal.context,
                size=journal.context.size + head.context.size,
                blobs=journal.context.blobs or head.context.blobs,
            )
            head = msgspec.structs.replace(head, context=context)
            # Until it is known: done anew, it would be another generation's.
            self.head = await made(self.kernel, head, alive=self.alive)
        except (Stood, InvalidInput, InvalidResult) as error:
            unwritten.is_refused(error)
            raise Dropped from None
        self.unwritten = None

    async def _with_input(self, packed: bytes) -> Head:
        # Its generation is as old as what it names, so that nobody sweeps that away.
        head = msgspec.structs.replace(self.head, generation=self.kernel.ids.new())
        return await with_input(self.kernel, head, packed)

    def tell_starter(self) -> None:
        """Tell whoever started it in memory what became of it, if nobody did so before."""
        if self.begun is not None and self.unwritten is None:
            self.begun.is_written()
        elif self.begun is not None:
            self.begun.is_lost()


def _stands(write: Update, head: Head, standing: dict[str, Any]) -> bool:
    """Return whether our write was carried out, though somebody changed the row since."""
    epoch = write.set.get("epoch", head.epoch)
    if standing.get("generation") != head.generation or standing.get("epoch") != epoch:
        return False
    if epoch == head.epoch:
        wanted = {name: value for name, value in write.set.items() if name != "updated_ms"}
        return wanted.items() <= standing.items() and not set(write.remove) & standing.keys()
    return standing.get("torn", False) == head.torn


def _asked(head: Head) -> tuple[int, int, str | None]:
    """Return what may be asked of a run, in its row, while a worker holds it."""
    return head.ttl, head.expires_ms, head.cancel


def _inbox_size(signals: Iterable[Signal]) -> InboxSize:
    """Return how much of these signals callers sent."""
    sizes = [signal.size for signal in signals if is_callers(signal.name)]
    return InboxSize(len(sizes), sum(sizes))


def _as_far_as_known(head: Head) -> Execution:
    return Execution(
        seed=head.seed,
        state={},
        node=head.node,
        nodes_run=head.nodes_run,
        spent_ms=head.spent_ms,
    )
