"""Text as it comes, checked on every screen that follows it, and whenever some is written.

- A screen shows the beginning of what one attempt at a call said. It goes from one attempt to
  another only where a piece says so, and never back.
- No piece comes twice. A screen that reconnects with its last cursor, in whatever process, misses
  nothing.
- Once a run has ended, unless by its expiry, and a screen was told all of it, it shows every
  recorded answer to its end.
- Whoever follows a run is told that it has ended.
- What is written of a text never changes, lasts no longer than its run, and is never sent to a run
  that was freed.

A screen is outside the world, as a browser is: it outlives the process that serves it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.app import Holdfast
from holdfast.errors import RunNotFound, StoreError
from holdfast.model.event import CallFinished, Event
from holdfast.model.invocation import Emit
from holdfast.model.run import TextPiece
from holdfast.records.head import ENDED, Head
from holdfast.records.keys import RunKey
from holdfast.storage.item import Item
from holdfast.storage.layout import Key
from holdfast.storage.operations import WriteItem, WriteOperation
from holdfast.storage.writes import Put
from tests.simulation.chronicle import Broken, Chronicle, Chronicles
from tests.simulation.faults import drawn
from tests.simulation.loop import OWNER
from tests.simulation.process import Process
from tests.simulation.shared import TOPICS

if TYPE_CHECKING:
    from holdfast.engine.execution.context import Context
    from tests.simulation.world import World

__all__ = ["NUMBER_LETTERS", "Screen", "Streams", "is_text"]

NUMBER_LETTERS = 5
"""With so many letters an answer says its number, which no other has."""
_PIECE_SECONDS_MAX = 0.8
_HOPS = 0.08
"""After how many of the pieces a screen goes on elsewhere."""
_IDLE_SECONDS = 3.0
_DAY_SECONDS = 24 * 3600 + 60
"""For how long text is kept, as any clock has it."""
_AGAIN_SECONDS = 1.0

Name = tuple[str, str]
"""A run: its partition, and its generation."""


@dataclass
class Shown:
    """What a screen shows of one call."""

    text: str = ""
    number: str = ""
    """That of the attempt."""
    past: set[str] = field(default_factory=set)
    """The attempts that were shown before it."""
    last: bool = False


@dataclass(eq=False)
class Screen:
    """What somebody sees who follows a run."""

    run: RunKey
    calls: dict[str, Shown] = field(default_factory=dict)
    cursor: str | None = None
    cursors: set[str] = field(default_factory=set)
    over: bool = False
    process: Process | None = None
    """Which process serves it."""

    @property
    def is_free(self) -> bool:
        """Whether no process serves it."""
        return not self.over and (self.process is None or self.process.crashed)


class Streams:
    """Watches the text of all runs, and every screen."""

    def __init__(self, world: World, runs: Chronicles, seen: Counter[str]) -> None:
        self._world = world
        self._runs = runs
        self._seen = seen
        self.screens: list[Screen] = []
        self._whole: dict[str, str] = {}
        """What each answer says, by its number."""
        self._calls: dict[str, str] = {}
        """What names the call, by the number of its answer."""
        self._told: set[tuple[Name, str, int, str]] = set()
        """The answers that can be followed: by run, branch, visit and number. Another visit may be
        given the same answer, and record it without telling it."""
        self._recorded: dict[Name, list[CallFinished]] = {}
        self._freed: dict[Name, float] = {}
        self._sent_at: dict[tuple[Key, int], float] = {}
        """When each text, by its key and its Put, was last sent."""
        world.on_sent(self._sent)

    # --- what is said -----------------------------------------------------------------------------

    def tells(self, of: str, text: str) -> None:
        """Hear that the text of an answer is about to be told."""
        number = text[:NUMBER_LETTERS]
        self._whole[number], self._calls[number] = text, of

    async def tell(self, text: str, emit: Emit) -> None:
        """Tell a text piece by piece, unless something happens in the middle of it."""
        world, process = self._world, OWNER.get()
        assert isinstance(process, Process)
        draw = world.random.random
        fault = None if process.silent else drawn(world.plan.streams, draw())
        at, struck = 0, int(draw() * len(text))
        while at < len(text):
            if fault is not None and at >= struck:
                world.note(process, fault, text[:NUMBER_LETTERS], count=True)
                if fault == "stream_broken":
                    raise ConnectionError(fault)
                if fault == "stream_crash":
                    await process.die()
                process.stall(draw() * world.plan.stall_seconds_max)
                fault = None
            end = at + max(NUMBER_LETTERS, len(text) // 6)
            emit(text[at:end])
            at = end
            await process.clock.sleep(draw() ** 3 * _PIECE_SECONDS_MAX)

    def answered(self, ctx: Context, text: str) -> None:
        """Hear that a node has an answer that could be followed."""
        head = ctx._visit.claimed.head
        name = (head.key.pk, head.generation)
        self._told.add((name, ctx.branch, ctx.visit, text[:NUMBER_LETTERS]))

    def recorded(self, chronicle: Chronicle, event: Event, what: object) -> None:
        """Hear of a record: what it says is to be read on every screen in the end."""
        if isinstance(event, CallFinished) and isinstance(event.result, dict):
            name = (chronicle.key.pk, chronicle.generation)
            self._recorded.setdefault(name, []).append(event)

    # --- screens ----------------------------------------------------------------------------------

    async def serve(self, process: Process, hf: Holdfast, leaving: asyncio.Event) -> None:
        """Serve one screen after the other that no other process serves."""
        while not leaving.is_set():
            free = [screen for screen in self.screens if screen.is_free]
            if not free:
                await process.clock.sleep(_IDLE_SECONDS)
                continue
            screen = free[int(process.ids.random() * len(free))]
            self._seen["screen went on elsewhere"] += screen.cursor is not None
            screen.process = process
            await self._served(screen, process, hf, leaving)
            screen.process = None
            await process.clock.sleep(_AGAIN_SECONDS)

    async def _served(
        self, screen: Screen, process: Process, hf: Holdfast, leaving: asyncio.Event
    ) -> None:
        """Follow a run until it has ended, something fails, or all go home."""
        following = asyncio.ensure_future(self._follow(screen, process, hf))
        gone = asyncio.ensure_future(leaving.wait())
        await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        following.cancel()
        try:
            await following
        except (asyncio.CancelledError, StoreError):
            pass
        except RunNotFound:
            screen.over = self._runs.row(screen.run) is not None
        finally:
            del following  # its error knows of this frame

    async def _follow(self, screen: Screen, process: Process, hf: Holdfast) -> None:
        key = screen.run
        async with aclosing(
            hf.run(key.id, tenant=key.tenant).tokens(after=screen.cursor)
        ) as pieces:
            async for piece in pieces:
                broken = self._show(screen, piece)
                if broken is not None:
                    where = f"the screen of {key.id} at {process.name}"
                    self._world.loop.fail(Broken(f"text: {where}: {broken} ({piece})"))
                if self._world.plan.crash and process.ids.random() < _HOPS:
                    return
        screen.over = True
        head = self._runs.row(key)
        if head is not None and head.status in ENDED:
            self._seen["text followed to the end of its run"] += 1
            self._check_whole(screen, head)

    def _show(self, screen: Screen, piece: TextPiece) -> str | None:
        """Do as a piece says; return what is wrong with it."""
        if piece.cursor in screen.cursors:
            return "it was told before"
        screen.cursors.add(piece.cursor)
        screen.cursor = piece.cursor
        shown = screen.calls.setdefault(piece.call, Shown())
        if piece.restarted:
            if shown.number:
                shown.past.add(shown.number)
                self._seen["text restarted"] += 1
            shown.text, shown.last, shown.number = "", False, ""
        elif shown.last:
            return "it goes on behind its end"
        shown.text += piece.text
        shown.last = piece.last
        return self._check_shown(screen, piece.call, shown)

    def _check_shown(self, screen: Screen, call: str, shown: Shown) -> str | None:
        number = shown.number = shown.text[:NUMBER_LETTERS]
        if not number:
            return None
        whole = self._whole.get(number)
        if whole is None or not whole.startswith(shown.text):
            return f"it shows {shown.text!r:.80}, and said was {whole!r:.80}"
        if shown.last and whole != shown.text:
            return f"it ends with {shown.text!r:.80}, and said was {whole!r:.80}"
        if number in shown.past and self._calls[number] not in TOPICS:
            return f"it goes back to the attempt {number}"
        others = {self._calls[past] for past in shown.past} - {self._calls[number]}
        if others:
            return f"{call} is the answer to {self._calls[number]}, and to {others}"
        self._seen["text heard before it was complete"] += not shown.last
        return None

    def _check_whole(self, screen: Screen, head: Head) -> None:
        name = (head.key.pk, head.generation)
        ending = self._runs.of_row(head).execution
        if ending is None or ending.ending is None or head.status == "expired":
            return  # it was retried meanwhile, or its text is being freed
        for event in self._recorded.get(name, []):
            text: str = event.result["text"]
            if (name, event.branch, event.visit, text[:NUMBER_LETTERS]) not in self._told:
                continue
            self._seen["answer followed to its end"] += 1
            branch = f"{event.branch}." if event.branch else ""
            call = f"{branch}{event.visit}.{event.call}"
            shown = screen.calls.get(call)
            if shown is None or not shown.last or shown.text != text:
                told = f"{text!r:.80} of {call} is recorded, and not shown: {shown!r:.300}"
                self._world.loop.fail(Broken(f"text: {head.key.id} has ended, and {told}"))

    def settled(self) -> None:
        """Check that whoever followed a run that has ended was told so."""
        for screen in self.screens:
            head = self._runs.row(screen.run)
            served = screen.process is not None and not screen.process.crashed
            if served and not screen.over and head is not None and head.status in ENDED:
                raise Broken(f"P6: {screen.run.id} has ended, and somebody still follows it")

    # --- every write ------------------------------------------------------------------------------

    def row(self, head: Head) -> None:
        """Hear of a row, which says whether what its run kept is freed."""
        if head.freed:
            self._freed.setdefault((head.key.pk, head.generation), self._world.loop.time())

    def item(self, key: Key, old: Item | None, new: Item | None, process: str) -> None:
        """Check what is written of a text."""
        name = (key.pk, key.sk.split("#")[1])
        if new is None:
            return
        head = self._runs.own_row(self._runs.of(*name))
        self._seen["text written"] += 1
        if old is not None and old["data"] != new["data"]:
            raise Broken(f"text: {process} wrote {key.sk} a second time, and it says another thing")
        day_after = self._world.now_ms() // 1000 + _DAY_SECONDS
        if new["ttl"] > (day_after if head is None else min(head.ttl, day_after)):
            raise Broken(f"P7: {process} wrote {key.sk}, which lasts for too long")
        sent, freed = self._sent_at.get((key, hash(new["data"])), 0.0), self._freed.get(name)
        if freed is not None and sent > freed:
            raise Broken(f"P7: {process} wrote {key.sk} of {key.pk}, which was freed")
        self._seen["text came late"] += freed is not None

    def _sent(self, process: Process, operation: WriteOperation) -> None:
        if isinstance(operation, WriteItem) and isinstance(operation.write, Put):
            key, item = operation.write.key, operation.write.item
            if is_text(key):
                self._sent_at[key, hash(item["data"])] = self._world.loop.time()


def is_text(key: Key) -> bool:
    """Return whether a key of a run is that of some text."""
    return key.pk.startswith("RUN#") and key.sk.startswith("J#") and key.sk.split("#")[2][:1] == "~"
